package etcdstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/must"
)

// leaseServer imitates etcd. Its first keepalive streams accept requests and do not answer. An early one ends each
// keepalive a little before its timeout, by its own clock.
type leaseServer struct {
	etcdserverpb.LeaseClient
	silent  int
	early   bool
	streams int
}

func (k *leaseServer) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (etcdserverpb.Lease_LeaseKeepAliveClient, error) {
	k.streams++
	return &leaseStream{ctx: ctx, silent: k.streams <= k.silent, early: k.early, sent: make(chan int64, 100)}, nil
}

type leaseStream struct {
	grpc.ClientStream
	ctx    context.Context
	silent bool
	early  bool
	sent   chan int64
}

func (s *leaseStream) Send(r *etcdserverpb.LeaseKeepAliveRequest) error {
	s.sent <- r.ID
	return nil
}

func (s *leaseStream) Recv() (*etcdserverpb.LeaseKeepAliveResponse, error) {
	sent := s.sent
	if s.early {
		return nil, status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	}
	if s.silent {
		sent = nil
	}
	select {
	case id := <-sent:
		return &etcdserverpb.LeaseKeepAliveResponse{ID: id, TTL: 60}, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// storeOver returns a store that sends its requests to leases. The caller calls end.
func storeOver(t *testing.T, leases etcdserverpb.LeaseClient) (s *store, end func()) {
	s = &store{calls: calls.New(), leases: leases, reconnect: func() {}}
	s.share()
	return s, func() {
		s.calls.Cancel()
		s.calls.Tasks.Wait()
	}
}

// TestSilentStreamIsReplaced: a member accepts keepalives and does not answer. The client closes
// the stream in time, and the same request renews the lease on another stream.
func TestSilentStreamIsReplaced(t *testing.T) {
	for ttl, after := range map[time.Duration]time.Duration{
		time.Minute:     requestTimeout * 2 / 3,
		6 * time.Second: 2 * time.Second * 2 / 3,
		time.Second:     time.Second / 3,
	} {
		synctest.Test(t, func(t *testing.T) {
			server := &leaseServer{silent: 1}
			s, end := storeOver(t, server)
			defer end()
			e := &session{s: s, lease: 7, ttl: ttl, sent: driver.Now(), over: make(chan struct{})}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			// The stream is open before the keepalive.
			k, _, err := s.keepaliveStream(ctx)
			if err != nil || !k.usable() {
				t.Fatal(err)
			}
			began := time.Now()
			if err := e.renewIfOlder(ctx, -1); err != nil {
				t.Errorf("TTL %s: %v", ttl, err)
			}
			if took := time.Since(began); took != after {
				t.Errorf("TTL %s: the stream was given up after %s, want %s", ttl, took, after)
			}
			if elapsed, _ := e.sent.Elapsed(); elapsed > time.Millisecond {
				t.Errorf("TTL %s: validity is counted from %s ago, before the request that was answered", ttl, elapsed)
			}
		})
	}
}

// TestKeepalivesShareAStream: many renewals, one after another and at once, use one stream.
func TestKeepalivesShareAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &leaseServer{}
		s, end := storeOver(t, server)
		defer end()
		for lease := range clientv3.LeaseID(50) {
			go func() {
				for range 20 {
					must.Report(t, s.keepAlive(t.Context(), lease+1, time.Second, func(driver.Instant) {}))
				}
			}()
		}
		synctest.Wait()
		if server.streams != 1 {
			t.Errorf("%d streams, want 1", server.streams)
		}
	})
}

// TestKeepaliveIsBounded: no member answers keepalives. A call that waits for the keepalive of
// another call ends with that keepalive.
func TestKeepaliveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, end := storeOver(t, &leaseServer{silent: 1000})
		defer end()
		e := &session{s: s, lease: 7, ttl: 6 * time.Second, sent: driver.Now(), over: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := e.renewIfOlder(ctx, -1); err == nil {
			t.Error("no error although nothing was answered")
		}
		if took := time.Since(began); took > e.timeout() {
			t.Errorf("it took %s, want at most %s", took, e.timeout())
		}
	})
}
