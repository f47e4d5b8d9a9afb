package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

func start(b testing.TB) *servers.Redis {
	b.Helper()
	_, err := servers.RedisInstalled()
	servertest.Started(b, err)
	r, err := servers.StartRedis(context.Background(), b.TempDir())
	must.Succeed(b, err)
	b.Cleanup(r.Kill)
	return r
}

// BenchmarkServerTime measures the server's own time for each step from one holder of a
// contended name to the next. 16 Lockers, each with a connection of its own, take one name
// again and again without a local handoff. The time of a script is the median in the
// server's slow log, so other work on the machine counts little.
func BenchmarkServerTime(b *testing.B) {
	r := start(b)
	ctx := context.Background()
	c := goredis.NewClient(&goredis.Options{Addr: r.Address()})
	defer func() { _ = c.Close() }()
	for _, setting := range [][2]string{{"slowlog-log-slower-than", "0"}, {"slowlog-max-len", "20000"}} {
		must.Succeed(b, c.ConfigSet(ctx, setting[0], setting[1]).Err())
	}
	for b.Loop() {
		must.Succeed(b, c.SlowLogReset(ctx).Err())
		before := commandStats(b, c)
		holds := 0
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 16 {
			l, err := holdfast.Open(ctx, "redis://"+r.Address(), holdfast.LocalHandoff(0))
			must.Succeed(b, err)
			defer func() { _ = l.Close(ctx) }()
			all.Go(func() {
				for began := time.Now(); time.Since(began) < time.Second; {
					k, err := l.Lock(ctx, "hot")
					if err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					holds++
					mu.Unlock()
					if err := k.Unlock(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		after := commandStats(b, c)
		took := map[string][]float64{}
		log, err := c.SlowLogGet(ctx, -1).Result()
		must.Succeed(b, err)
		for _, call := range log {
			if step := stepOf(call.Args); step != "" {
				took[step] = append(took[step], float64(call.Duration.Microseconds()))
			}
		}
		sum := 0.0
		for _, step := range []string{"try", "queue entry", "release", "confirmation"} {
			x := took[step]
			if len(x) == 0 {
				continue
			}
			slices.Sort(x)
			b.Logf("%-13s %6d calls, p10 %3.0f us, p50 %3.0f us, p90 %3.0f us", step, len(x), x[len(x)/10], x[len(x)/2], x[len(x)*9/10])
			if step != "try" {
				sum += x[len(x)/2]
			}
		}
		b.Logf("%d holds; a handoff is %.0f us of scripts by their medians, %.0f us by the mean of all script calls", holds, sum, (after-before)/float64(holds))
		b.ReportMetric(sum, "server-us/handoff")
	}
}

// stepOf returns the step that a script call makes. It finds the step by the arguments:
// EVALSHA SHA KEYS KEY... ARG...
func stepOf(args []string) string {
	var keys int
	if len(args) < 4 || !strings.EqualFold(args[0], "evalsha") {
		return ""
	}
	if _, err := fmt.Sscan(args[2], &keys); err != nil || len(args) < 4+keys {
		return ""
	}
	argv := args[3+keys:]
	switch {
	case strings.HasPrefix(argv[0], " ") && len(argv) == 4 && argv[3] == "1":
		return "confirmation"
	case strings.HasPrefix(argv[0], " "):
		return "release"
	case len(argv) < 8:
		return "try"
	case argv[6] == "0":
		return "queue entry"
	}
	return "confirmation"
}

// commandStats returns the microseconds that the server has spent in script calls.
func commandStats(b *testing.B, c *goredis.Client) float64 {
	b.Helper()
	text, err := c.Info(context.Background(), "commandstats").Result()
	must.Succeed(b, err)
	_, line, _ := strings.Cut(text, "cmdstat_evalsha:")
	var calls, us float64
	_, _ = fmt.Sscanf(line, "calls=%f,usec=%f", &calls, &us)
	return us
}
