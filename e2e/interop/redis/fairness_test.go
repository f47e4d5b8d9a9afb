package redis

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

var (
	shareFor  = flag.Duration("share-for", 10*time.Second, "how long TestNoClientStarves lets the clients compete")
	shareHold = flag.Duration("share-hold", 100*time.Millisecond, "how long each holder of TestNoClientStarves holds the lock")
	shareOwn  = flag.Int("share-own", 2, "the goroutines of holdfast in TestNoClientStarves, of four clients; 0 shows how the others share alone")
)

// tally counts the grants of one side.
type tally struct {
	mu      sync.Mutex
	grants  int
	longest time.Duration // a waiter waited
	names   int           // given by thread
}

// thread returns the name of another thread at each call.
func (s *tally) thread(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names++
	return fmt.Sprint(name, "/", s.names)
}

func (s *tally) add(grants int, waited time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants += grants
	s.longest = max(s.longest, waited)
}

// repeat acquires, holds and releases a lock again and again, until the time is over.
func (s *tally) repeat(end time.Time, acquire func() (release func() error, err error)) error {
	for time.Now().Before(end) {
		began := time.Now()
		release, err := acquire()
		if err != nil {
			return err
		}
		s.add(1, time.Since(began))
		time.Sleep(*shareHold)
		if err := release(); err != nil {
			return err
		}
	}
	return nil
}

// TestNoClientStarves lets two threads of another client and two goroutines of holdfast compete for one lock. No
// side gets less than a quarter of its share, which is half of the grants.
func TestNoClientStarves(t *testing.T) {
	d := start(t, "single")
	client := goredis.NewClient(&goredis.Options{Addr: d.address})
	t.Cleanup(func() { _ = client.Close() })
	rs, rl := redsync.New(pool.NewPool(client)), redislock.New(client)
	type side struct {
		name   string
		layout layouts.Layout
		option []holdfast.LockOption
		run    func(t *testing.T, name string, end time.Time, s *tally) error
	}
	sides := []side{
		{"redsync", layouts.Plain, nil, func(t *testing.T, name string, end time.Time, s *tally) error {
			return s.repeat(end, func() (func() error, error) {
				m := rs.NewMutex(name, redsync.WithExpiry(endless), redsync.WithTries(1000000))
				return func() error { _, err := m.UnlockContext(t.Context()); return err }, m.LockContext(t.Context())
			})
		}},
		{"redislock", layouts.Plain, nil, func(t *testing.T, name string, end time.Time, s *tally) error {
			return s.repeat(end, func() (func() error, error) {
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				k, err := rl.Obtain(ctx, name, endless, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
				return func() error { return k.Release(t.Context()) }, err
			})
		}},
	}
	java := d.java(t, 30*time.Second)
	for _, k := range kinds {
		sides = append(sides, side{k.java, k.layout, k.option, func(t *testing.T, name string, end time.Time, s *tally) error {
			thread := java.lock(k.java, name)
			thread.thread = s.thread(name)
			answer := thread.does("share", shareHold.Milliseconds(), time.Until(end).Milliseconds())
			var grants, longest int
			if _, err := fmt.Sscan(answer, &grants, &longest); err != nil {
				return err
			}
			s.add(grants, time.Duration(longest)*time.Millisecond)
			return nil
		}})
	}
	for _, o := range sides {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			name := "share-" + o.name
			if o.name == "semaphore" || o.name == "permits" {
				java.lock(o.name, name).does("set", 1)
			}
			l := d.operator(t, o.layout, holdfast.TTL(lease))
			var ours, theirs tally
			end := time.Now().Add(*shareFor)
			var all sync.WaitGroup
			for range 4 - *shareOwn {
				all.Go(func() {
					if err := o.run(t, name, end, &theirs); err != nil {
						t.Error(err)
					}
				})
			}
			for range *shareOwn {
				all.Go(func() {
					if err := ours.repeat(end, func() (func() error, error) {
						k, err := l.Lock(t.Context(), name, o.option...)
						return func() error { return k.Unlock() }, err
					}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			t.Logf("holdfast %d (longest wait %s), other client %d (%s)", ours.grants, ours.longest, theirs.grants, theirs.longest)
			if sum := ours.grants + theirs.grants; *shareOwn > 0 && 8*min(ours.grants, theirs.grants) < sum {
				t.Errorf("holdfast got %d grants and the other client %d, want at least an eighth for each", ours.grants, theirs.grants)
			}
		})
	}
}
