package redis

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// fairWait is how long a fair lock waits for a dead waiter.
const fairWait = 2 * time.Second

func withFairWait(l layouts.Layout) []redisstore.Option {
	if l == layouts.RedissonFair {
		return []redisstore.Option{layouts.FairWait(fairWait)}
	}
	return nil
}

// openingLayout is opening for a layout.
func openingLayout(url string, l layouts.Layout, o ...redisstore.Option) func(string) (driver.Store, error) {
	o = append(o, withFairWait(l)...)
	return func(namespace string) (driver.Store, error) {
		return layouts.Open(context.Background(), url, l, append(o, redisstore.Namespace(namespace))...)
	}
}

// inLayout is urls for a layout.
func inLayout(scheme string, l layouts.Layout) opener {
	return func(address string) func(string) (driver.Store, error) { return openingLayout(scheme+address, l) }
}

// remnants lists the keys that Redisson itself would remove. Redisson keeps the token of a fenced lock and
// the number of a semaphore. Keys that expire within ten seconds are not listed either.
func remnants(t testing.TB, l layouts.Layout, rs ...*servers.Redis) (left []string) {
	for _, r := range rs {
		keys, _ := do(t, r, "KEYS", "*").([]any)
		for _, k := range keys {
			key := k.(string)
			life, _ := do(t, r, "PTTL", key).(int64)
			kind, _ := do(t, r, "TYPE", key).(string)
			switch {
			case life == -2:
			case l == layouts.RedissonPermits && kind == "zset" && do(t, r, "ZCOUNT", key, strconv.FormatInt(time.Now().UnixMilli(), 10), "+inf") == int64(0):
				// Redisson, too, removes expired permits only at the next request.
			case l == layouts.RedissonSemaphore && kind == "hash" && expired(t, r, key):
			case strings.HasPrefix(key, "holdfast:beside:") && life > 0 && (life <= 10_000 || life > clockSetBack.Milliseconds()):
			case l == layouts.RedissonFenced && strings.HasPrefix(key, "redisson_lock_token:"):
			case (l == layouts.RedissonSemaphore || l == layouts.RedissonPermits) && kind == "string":
			default:
				left = append(left, fmt.Sprintf("%s %q for %d ms", kind, key, life))
			}
		}
	}
	return left
}

// clockSetBack is less than the time by which the suite sets the clock back. A key then lives longer by that
// time.
const clockSetBack = 50 * time.Minute

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
func layoutSuite(t *testing.T, l layouts.Layout, cluster bool, all []*servers.Redis, through *servers.Proxy, open opener) {
	suite(t, all, through, nil, open, func(h *drivertest.Harness) {
		h.Leftovers = func(t testing.TB) []string { return remnants(t, l, all...) }
		h.EntryTTL = 0
		h.Corrupt = nil // List skips what other programs have written
		if l == layouts.RedissonFair {
			h.EntryTTL = fairWait
		}
		if l == layouts.Plain || l == layouts.RedissonSpin || cluster { // no client subscribes, or to sharded channels
			h.Forge = nil
		}
		if through == nil {
			h.Stop, h.Start = nil, nil
		} else {
			servertest.Clock(t, h, all...)
			h.Steps = steps(all[0], func(c redisstore.Client) (store, error) { return layouts.NewOver(c, l, withFairWait(l)...) })
		}
		h.SupportsName = func(name string) bool {
			whole := strings.HasPrefix(name, "{") && strings.HasSuffix(name, "}") && strings.Count(name, "{") == 1
			shares := l == layouts.RedissonFair || l == layouts.RedissonFenced || l == layouts.RedissonPermits
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
// on the other kinds of servers.
func layoutSuites() map[string]func(*testing.T) {
	all := map[string]func(*testing.T){}
	for _, l := range layouts.All() {
		all[string(l)] = func(t *testing.T) {
			r := start(t)
			p := proxy(t, r)
			layoutSuite(t, l, false, []*servers.Redis{r}, p, inLayout("redis://", l))
		}
	}
	clustered := func(l layouts.Layout, open opener) func(*testing.T) {
		return func(t *testing.T) {
			c := ownCluster(t, false)
			layoutSuite(t, l, true, c.Nodes, nil, open)
		}
	}
	for _, l := range []layouts.Layout{layouts.Plain, layouts.RedissonFair, layouts.RedissonReadWrite} {
		all["cluster "+string(l)] = clustered(l, inLayout("redis+cluster://", l))
	}
	all["sentinel"] = func(t *testing.T) {
		installed(t)
		s, err := servers.StartRedisSentinel(t.Context(), t.TempDir(), 1)
		check(t, err)
		t.Cleanup(s.Kill)
		// The replica acknowledges each grant.
		layoutSuite(t, layouts.Redisson, false, []*servers.Redis{s.Primary}, nil, func(string) func(string) (driver.Store, error) {
			return openingLayout("redis+sentinel://"+s.Sentinels[0].Address()+"/"+s.Name, layouts.Redisson,
				redisstore.WaitReplicas(1, 10*time.Second))
		})
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
		suites[string(layouts.RedissonReadWrite)](t)
		return
	}
	installed(t)
	self, err := os.Executable()
	check(t, err)
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
