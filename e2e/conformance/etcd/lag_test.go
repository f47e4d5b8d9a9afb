package etcd

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/check/servers"
)

// lagging sits in a client and makes its watches those of a member that lags: a
// watch from now begins at the member's own revision, which is an older one.
type lagging struct {
	at   atomic.Int64
	told atomic.Int64 // events that came
}

func (l *lagging) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	return &laggingStream{s, l}, err
}

type laggingStream struct {
	grpc.ClientStream
	l *lagging
}

func (s *laggingStream) SendMsg(m any) error {
	if w, ok := m.(*etcdserverpb.WatchRequest); ok && w.GetCreateRequest() != nil && w.GetCreateRequest().StartRevision == 0 {
		w.GetCreateRequest().StartRevision = s.l.at.Load()
	}
	return s.ClientStream.SendMsg(m)
}

func (s *laggingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if w, ok := m.(*etcdserverpb.WatchResponse); ok && err == nil {
		s.l.told.Add(int64(len(w.Events)))
	}
	return err
}

// TestLaggingWatch: a member that lags tells a waiter of the deletion of its
// predecessor's key before that was made again. Nothing follows from it.
func TestLaggingWatch(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	l := &lagging{}
	waiter := over(t, c.direct(t, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(l.intercept))
	}))
	holder := c.open(t)

	g := must(t, holder, request("first", "n", 1, time.Minute))
	l.at.Store(int64(g.Token) + 1)
	if err := holder.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	g = must(t, holder, request("second", "n", 1, time.Minute))
	w := waitIn(t, waiter, request("waiter", "n", 1, time.Minute))
	for end := time.Now().Add(patience); l.told.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the watch tells of nothing")
		}
	}
	select {
	case res := <-w:
		t.Fatalf("granted beside the holder: %+v, %v", res.g, res.err)
	case <-time.After(500 * time.Millisecond):
	}
	if err := holder.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	if res := receive(t, "the grant", w); res.err != nil {
		t.Fatal(res.err)
	}
}
