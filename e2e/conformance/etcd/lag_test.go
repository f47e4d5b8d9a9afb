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

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
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

// TestDeletedEntryAtALaggingMember: the member that serves a waiter is paused. Meanwhile the holder
// releases, an operator deletes the waiter's entry, and the next waiter is granted. When the member
// continues it first reports the release, so the waiter may start. The waiter is then notified of
// its loss, and its token is below that of the other grant.
func TestDeletedEntryAtALaggingMember(t *testing.T) {
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
		g := must(t, holder, request("holder-"+name, name, 1, time.Hour))
		r := request("waiter-"+name, name, 1, time.Hour)
		w := waitIn(t, waiter, r)
		key := keyOf(t, direct, name)
		b := waitIn(t, other, request("behind-"+name, name, 1, time.Hour))
		if err := lagging.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := holder.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := direct.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		next := receive(t, "the grant of the next waiter", b)
		if err := lagging.Cont(); err != nil {
			t.Fatal(err)
		}
		if next.err != nil {
			t.Fatal(next.err)
		}
		switch res := receive(t, "the outcome of the waiter", w); {
		case res.err == nil:
			started++
			if res.g.Token >= next.g.Token {
				t.Errorf("token %d beside %d", res.g.Token, next.g.Token)
			}
			receive(t, "the loss of the deleted grant", r.From.(*requester).lost)
		case driver.CodeOf(res.err) == driver.CodeUnknown:
			if err := waiter.Undo(t.Context(), r); err != nil {
				t.Error(err)
			}
		case driver.CodeOf(res.err) != driver.CodeUnavailable:
			t.Errorf("the waiter: %v", res.err)
		}
		release(t, other, next.g)
	}
	t.Logf("the waiter started in %d rounds", started)
}
