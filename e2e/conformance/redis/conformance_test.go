package redis

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore"
)

// ttl is so long that a lease survives a renewal that is late on a busy machine.
const ttl = 700 * time.Millisecond

// opener returns a function that opens a store of a namespace, at the address of a server or a proxy.
type opener func(address string) func(namespace string) (driver.Store, error)

// urls is the opener of stores with URLs that begin with a scheme.
func urls(scheme string, o ...redisstore.Option) opener {
	return func(address string) func(string) (driver.Store, error) { return opening(scheme+address, o...) }
}

// suite runs the suite. The harness pauses all servers, and continues them. The
// function whole, if any, then waits until the servers serve again. The proxy, if any, disturbs the
// traffic to the first server. Each of changes may change the harness.
func suite(t *testing.T, all []*servers.Redis, through *servers.Proxy, whole func(context.Context) error, open opener, changes ...func(*drivertest.Harness)) {
	at := func(t testing.TB, address, namespace string) driver.Store {
		s, err := open(address)(namespace)
		check(t, err)
		return s
	}
	address := all[0].Address()
	if through != nil {
		address = through.Address()
	}
	h := drivertest.Harness{
		TTL:  ttl,
		Open: func(t testing.TB, namespace string) driver.Store { return at(t, address, namespace) },
		Stop: func(t testing.TB) {
			for _, r := range all {
				check(t, r.Pause())
			}
		},
		Start: func(t testing.TB) {
			for _, r := range all {
				check(t, r.Cont())
			}
			if whole != nil {
				check(t, whole(t.Context()))
			}
		},
		Leftovers: func(t testing.TB) []string { return leftovers(t, all...) },
		EntryTTL:  5 * time.Second, // of a waiter near the head
		Forge:     servertest.Publishing(all...),
	}
	h.OpenWithoutFallback = func(t testing.TB, namespace string) driver.Store { return wakeup.WithoutFallback(h.Open(t, namespace)) }
	if through != nil {
		servertest.Disturb(&h, func(t testing.TB, addresses []string) driver.Store { return at(t, addresses[0], "") }, through)
	}
	if len(all) == 1 {
		h.Corrupt = corrupt(all[0])
	}
	for _, change := range changes {
		change(&h)
	}
	drivertest.Run(t, h)
}

// proxy starts a proxy in front of a server.
func proxy(t testing.TB, r *servers.Redis) *servers.Proxy {
	t.Helper()
	p, err := servers.NewProxy(r.Address())
	check(t, err)
	t.Cleanup(p.Close)
	return p
}

func opening(url string, o ...redisstore.Option) func(string) (driver.Store, error) {
	return func(namespace string) (driver.Store, error) {
		return redisstore.Open(context.Background(), url, append(o, redisstore.Namespace(namespace))...)
	}
}

func TestConformance(t *testing.T) {
	r := start(t)
	p := proxy(t, r)
	suite(t, []*servers.Redis{r}, p, nil, urls("redis://"), func(h *drivertest.Harness) {
		servertest.Clock(t, h, r)
		h.Steps = steps(r, overNative)
		h.Outside = func(t testing.TB, namespace string) driver.Store {
			return open(t, "redis://"+r.Address()+"/1", redisstore.Namespace(namespace))
		}
	})
}

func TestConformanceReplicas(t *testing.T) {
	g := replicas(t)
	// The replica is not paused with the primary: a grant waits for its acknowledgement.
	p := proxy(t, g.Primary)
	suite(t, []*servers.Redis{g.Primary}, p, nil, urls("redis://", redisstore.WaitReplicas(1, 10*time.Second)))
}

func TestConformanceCluster(t *testing.T) {
	c := ownCluster(t, false)
	// Nodes that were silent for about the failure timeout refuse requests for a while when they
	// continue.
	suite(t, c.Nodes, nil, c.Whole, urls("redis+cluster://"))
}

func TestConformanceSentinel(t *testing.T) {
	installed(t)
	s, err := servers.StartRedisSentinel(t.Context(), t.TempDir(), 1)
	check(t, err)
	t.Cleanup(s.Kill)
	// This suite pauses and replaces no server. Failovers have tests of their own.
	open := opening("redis+sentinel://" + s.Sentinels[0].Address() + "/" + s.Name)
	drivertest.Run(t, drivertest.Harness{
		TTL: ttl,
		Open: func(t testing.TB, namespace string) driver.Store {
			st, err := open(namespace)
			check(t, err)
			return st
		},
		Leftovers: func(t testing.TB) []string { return leftovers(t, s.Primary) },
	})
}
