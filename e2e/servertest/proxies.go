package servertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// Disturb lets the suite delay, lose and end what passes the proxies. They also stop a store that h does not stop
// otherwise. OpenLate uses proxies of its own
// for each client, before the same servers: open opens a client at their addresses, which have the order
// of the given proxies.
func Disturb(h *drivertest.Harness, open func(t testing.TB, addresses []string) driver.Store, proxies ...*servers.Proxy) {
	each := func(change func(*servers.Proxy) error) func(testing.TB) {
		return func(t testing.TB) {
			t.Helper()
			for _, p := range proxies {
				if err := change(p); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	cut := func(p *servers.Proxy) error { p.Cut(); return nil }
	if h.Stop == nil {
		h.Stop, h.Start = each(cut), each((*servers.Proxy).Heal)
	}
	h.Delay = func(t testing.TB, d time.Duration) {
		each(func(p *servers.Proxy) error { return p.Delay(d) })(t)
	}
	h.DelayRequests = func(t testing.TB, d time.Duration) {
		each(func(p *servers.Proxy) error { return p.DelayRequests(d) })(t)
	}
	h.Disconnect = func(t testing.TB) {
		each(cut)(t)
		each((*servers.Proxy).Heal)(t)
	}
	h.OpenLate = func(t testing.TB) (driver.Store, drivertest.Late) {
		own := make(late, len(proxies))
		addresses := make([]string, len(proxies))
		for i, p := range proxies {
			var err error
			if own[i], err = servers.NewProxy(p.Address()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(own[i].Close)
			addresses[i] = own[i].Address()
		}
		return open(t, addresses), own
	}
}

// late are the proxies of one client.
type late []*servers.Proxy

func (l late) Hold() {
	for _, p := range l {
		p.Hold()
	}
}

func (l late) Held() (n int) {
	for _, p := range l {
		n += p.Held()
	}
	return n
}

func (l late) LoseAnswer(after int) {
	for _, p := range l {
		_ = p.LoseAnswer(after) // only a proxy that is cut can fail
	}
}

func (l late) Deliver(timeout time.Duration) {
	for _, p := range l {
		p.Deliver(timeout)
	}
}

// Clocked is a server whose clock can be set.
type Clocked interface {
	FakeClock(context.Context) error
	SetClock(ahead time.Duration) error
}

// Clock restarts servers with a clock that the suite can set. It changes nothing if a server does not start with
// such a clock.
func Clock[S Clocked](t testing.TB, h *drivertest.Harness, all ...S) {
	t.Helper()
	for _, s := range all {
		if err := s.FakeClock(t.Context()); errors.Is(err, servers.ErrNotInstalled) {
			t.Log(err)
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	h.SetClock = func(t testing.TB, ahead time.Duration) {
		t.Helper()
		for _, s := range all {
			if err := s.SetClock(ahead); err != nil {
				t.Fatal(err)
			}
		}
	}
}
