package etcd

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/fallback"
)

// TestConformance runs the suite on one member of a current etcd.
func TestConformance(t *testing.T) {
	conform(t, start(t, servers.EtcdConfig{Heartbeat: quick}), time.Second)
}

func conform(t *testing.T, c *cluster, ttl time.Duration) {
	// The client uses one member: a connection that is opened later would look like a leak.
	client := (&cluster{members: c.members[:1]}).direct(t)
	c.leftovers(t, client) // connects the client: the goroutines of its connection are no leak
	open := func(t testing.TB, namespace string) driver.Store {
		s, err := etcdstore.Open(context.Background(), c.url(""), etcdstore.Namespace(namespace))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	drivertest.Run(t, drivertest.Harness{
		Open:                open,
		OpenWithoutFallback: func(t testing.TB, namespace string) driver.Store { return fallback.Without(open(t, namespace)) },
		Disconnect: func(t testing.TB) {
			for _, p := range c.proxies {
				p.Cut()
			}
			for _, p := range c.proxies {
				if err := p.Heal(); err != nil {
					t.Fatal(err)
				}
			}
		},
		TTL:     ttl,
		Session: true,
		Stop: func(testing.TB) {
			for _, p := range c.proxies {
				p.Cut()
			}
		},
		Start: func(t testing.TB) {
			for _, p := range c.proxies {
				if err := p.Heal(); err != nil {
					t.Fatal(err)
				}
			}
		},
		Delay: func(t testing.TB, d time.Duration) {
			for _, p := range c.proxies {
				if err := p.Delay(d); err != nil {
					t.Fatal(err)
				}
			}
		},
		LoseAnswer: func(t testing.TB, after int) {
			for _, p := range c.proxies {
				if err := p.LoseAnswer(after); err != nil {
					t.Fatal(err)
				}
			}
		},
		Leftovers: func(t testing.TB) []string { return c.leftovers(t, client) },
	})
}
