package redis

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/fallback"
	"github.com/holdfast-go/holdfast/redisstore"
	adapter "github.com/holdfast-go/holdfast/redisstore/goredis"
)

// ttl is so long that a lease survives a renewal that is late on a busy machine.
const ttl = 700 * time.Millisecond

// suite runs the suite over a client library. The harness pauses all servers, and continues them. The
// function whole, if any, then waits until the servers serve again. The proxy, if any, delays and loses
// answers. Each of changes may change the harness.
func suite(t *testing.T, all []*servers.Redis, through *servers.Proxy, whole func(context.Context) error, open func(namespace string) (driver.Store, error), changes ...func(*drivertest.Harness)) {
	h := drivertest.Harness{
		TTL: ttl,
		Open: func(t testing.TB, namespace string) driver.Store {
			s, err := open(namespace)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Stop: func(t testing.TB) {
			for _, r := range all {
				if err := r.Pause(); err != nil {
					t.Fatal(err)
				}
			}
		},
		Start: func(t testing.TB) {
			for _, r := range all {
				if err := r.Cont(); err != nil {
					t.Fatal(err)
				}
			}
			if whole != nil {
				if err := whole(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		},
		Leftovers: func(t testing.TB) []string { return append(leftovers(t, all...), refreshes()...) },
		EntryTTL:  2500 * time.Millisecond, // more than three refresh intervals of a waiter near the head
	}
	h.OpenWithoutFallback = func(t testing.TB, namespace string) driver.Store { return fallback.Without(h.Open(t, namespace)) }
	if through != nil {
		h.Delay = func(t testing.TB, d time.Duration) {
			if err := through.Delay(d); err != nil {
				t.Fatal(err)
			}
		}
		h.Disconnect = func(t testing.TB) { disconnect(t, through) }
		h.LoseAnswer = func(t testing.TB, after int) {
			if err := through.LoseAnswer(after); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, change := range changes {
		change(&h)
	}
	drivertest.Run(t, h)
}

// disconnect ends every connection through a proxy.
func disconnect(t testing.TB, p *servers.Proxy) {
	p.Cut()
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
}

// proxy starts a proxy in front of a server.
func proxy(t testing.TB, r *servers.Redis) *servers.Proxy {
	t.Helper()
	p, err := servers.NewProxy(r.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// refreshes reports whether rueidis will refresh its view of the cluster. For that rueidis starts a
// goroutine, which sleeps for a second and does not notice the end of the client.
func refreshes() []string {
	b := make([]byte, 1<<20)
	if strings.Contains(string(b[:runtime.Stack(b, true)]), "rueidis.(*call).DelayDo") {
		return []string{"a goroutine of rueidis"}
	}
	return nil
}

func overRueidis(url string, o ...redisstore.Option) func(string) (driver.Store, error) {
	return func(namespace string) (driver.Store, error) {
		return redisstore.Open(context.Background(), url, append(o, redisstore.Namespace(namespace))...)
	}
}

// overGoredis gives each store a go-redis client of its own. Closing the store closes the client.
func overGoredis(client func() goredis.UniversalClient, o ...redisstore.Option) func(string) (driver.Store, error) {
	return func(namespace string) (driver.Store, error) {
		c := client()
		s, err := adapter.New(c, append(o, redisstore.Namespace(namespace))...)
		return &closing{Store: s, client: c}, err
	}
}

type closing struct {
	*redisstore.Store
	client goredis.UniversalClient
}

func (c *closing) Close(ctx context.Context) error {
	err := c.Store.Close(ctx)
	_ = c.client.Close()
	return err
}

func TestConformance(t *testing.T) {
	r := start(t)
	p := proxy(t, r)
	suite(t, []*servers.Redis{r}, p, nil, overRueidis("redis://"+p.Address()))
}

func TestConformanceGoredis(t *testing.T) {
	r := start(t)
	p := proxy(t, r)
	suite(t, []*servers.Redis{r}, p, nil, overGoredis(func() goredis.UniversalClient {
		return goredis.NewClient(&goredis.Options{Addr: p.Address()})
	}))
}

func TestConformanceReplicas(t *testing.T) {
	installed(t)
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	// The replica is not paused with the primary: a grant waits for its acknowledgement.
	p := proxy(t, g.Primary)
	suite(t, []*servers.Redis{g.Primary}, p, nil, overRueidis("redis://"+p.Address(), redisstore.WaitReplicas(1, 10*time.Second)))
}

func TestConformanceCluster(t *testing.T) {
	installed(t)
	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	// Nodes that were silent for about the failure timeout refuse requests for a while when they
	// continue.
	t.Run("rueidis", func(t *testing.T) {
		suite(t, c.Nodes, nil, c.Whole, overRueidis("redis+cluster://"+c.Nodes[0].Address()))
	})
	t.Run("goredis", func(t *testing.T) {
		suite(t, c.Nodes, nil, c.Whole, overGoredis(func() goredis.UniversalClient {
			return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{c.Nodes[0].Address()}})
		}))
	})
}

func TestConformanceSentinel(t *testing.T) {
	installed(t)
	s, err := servers.StartRedisSentinel(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	// This suite pauses and replaces no server. Failovers have tests of their own.
	suite := func(t *testing.T, open func(string) (driver.Store, error)) {
		drivertest.Run(t, drivertest.Harness{
			TTL: ttl,
			Open: func(t testing.TB, namespace string) driver.Store {
				st, err := open(namespace)
				if err != nil {
					t.Fatal(err)
				}
				return st
			},
			Leftovers: func(t testing.TB) []string { return leftovers(t, s.Primary) },
		})
	}
	t.Run("rueidis", func(t *testing.T) {
		suite(t, overRueidis("redis+sentinel://"+s.Sentinels[0].Address()+"/"+s.Name))
	})
	t.Run("goredis", func(t *testing.T) {
		suite(t, overGoredis(func() goredis.UniversalClient {
			return goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: s.Name, SentinelAddrs: []string{s.Sentinels[0].Address()}})
		}))
	})
}
