package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestWaiterOnHungConnectionIsGranted: one of two connections no longer answers and does not end, and the
// caller's client does not probe it. A waiter on it is still granted within the declared
// time.
func TestWaiterOnHungConnectionIsGranted(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	more, err := servers.NewProxy(c.members[0].Client)
	check(t, err)
	t.Cleanup(more.Close)
	proxies := append(c.proxies, more)
	holder := over(t, c.direct(t))
	for i := range proxies {
		m := &mute{}
		client := c.direct(t, m.install, func(cfg *clientv3.Config) { cfg.Endpoints = []string{proxies[0].Address(), proxies[1].Address()} })
		s, err := etcdstore.New(client)
		check(t, err)
		g := must(t, holder, request("n", 1, time.Minute))
		w := queue(t, s, request("n", 1, time.Minute))
		watching(t, m, "n/") // so the fault affects nothing else
		check(t, proxies[i].Silence())
		check(t, holder.Release(t.Context(), g, 0))
		g = w.Granted()
		check(t, proxies[i].Heal())
		release(t, s, g)
		check(t, s.Close(t.Context()))
		_ = client.Close()
	}
}

// TestAcquireWithoutDeadlineEndsOverASilentConnection: the caller's client does not probe
// its connection, and the caller's context has no deadline. A request on an existing lease,
// and one that needs a new lease, still end. Both are granted once the server can be
// reached.
func TestAcquireWithoutDeadlineEndsOverASilentConnection(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	s := over(t, c.direct(t, func(cfg *clientv3.Config) { cfg.Endpoints = []string{c.proxies[0].Address()} }))
	g := must(t, s, request("warm", 1, time.Hour))
	release(t, s, g)
	check(t, c.proxies[0].Silence())
	waiters := map[string]*requests.Waiter{}
	for what, r := range map[string]driver.Request{
		"of a lease that exists": request("old", 1, time.Hour),
		"of a new lease":         request("new", 1, 2*time.Hour),
		"that waits":             request("waits", 1, time.Hour),
	} {
		r.Wait = what == "that waits"
		waiters[what] = requests.Start(t, r, func() (driver.Grant, error) { return s.Acquire(context.Background(), r) })
	}
	for what, w := range waiters {
		if _, err := w.Failed(); errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request %s: %v", what, err)
		}
	}
	check(t, c.proxies[0].Heal())
	for what, w := range waiters {
		requests.Undone(t, s, w.Request)
		r := w.Request
		r.ID += "-again"
		eventually(t, "a request "+what+" is granted", func() bool { _, err := s.Acquire(t.Context(), r); return err == nil })
	}
}
