package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// TestWaiterOnHungConnectionIsGranted: one of two connections no longer answers and does not end, and the
// caller's client does not probe it. A waiter on it is still granted within the declared
// time.
func TestWaiterOnHungConnectionIsGranted(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	more, err := servers.NewProxy(c.members[0].Client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(more.Close)
	proxies := append(c.proxies, more)
	holder, err := etcdstore.New(c.direct(t))
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(context.Background())
	for i := range proxies {
		m := &mute{}
		client := c.direct(t, m.install, func(cfg *clientv3.Config) { cfg.Endpoints = []string{proxies[0].Address(), proxies[1].Address()} })
		s, err := etcdstore.New(client)
		if err != nil {
			t.Fatal(err)
		}
		g := must(t, holder, request("h"+string(rune('0'+i)), "n", 1, time.Minute))
		w := waitIn(t, s, request("w"+string(rune('0'+i)), "n", 1, time.Minute))
		watching(t, m, "n/") // so the fault affects nothing else
		if err := proxies[i].Silence(); err != nil {
			t.Fatal(err)
		}
		if err := holder.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
		res := receive(t, "the grant", w)
		if res.err != nil {
			t.Fatal(res.err)
		}
		if err := proxies[i].Heal(); err != nil {
			t.Fatal(err)
		}
		release(t, s, res.g)
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
	}
}

// TestAcquireWithoutDeadlineEndsOverASilentConnection: the caller's client does not probe
// its connection, and the caller's context has no deadline. A request on an existing lease,
// and one that needs a new lease, still end. Both are granted once the server can be
// reached.
func TestAcquireWithoutDeadlineEndsOverASilentConnection(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := over(t, c.direct(t, func(cfg *clientv3.Config) { cfg.Endpoints = []string{c.proxies[0].Address()} }))
	g := must(t, s, request("warm", "warm", 1, time.Hour))
	release(t, s, g)
	if err := c.proxies[0].Silence(); err != nil {
		t.Fatal(err)
	}
	requests := map[string]driver.Request{
		"of a lease that exists": request("old", "old", 1, time.Hour),
		"of a new lease":         request("new", "new", 1, 2*time.Hour),
		"that waits":             request("waits", "waits", 1, time.Hour),
	}
	answers := map[string]chan error{}
	for what, r := range requests {
		r.Wait = what == "that waits"
		answer := make(chan error, 1)
		answers[what] = answer
		go func() {
			_, err := s.Acquire(context.Background(), r)
			answer <- err
		}()
	}
	for what, answer := range answers {
		if err := receive(t, "the end of a request "+what, answer); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request %s: %v", what, err)
		}
	}
	if err := c.proxies[0].Heal(); err != nil {
		t.Fatal(err)
	}
	for what, r := range requests {
		eventually(t, "the request is undone", func() bool { return s.Undo(t.Context(), r) == nil })
		r.ID += "-again"
		eventually(t, "a request "+what+" is granted", func() bool { _, err := s.Acquire(t.Context(), r); return err == nil })
	}
}

// TestCloseEndsWatch: Close ends the store's watches, also if the caller has made the client.
func TestCloseEndsWatch(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, err := etcdstore.New(c.direct(t))
	if err != nil {
		t.Fatal(err)
	}
	began, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- s.Watch(t.Context(), "", func() {
			select {
			case began <- struct{}{}:
			default:
			}
		})
	}()
	receive(t, "the first call", began)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the end of the watch", ended); s.Classify(err) != driver.CodeClosed || errors.Is(err, context.Canceled) {
		t.Fatalf("Watch ended with %v", err)
	}
}
