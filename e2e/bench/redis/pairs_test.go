package redis

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	adapter "github.com/holdfast-go/holdfast/redisstore/goredis"
)

func start(b testing.TB) *servers.Redis {
	b.Helper()
	if _, err := servers.RedisInstalled(); err != nil {
		if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
			b.Fatal(err)
		}
		b.Skip(err)
	}
	r, err := servers.StartRedis(context.Background(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.Kill)
	return r
}

// contender takes and releases a lock once.
type contender struct {
	name string
	pair func(ctx context.Context, name string) error
}

func contenders(b testing.TB, address string) []contender {
	fail := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	l, err := holdfast.Open(context.Background(), "redis://"+address)
	fail(err)
	b.Cleanup(func() { _ = l.Close(context.Background()) })

	g := goredis.NewClient(&goredis.Options{Addr: address, PoolSize: 64})
	b.Cleanup(func() { _ = g.Close() })
	rs := redsync.New(redsyncgoredis.NewPool(g))
	rl := redislock.New(g)

	u, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true, MaxFlushDelay: 20 * time.Microsecond})
	fail(err)
	b.Cleanup(u.Close)
	rsu := redsync.New(pool{u})

	rul, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{address}, MaxFlushDelay: 20 * time.Microsecond}, KeyMajority: 1, KeyValidity: 30 * time.Second, NoLoopTracking: true,
	})
	fail(err)
	b.Cleanup(rul.Close)

	over, err := adapter.New(g)
	fail(err)
	lg, err := holdfast.New(over)
	fail(err)
	b.Cleanup(func() {
		_ = lg.Close(context.Background())
		_ = over.Close(context.Background())
	})
	lockPair := func(l *holdfast.Locker) func(context.Context, string) error {
		return func(ctx context.Context, name string) error {
			k, err := l.Lock(ctx, name)
			if err != nil {
				return err
			}
			return k.Unlock()
		}
	}
	mutexPair := func(rs *redsync.Redsync) func(context.Context, string) error {
		return func(ctx context.Context, name string) error {
			m := rs.NewMutex("redsync:"+name, redsync.WithExpiry(30*time.Second))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			_, err := m.UnlockContext(ctx)
			return err
		}
	}
	return []contender{
		{"holdfast", lockPair(l)},
		{"holdfast/goredis", lockPair(lg)},
		{"redsync/goredis", mutexPair(rs)},
		{"redsync/rueidis", mutexPair(rsu)},
		{"redislock", func(ctx context.Context, name string) error {
			k, err := rl.Obtain(ctx, "redislock:"+name, 30*time.Second, nil)
			if err != nil {
				return err
			}
			return k.Release(ctx)
		}},
		{"rueidislock", func(ctx context.Context, name string) error {
			_, release, err := rul.WithContext(ctx, name)
			if err != nil {
				return err
			}
			release()
			return nil
		}},
	}
}

const (
	rounds = 5
	turn   = time.Second
)

// BenchmarkFreeNames: 64 goroutines, each with a name of its own.
func BenchmarkFreeNames(b *testing.B) {
	r := start(b)
	all := contenders(b, r.Address())
	for b.Loop() {
		rates := map[string][]float64{}
		for round := range rounds + 1 {
			for _, c := range all {
				rate := measure(b, c, 64, turn)
				if round > 0 { // the first is to warm up
					rates[c.name] = append(rates[c.name], rate)
				}
			}
		}
		report(b, "pairs/s", all, rates)
	}
}

func measure(b *testing.B, c contender, goroutines int, turn time.Duration) float64 {
	// Peers that wait for a notification may wait beyond their turn when one is
	// missing: what they have done by then is what counts.
	ctx, cancel := context.WithTimeout(context.Background(), turn+100*time.Millisecond)
	defer cancel()
	var pairs atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for i := range goroutines {
		name := fmt.Sprintf("free-%d", i)
		all.Go(func() {
			n := int64(0)
			for time.Since(began) < turn {
				if err := c.pair(ctx, name); err != nil {
					if ctx.Err() == nil {
						b.Errorf("%s: %v", c.name, err)
					}
					break
				}
				n++
			}
			pairs.Add(n)
		})
	}
	all.Wait()
	return float64(pairs.Load()) / time.Since(began).Seconds()
}

// report tells the median of each contender, the spread, and the ratio of the
// first to it.
func report(b *testing.B, unit string, all []contender, rates map[string][]float64) {
	first := 0.0
	for i, c := range all {
		r := rates[c.name]
		slices.Sort(r)
		median := r[len(r)/2]
		if i == 0 {
			first = median
		}
		b.Logf("%-16s %10.0f %s (%.0f to %.0f)   ratio %.2f", c.name, median, unit, r[0], r[len(r)-1], first/median)
		b.ReportMetric(median, strings.NewReplacer("/", "-", " ", "-").Replace(c.name)+"-"+unit)
	}
}

// BenchmarkSerial: one goroutine, one name, beside a bare SET and DEL by the same
// kind of client.
//
// The first of them runs on a context that can be cancelled, as that of a request
// has: rueidis then goes through its pipeline. The second runs on one that cannot,
// on a client of its own: rueidis then writes and reads on the caller's goroutine
// while nobody else asks, which is the least that this client can take.
func BenchmarkSerial(b *testing.B) {
	r := start(b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := holdfast.Open(ctx, "redis://"+r.Address())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close(context.Background()) })
	bare, err := redisstore.BareClient("redis://" + r.Address())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(bare.Close)
	direct, err := redisstore.BareClient("redis://" + r.Address())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(direct.Close)
	all := []contender{
		{"holdfast", func(ctx context.Context, name string) error {
			k, err := l.Lock(ctx, name)
			if err != nil {
				return err
			}
			return k.Unlock()
		}},
		{"SET+DEL", func(ctx context.Context, name string) error {
			if err := bare.Do(ctx, bare.B().Set().Key(name).Value("v").Nx().PxMilliseconds(30000).Build()).Error(); err != nil {
				return err
			}
			return bare.Do(ctx, bare.B().Del().Key(name).Build()).Error()
		}},
		{"SET+DEL direct", func(_ context.Context, name string) error {
			ctx := context.Background()
			if err := direct.Do(ctx, direct.B().Set().Key(name).Value("v").Nx().PxMilliseconds(30000).Build()).Error(); err != nil {
				return err
			}
			return direct.Do(ctx, direct.B().Del().Key(name).Build()).Error()
		}},
	}
	for b.Loop() {
		p50 := map[string][]float64{}
		for round := range 2*rounds + 1 {
			for _, c := range all {
				took := make([]time.Duration, 4000)
				for i := range took {
					began := time.Now()
					if err := c.pair(ctx, "serial"); err != nil {
						b.Fatal(err)
					}
					took[i] = time.Since(began)
				}
				slices.Sort(took)
				if round > 0 {
					p50[c.name] = append(p50[c.name], float64(took[len(took)/2])/1e3)
				}
			}
		}
		report(b, "us", all, p50)
	}
}
