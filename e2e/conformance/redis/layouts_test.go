package redis

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/redisstore"
)

// fairWait is how long a fair lock waits for a dead waiter.
const fairWait = 2 * time.Second

func withLayout(l redisstore.Layout) []redisstore.Option {
	o := []redisstore.Option{redisstore.WithLayout(l)}
	if l == redisstore.RedissonFair {
		o = append(o, redisstore.FairWait(fairWait))
	}
	return o
}

// remnants lists the keys that Redisson itself would remove. Redisson keeps the token of a fenced lock and
// the number of a semaphore. Keys that expire within ten seconds are not listed either.
func remnants(t testing.TB, l redisstore.Layout, rs ...*servers.Redis) (left []string) {
	for _, r := range rs {
		keys, _ := do(t, r, "KEYS", "*").([]any)
		for _, k := range keys {
			key := k.(string)
			life, _ := do(t, r, "PTTL", key).(int64)
			kind, _ := do(t, r, "TYPE", key).(string)
			switch {
			case life == -2:
			case l == redisstore.RedissonPermits && kind == "zset" && do(t, r, "ZCOUNT", key, strconv.FormatInt(time.Now().UnixMilli(), 10), "+inf") == int64(0):
				// Redisson, too, removes expired permits only at the next request.
			case l == redisstore.RedissonSemaphore && kind == "hash" && expired(t, r, key):
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

// expired reports whether a semaphore's record contains only permits of dead holders. The next request of
// a holdfast client returns them.
func expired(t testing.TB, r *servers.Redis, key string) bool {
	now, _ := do(t, r, "TIME").([]any)
	fields, _ := do(t, r, "HGETALL", key).([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		if !strings.HasPrefix(fields[i].(string), "e:") {
			continue
		}
		expires, err1 := strconv.ParseInt(fields[i+1].(string), 10, 64)
		seconds, err2 := strconv.ParseInt(now[0].(string), 10, 64)
		if err1 != nil || err2 != nil || expires > seconds*1000 {
			return false
		}
	}
	return true
}

// layoutSuite runs the suite over one layout.
func layoutSuite(t *testing.T, l redisstore.Layout, cluster bool, all []*servers.Redis, through *servers.Proxy, open func(namespace string) (driver.Store, error)) {
	suite(t, all, through, nil, open, func(h *drivertest.Harness) {
		h.Leftovers = func(t testing.TB) []string { return append(remnants(t, l, all...), refreshes()...) }
		h.EntryTTL = 0
		if l == redisstore.RedissonFair {
			h.EntryTTL = fairWait
		}
		if through == nil {
			h.Stop, h.Start = nil, nil
		}
		h.SupportsName = func(name string) bool {
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
	})
}

// layoutEnv names the suite of layoutSuites that this process runs.
const layoutEnv = "HOLDFAST_LAYOUT_SUITE"

// layoutSuites are the suites of TestConformanceLayouts: each layout on one server, and some
// over the other kinds of servers and clients.
func layoutSuites() map[string]func(*testing.T) {
	all := map[string]func(*testing.T){}
	for _, l := range redisstore.Layouts() {
		all[string(l)] = func(t *testing.T) {
			r := start(t)
			p := proxy(t, r)
			layoutSuite(t, l, false, []*servers.Redis{r}, p, overRueidis("redis://"+p.Address(), withLayout(l)...))
		}
	}
	clustered := func(l redisstore.Layout, open func(address string) func(string) (driver.Store, error)) func(*testing.T) {
		return func(t *testing.T) {
			installed(t)
			c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Kill)
			layoutSuite(t, l, true, c.Nodes, nil, open(c.Nodes[0].Address()))
		}
	}
	for _, l := range []redisstore.Layout{redisstore.Plain, redisstore.RedissonFair, redisstore.RedissonReadWrite} {
		all["cluster "+string(l)] = clustered(l, func(address string) func(string) (driver.Store, error) {
			return overRueidis("redis+cluster://"+address, withLayout(l)...)
		})
	}
	all["cluster goredis"] = clustered(redisstore.RedissonReadWrite, func(address string) func(string) (driver.Store, error) {
		return overGoredis(func() goredis.UniversalClient {
			return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{address}})
		}, redisstore.WithLayout(redisstore.RedissonReadWrite))
	})
	all["sentinel"] = func(t *testing.T) {
		installed(t)
		s, err := servers.StartRedisSentinel(t.Context(), t.TempDir(), 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Kill)
		// The replica acknowledges each grant.
		layoutSuite(t, redisstore.Redisson, false, []*servers.Redis{s.Primary}, nil, overRueidis("redis+sentinel://"+s.Sentinels[0].Address()+"/"+s.Name,
			redisstore.WithLayout(redisstore.Redisson), redisstore.WaitReplicas(1, 10*time.Second)))
	}
	return all
}

// TestConformanceLayouts runs the suite over every layout. A suite checks for leaks at its end, so each
// has a process of its own. They mostly wait, so several run side by side.
func TestConformanceLayouts(t *testing.T) {
	suites := layoutSuites()
	if which := os.Getenv(layoutEnv); which != "" {
		suites[which](t)
		return
	}
	if testing.Short() {
		suites[string(redisstore.RedissonReadWrite)](t)
		return
	}
	installed(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	places := make(chan struct{}, 4)
	var all sync.WaitGroup
	for which := range suites {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			cmd := exec.CommandContext(t.Context(), self, "-test.run", "^TestConformanceLayouts$", "-test.timeout", "6m")
			cmd.Env = append(os.Environ(), layoutEnv+"="+which)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", which, err, out)
			}
		})
	}
	all.Wait()
}
