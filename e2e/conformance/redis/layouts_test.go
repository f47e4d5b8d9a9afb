package redis

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/fallback"
	"github.com/holdfast-go/holdfast/redisstore"
)

var layouts = []redisstore.Layout{redisstore.Plain, redisstore.Redisson, redisstore.RedissonReadWrite, redisstore.RedissonFair, redisstore.RedissonFenced,
	redisstore.RedissonSpin, redisstore.RedissonSemaphore, redisstore.RedissonPermits}

// fairWait is for how long a fair lock waits for a waiter that has died.
const fairWait = 2 * time.Second

func withLayout(l redisstore.Layout) []redisstore.Option {
	o := []redisstore.Option{redisstore.WithLayout(l)}
	if l == redisstore.RedissonFair {
		o = append(o, redisstore.FairWait(fairWait))
	}
	return o
}

// remnants lists the keys that Redisson itself would not leave: all but the token of a fenced
// lock and the number of a semaphore, and what expires within ten seconds.
func remnants(t testing.TB, l redisstore.Layout, rs ...*servers.Redis) (left []string) {
	for _, r := range rs {
		keys, _ := do(t, r, "KEYS", "*").([]any)
		for _, k := range keys {
			key := k.(string)
			life, _ := do(t, r, "PTTL", key).(int64)
			kind, _ := do(t, r, "TYPE", key).(string)
			switch {
			case life == -2:
			case strings.HasPrefix(key, "holdfast:beside:") && life > 0 && life <= 10_000:
			case l == redisstore.RedissonFenced && strings.HasPrefix(key, "redisson_lock_token:"):
			case (l == redisstore.RedissonSemaphore || l == redisstore.RedissonPermits) && kind == "string":
			default:
				left = append(left, fmt.Sprintf("%s %q for %d ms", kind, key, life))
			}
		}
	}
	return left
}

// layoutSuite runs the suite over one layout.
func layoutSuite(t *testing.T, l redisstore.Layout, cluster bool, all []*servers.Redis, through *servers.Proxy, open func(namespace string) (driver.Store, error)) {
	h := drivertest.Harness{
		TTL: ttl,
		Open: func(t testing.TB, namespace string) driver.Store {
			s, err := open(namespace)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Leftovers: func(t testing.TB) []string { return append(remnants(t, l, all...), refreshes()...) },
	}
	if l == redisstore.RedissonFair {
		h.EntryLife = fairWait
	}
	h.OpenWithoutFallback = func(t testing.TB, namespace string) driver.Store { return fallback.Without(h.Open(t, namespace)) }
	h.Carries = func(name string) bool {
		whole := strings.HasPrefix(name, "{") && strings.HasSuffix(name, "}") && strings.Count(name, "{") == 1
		shares := l == redisstore.RedissonFair || l == redisstore.RedissonFenced || l == redisstore.RedissonPermits
		if !cluster {
			return !whole || !shares
		}
		tag, _, closed := strings.Cut(name[strings.Index(name, "{")+1:], "}")
		switch {
		case whole:
			return !shares
		case !strings.Contains(name, "{"):
			return !strings.Contains(name, "}")
		}
		return closed && tag != ""
	}
	if through != nil {
		h.Stop = func(t testing.TB) {
			for _, r := range all {
				if err := r.Pause(); err != nil {
					t.Fatal(err)
				}
			}
		}
		h.Start = func(t testing.TB) {
			for _, r := range all {
				if err := r.Cont(); err != nil {
					t.Fatal(err)
				}
			}
		}
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
	drivertest.Run(t, h)
}

func TestConformanceLayouts(t *testing.T) {
	for _, l := range layouts {
		t.Run(string(l), func(t *testing.T) {
			r := start(t)
			p := proxy(t, r)
			layoutSuite(t, l, false, []*servers.Redis{r}, p, overRueidis("redis://"+p.Address(), withLayout(l)...))
		})
	}
}
