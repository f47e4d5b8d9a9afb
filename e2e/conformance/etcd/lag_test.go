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

// lagging is an interceptor that makes a client's watches lag: a watch from now begins at an
// older revision, like that of a lagging member.
type lagging struct {
	at       atomic.Int64
	reported atomic.Int64 // received events
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
		s.l.reported.Add(int64(len(w.Events)))
	}
	return err
}

// TestLaggingWatchGrantsNothing: a lagging member reports the deletion of the predecessor's
// key, which was then made again. The waiter must not take that for its grant.
func TestLaggingWatchGrantsNothing(t *testing.T) {
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
	for end := time.Now().Add(testTimeout); l.reported.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the watch reports nothing")
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
