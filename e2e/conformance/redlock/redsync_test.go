package redlock

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// TestSharedWithRedsync contends with redsync for the same names on the same servers.
func TestSharedWithRedsync(t *testing.T) {
	f := start(t, 5, options{redlock.Redsync()})
	var pools []redsyncredis.Pool
	for _, r := range f.all {
		c := goredis.NewClient(&goredis.Options{Addr: r.Address()})
		t.Cleanup(func() { _ = c.Close() })
		pools = append(pools, redsyncgoredis.NewPool(c))
	}
	rs := redsync.New(pools...)
	peer := func(name string) *redsync.Mutex { return rs.NewMutex(name, redsync.WithExpiry(time.Minute)) }

	t.Run("each respects the other", func(t *testing.T) {
		s := f.open(t)
		m := peer("one")
		until(t, "redsync has the lock", func() bool { return m.TryLock() == nil })
		if _, err := acquire(t, s, "one", time.Minute); s.Classify(err) != driver.CodeBusy {
			t.Errorf("beside redsync: %v, want busy", err)
		}
		if ok, err := m.Unlock(); !ok {
			t.Fatal(err)
		}
		g := must(t, s, "one", time.Minute)
		if err := peer("one").TryLock(); err == nil {
			t.Error("redsync has locked a name that is held")
		}
		release(t, s, g)
	})
	t.Run("exact sums", func(t *testing.T) {
		const workers, each = 4, 15
		sums := map[string]*atomic.Int64{"a": {}, "b": {}}
		// If two holders run this at the same time, one of the steps is lost.
		step := func(name string) {
			n := sums[name].Load()
			runtime.Gosched()
			sums[name].Store(n + 1)
		}
		var all sync.WaitGroup
		for w := range workers {
			l, err := holdfast.New(f.make(t), holdfast.Defaults(holdfast.TTL(30*time.Second)))
			check(t, err)
			all.Go(func() {
				defer l.Close(context.Background())
				for i := range each {
					name := string(rune('a' + (w+i)%2))
					for add := false; !add; {
						err := l.Do(t.Context(), name, func(context.Context) error { step(name); add = true; return nil })
						if err != nil && add {
							t.Errorf("holdfast: %v", err)
						}
					}
				}
			})
			all.Go(func() {
				for i := range each {
					name := string(rune('a' + (w+i)%2))
					m := peer(name)
					until(t, "redsync has the lock", func() bool { return m.LockContext(t.Context()) == nil })
					step(name)
					if ok, err := m.Unlock(); !ok {
						t.Errorf("redsync: %v", err)
					}
				}
			})
		}
		all.Wait()
		if got := sums["a"].Load() + sums["b"].Load(); got != 2*workers*each {
			t.Errorf("the sums are %d and %d, together %d, want %d", sums["a"].Load(), sums["b"].Load(), got, 2*workers*each)
		}
	})
}
