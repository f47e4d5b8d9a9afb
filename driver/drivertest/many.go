package drivertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast"
)

// ManyOverSlowLink lets one Locker take n locks over a link that delays every answer by delay,
// hold them for three TTLs, and release them. It requires that no lock is lost. If a request has no
// answer in time, ManyOverSlowLink tries again to take the lock. It is not part of Run, because each
// store has its own limit. It needs Harness.Delay.
func ManyOverSlowLink(t *testing.T, h Harness, n int, delay, ttl time.Duration) {
	t.Helper()
	ignore := []goleak.Option{goleak.IgnoreCurrent()}
	for _, f := range h.Background {
		ignore = append(ignore, goleak.IgnoreAnyFunction(f))
	}
	e := &env{suite: &suite{h: h}, T: t}
	t.Cleanup(func() {
		e.closeAll()
		if !t.Failed() {
			e.eventually("no goroutine of the store is left", func() bool { return goleak.Find(ignore...) == nil }, func() string { return fmt.Sprint(goleak.Find(ignore...)) })
		}
	})
	l := e.locker(holdfast.Defaults(holdfast.TTL(ttl)))
	end := e.delayed(e.h.Delay, delay)
	defer end()
	base := e.name()
	// goroutines is the number of goroutines that take and release the locks. Each takes one lock
	// after the other.
	const goroutines = 256
	locks := make([]*holdfast.Lock, n)
	each := func(do func(i int) error) {
		var all sync.WaitGroup
		next := make(chan int)
		for range goroutines {
			all.Go(func() {
				for i := range next {
					if err := do(i); err != nil {
						t.Errorf("lock %d of %d: %v", i, n, err)
					}
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		all.Wait()
	}
	each(func(i int) (err error) {
		locks[i], err = l.Lock(t.Context(), fmt.Sprintf("%s-%d", base, i))
		for tries := 1; errors.Is(err, holdfast.ErrUnavailable) && tries < 10; tries++ { // as on a busy machine
			locks[i], err = l.Lock(t.Context(), fmt.Sprintf("%s-%d", base, i))
		}
		return err
	})
	if t.Failed() {
		return
	}
	time.Sleep(3 * ttl) // the locks are held for that long
	lost, cause := 0, error(nil)
	for _, k := range locks {
		if k.Context().Err() != nil {
			lost, cause = lost+1, context.Cause(k.Context())
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d locks of a TTL of %s were lost over a link with a delay of %s; the cause of one: %v", lost, n, ttl, delay, cause)
	}
	each(func(i int) error {
		if err := locks[i].Unlock(); err != nil && locks[i].Context().Err() == nil {
			return err
		}
		return nil
	})
	end()
	e.closeLocker(l)
}
