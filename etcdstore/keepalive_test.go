package etcdstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
)

// keepalives is an etcd of which the first keepalives are taken and not answered.
type keepalives struct {
	etcdserverpb.LeaseClient
	silent int
}

func (k *keepalives) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (etcdserverpb.Lease_LeaseKeepAliveClient, error) {
	k.silent--
	return &keepaliveStream{ctx: ctx, silent: k.silent >= 0}, nil
}

type keepaliveStream struct {
	grpc.ClientStream
	ctx    context.Context
	silent bool
}

func (s *keepaliveStream) Send(*etcdserverpb.LeaseKeepAliveRequest) error { return nil }

func (s *keepaliveStream) Recv() (*etcdserverpb.LeaseKeepAliveResponse, error) {
	if s.silent {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	return &etcdserverpb.LeaseKeepAliveResponse{TTL: 60}, nil
}

// TestKeepaliveIsBounded: a member takes a keepalive and does not answer. Whoever sent
// it has a minute; who waits for its answer sends another in time, and so has the
// lease renewed.
func TestKeepaliveIsBounded(t *testing.T) {
	for ttl, bound := range map[time.Duration]time.Duration{
		time.Minute:     requestMost,
		6 * time.Second: 2 * time.Second, // a third
		time.Second:     watchEvery,
	} {
		synctest.Test(t, func(t *testing.T) {
			e := &session{s: &Store{leases: &keepalives{silent: 1}}, ttl: ttl, sent: driver.Now(), over: make(chan struct{})}
			time.Sleep(time.Millisecond) // or it would be as fresh as can be
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			first := make(chan error, 1)
			go func() { first <- e.fresh(ctx, 0) }()
			synctest.Wait()
			if err := e.fresh(ctx, 0); err != nil {
				t.Errorf("TTL %s: who waits for it: %v", ttl, err)
			}
			if err := <-first; err == nil {
				t.Errorf("TTL %s: no error for who was not answered", ttl)
			}
			if took := time.Since(began); took != bound {
				t.Errorf("TTL %s: after %s, want %s", ttl, took, bound)
			}
			if elapsed, _ := e.sent.Elapsed(); elapsed > time.Second/2 {
				t.Errorf("TTL %s: trust from %s ago", ttl, elapsed)
			}
		})
	}
}
