package etcd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// lagging is an interceptor that makes a client's watches lag: a watch without a start revision
// begins at an older revision, like a watch at a lagging member.
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

// TestLaggingWatchGrantsNothing: a lagging member reports an old deletion of the holder's key. The
// holder has made the same key again since, so the waiter must not be granted the lock.
func TestLaggingWatchGrantsNothing(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	l := &lagging{}
	waiter := over(t, c.direct(t, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(l.intercept))
	}))
	holder := c.open(t)

	g := must(t, holder, request("n", 1, time.Minute))
	l.at.Store(int64(g.Token)/tokenRoom + 1)
	check(t, holder.Release(t.Context(), g, 0))
	g = must(t, holder, request("n", 1, time.Minute))
	w := queue(t, waiter, request("n", 1, time.Minute))
	eventually(t, "the watch reports something", func() bool { return l.reported.Load() > 0 })
	select {
	case <-w.Done:
		t.Fatalf("granted beside the holder: %+v, %v", w.Grant, w.Err)
	case <-time.After(500 * time.Millisecond):
	}
	check(t, holder.Release(t.Context(), g, 0))
	w.Granted()
}

// TestDeletedEntryAtALaggingMember: the member that serves a waiter is paused. Meanwhile the holder
// releases, an operator deletes the waiter's entry, and the next waiter is granted. When the member
// continues it first reports the release, so the waiter may start. The waiter is then notified of
// its loss, and its token is below that of the other grant.
func TestDeletedEntryAtALaggingMember(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{Members: 3})
	client := c.direct(t)
	lead := c.leader(t, client)
	at := func(members ...*servers.Etcd) *clientv3.Client {
		return c.direct(t, func(cfg *clientv3.Config) { cfg.Endpoints = servers.EtcdEndpoints(members) })
	}
	lagging := c.members[(lead+1)%3]
	direct := at(c.members[lead])
	holder, other, waiter := over(t, direct), over(t, at(c.members[lead])), over(t, at(lagging))
	started := 0
	for i := range 10 {
		name := fmt.Sprint("n", i)
		g := must(t, holder, request(name, 1, time.Hour))
		r := request(name, 1, time.Hour)
		w := queue(t, waiter, r)
		key := keyOf(t, direct, name)
		b := queue(t, other, request(name, 1, time.Hour))
		check(t, lagging.Pause())
		check(t, holder.Release(t.Context(), g, 0))
		remove(t, direct, key)
		next := b.Granted()
		check(t, lagging.Cont())
		switch err := w.Ended(); {
		case err == nil:
			started++
			if w.Grant.Token >= next.Token {
				t.Errorf("token %d beside %d", w.Grant.Token, next.Token)
			}
			receive(t, "the loss of the deleted grant", requests.Of(r).Losses)
		case driver.CodeOf(err) == driver.CodeUnknown:
			if err := waiter.Undo(t.Context(), r); err != nil {
				t.Error(err)
			}
		case driver.CodeOf(err) != driver.CodeUnavailable:
			t.Errorf("the waiter: %v", err)
		}
		release(t, other, next)
	}
	t.Logf("the waiter started in %d rounds", started)
}
