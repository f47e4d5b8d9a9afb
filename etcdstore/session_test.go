package etcdstore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
)

// early is a server that answers a keepalive, by its own clock a little too early,
// that the time for it is over.
type early struct{ etcdserverpb.LeaseClient }

type earlyStream struct {
	etcdserverpb.Lease_LeaseKeepAliveClient
}

func (early) LeaseKeepAlive(context.Context, ...grpc.CallOption) (etcdserverpb.Lease_LeaseKeepAliveClient, error) {
	return earlyStream{}, nil
}

func (earlyStream) Send(*etcdserverpb.LeaseKeepAliveRequest) error { return nil }

func (earlyStream) Recv() (*etcdserverpb.LeaseKeepAliveResponse, error) {
	return nil, status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
}

// TestKeepaliveEndsEarly: the time for a keepalive is not that of the caller. One that
// the server gave up is told when the keepalive's own time is over.
func TestKeepaliveEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{leases: early{}, sessions: map[time.Duration]*session{}, making: map[time.Duration]*making{}}
		s.sessions[time.Second] = &session{s: s, ttl: 1, sent: driver.Now(), over: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		_, err := s.session(ctx, time.Second)
		if s.Classify(err) != driver.Unavailable {
			t.Errorf("%v, want unavailable", err)
		}
		if took := time.Since(began); took > requestMost {
			t.Errorf("it took %s", took)
		}
	})
}
