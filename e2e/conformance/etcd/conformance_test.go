package etcd

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// TestConformance runs the suite on one member of a current etcd.
func TestConformance(t *testing.T) {
	conform(t, start(t, servers.EtcdConfig{Heartbeat: quick}), time.Second)
}

func conform(t *testing.T, c *cluster, ttl time.Duration) {
	// Of one connection: one that is made late would look like a leak.
	client := (&cluster{members: c.members[:1]}).direct(t)
	c.leftovers(t, client) // connected: what it needs is no leak
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB, namespace string) driver.Store {
			s, err := etcdstore.Open(context.Background(), c.url(""), etcdstore.Namespace(namespace))
			if err != nil {
				t.Fatal(err)
			}
			return s
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
				err := p.Heal()
				if d > 0 {
					err = p.Delay(d)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		},
		Leftovers: func(t testing.TB) []string { return c.leftovers(t, client) },
		Background: []string{
			"github.com/Shopify/toxiproxy/v2.(*Proxy).server",
			"github.com/Shopify/toxiproxy/v2.(*Proxy).freeBlocker",
		},
	})
}
