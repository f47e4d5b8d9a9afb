// Package redlock compares quorum locks with those of redsync, on the same five servers
// and over the same client library.
package redlock

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

type contender struct {
	name string
	pair func(ctx context.Context, name string) error
}

func contenders(b *testing.B) []contender {
	_, err := servers.RedisInstalled()
	servertest.Started(b, err)
	var pools []redsyncredis.Pool
	var own []*redisstore.Store
	dir := b.TempDir()
	for i := range 5 {
		r, err := servers.StartRedis(context.Background(), filepath.Join(dir, fmt.Sprintf("redis-%d", i)))
		must.Succeed(b, err)
		b.Cleanup(r.Kill)
		c := goredis.NewClient(&goredis.Options{Addr: r.Address(), PoolSize: 64})
		b.Cleanup(func() { _ = c.Close() })
		pools = append(pools, redsyncgoredis.NewPool(c))
		s, err := redisstore.Open(b.Context(), "redis://"+r.Address())
		must.Succeed(b, err)
		own = append(own, s)
	}
	holdfastOver := func(name string, stores []*redisstore.Store) contender {
		s, err := redlock.New(stores, redlock.Fresh())
		must.Succeed(b, err)
		l, err := holdfast.New(s)
		must.Succeed(b, err)
		b.Cleanup(func() {
			_ = l.Close(context.Background())
			_ = s.Close(context.Background())
			for _, s := range stores {
				_ = s.Close(context.Background())
			}
		})
		return contender{name: name, pair: func(ctx context.Context, name string) error {
			k, err := l.Lock(ctx, name)
			if err != nil {
				return err
			}
			return k.Unlock()
		}}
	}
	rs := redsync.New(pools...)
	return []contender{
		holdfastOver("holdfast", own),
		{name: "redsync", pair: func(ctx context.Context, name string) error {
			m := rs.NewMutex("redsync:"+name, redsync.WithExpiry(30*time.Second))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			_, err := m.UnlockContext(ctx)
			return err
		}},
	}
}

// BenchmarkPair measures the median time of a lock and an unlock of a free name. The
// libraries take turns.
func BenchmarkPair(b *testing.B) {
	all := contenders(b)
	for b.Loop() {
		medians := map[string][]float64{}
		for round := range 4 {
			for _, c := range all {
				took := make([]time.Duration, 200)
				for i := range took {
					began := time.Now()
					if err := c.pair(b.Context(), "pair"); err != nil {
						b.Fatalf("%s: %v", c.name, err)
					}
					took[i] = time.Since(began)
				}
				slices.Sort(took)
				if round > 0 {
					medians[c.name] = append(medians[c.name], float64(took[len(took)/2])/1e3)
				}
			}
		}
		report(b, all, medians, "us p50")
	}
}

// BenchmarkHotName measures how often 16 goroutines lock and unlock one name. The libraries
// take turns.
func BenchmarkHotName(b *testing.B) {
	all := contenders(b)
	for b.Loop() {
		rates := map[string][]float64{}
		for round := range 4 {
			for _, c := range all {
				var pairs atomic.Int64
				ctx, cancel := context.WithTimeout(b.Context(), 2*time.Second)
				began := time.Now()
				var goroutines sync.WaitGroup
				for range 16 {
					goroutines.Go(func() {
						for ctx.Err() == nil {
							if c.pair(ctx, "hot") == nil {
								pairs.Add(1)
							}
						}
					})
				}
				goroutines.Wait()
				cancel()
				if round > 0 {
					rates[c.name] = append(rates[c.name], float64(pairs.Load())/time.Since(began).Seconds())
				}
			}
		}
		report(b, all, rates, "pairs/s")
	}
}

func report(b *testing.B, all []contender, values map[string][]float64, unit string) {
	for _, c := range all {
		v := values[c.name]
		slices.Sort(v)
		b.Logf("%-18s %10.0f %s (%.0f to %.0f)", c.name, v[len(v)/2], unit, v[0], v[len(v)-1])
	}
}
