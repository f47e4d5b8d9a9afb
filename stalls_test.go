package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/optimistic"
)

// stalling is a client of the memory store. One of its calls stalls: its request arrives late, or its answer
// does. If the caller does not wait for so long, the answer is lost, and a late request with it. After that call
// the client may be cut off for a while.
type stalling struct {
	driver.Store
	step  int64 // the number of the call that stalls
	late  bool  // the request arrives late
	stall time.Duration
	cut   bool // the client is cut off after the call that stalls
	calls atomic.Int64
	until atomic.Pointer[time.Time] // the client is cut off until then
}

// cutTime is how long a client is cut off.
const cutTime = 4 * stallTTL

// call reports whether the caller gets the answer.
func (s *stalling) call(ctx context.Context, f func()) bool {
	if s.calls.Add(1) != s.step {
		if until := s.until.Load(); until != nil && time.Now().Before(*until) {
			<-ctx.Done()
			return false
		}
		f()
		return true
	}
	if s.cut {
		defer func() {
			until := time.Now().Add(cutTime)
			s.until.Store(&until)
		}()
	}
	if !s.late {
		f()
	}
	select {
	case <-time.After(s.stall):
	case <-ctx.Done():
		return false
	}
	if s.late {
		f()
	}
	return true
}

var errStalled = driver.Errorf(driver.CodeUnknown, "no answer")

func (s *stalling) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	if !s.call(ctx, func() { g, err = s.Store.Acquire(ctx, r) }) {
		return driver.Grant{}, errStalled
	}
	return g, err
}

func (s *stalling) Undo(ctx context.Context, r driver.Request) (err error) {
	if !s.call(ctx, func() { err = s.Store.Undo(ctx, r) }) {
		return errStalled
	}
	return err
}

func (s *stalling) Release(ctx context.Context, g driver.Grant, keep time.Duration) (err error) {
	if !s.call(ctx, func() { err = s.Store.Release(ctx, g, keep) }) {
		return errStalled
	}
	return err
}

func (s *stalling) Renew(ctx context.Context, grants []driver.Grant) (answers []driver.Renewal) {
	if !s.call(ctx, func() { answers = s.Store.Renew(ctx, grants) }) {
		answers = make([]driver.Renewal, len(grants))
		for i := range answers {
			answers[i].Err = errStalled
		}
	}
	return answers
}

func (s *stalling) Get(ctx context.Context, key string) (data []byte, version string, err error) {
	if !s.call(ctx, func() { data, version, err = s.Store.(driver.Values).Get(ctx, key) }) {
		return nil, "", errStalled
	}
	return data, version, err
}

func (s *stalling) Put(ctx context.Context, key string, data []byte, version string) (next string, err error) {
	if !s.call(ctx, func() { next, err = s.Store.(driver.Values).Put(ctx, key, data, version) }) {
		return "", errStalled
	}
	return next, err
}

// eachStall runs a test on two clients in a bubble. It stalls each of the first calls of one of them in turn,
// for as long as a request may take, for longer, and for longer than the TTL.
func eachStall(t *testing.T, test func(t *testing.T, clients []*stalling)) {
	reached := false
	for _, stall := range []time.Duration{stallTTL / 5, stallTTL / 2, 4 * stallTTL} {
		for how := range 4 {
			late, cut := how&1 != 0, how&2 != 0
			for step := range int64(16) {
				t.Run(fmt.Sprintf("step %d, %s, late request %t, cut off %t", step+1, stall, late, cut), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := memstore.New()
						clients := []*stalling{{Store: s.Client(), step: step + 1, late: late, stall: stall, cut: cut}, {Store: s.Client()}}
						test(t, clients)
						reached = reached || clients[0].calls.Load() > step
					})
				})
			}
		}
	}
	if !reached {
		t.Error("no call stalled")
	}
}

// stallTTL is the TTL of the locks in these tests.
const stallTTL = 20 * time.Second

// alone counts the contexts that are alive.
type alone struct {
	sync.Mutex
	alive []context.Context
}

// enter reports an error if another context is alive.
func (a *alone) enter(t *testing.T, ctx context.Context) {
	a.Lock()
	defer a.Unlock()
	for _, other := range a.alive {
		if other.Err() == nil {
			t.Error("two holders work together")
		}
	}
	a.alive = append(a.alive, ctx)
}

func (a *alone) leave(ctx context.Context) {
	a.Lock()
	defer a.Unlock()
	for i, other := range a.alive {
		if other == ctx {
			a.alive = append(a.alive[:i], a.alive[i+1:]...)
			return
		}
	}
}

// TestLeadStandsStalls: whatever call of a replica stalls, no two replicas lead together, and a replica leads
// again soon after.
func TestLeadStandsStalls(t *testing.T) {
	eachStall(t, func(t *testing.T, clients []*stalling) {
		ctx, cancel := context.WithTimeout(bg, 20*time.Minute)
		defer cancel()
		var leading alone
		var last atomic.Int64 // when the last term began, after the start of the test
		began := time.Now()
		var all sync.WaitGroup
		for _, c := range clients {
			l := newLocker(t, c)
			all.Go(func() {
				for ctx.Err() == nil {
					_ = l.Lead(ctx, "leader", func(ctx context.Context) error {
						leading.enter(t, ctx)
						defer leading.leave(ctx)
						if gap := int64(time.Since(began)) - last.Swap(int64(time.Since(began))); gap > int64(12*stallTTL) {
							t.Errorf("no replica began to lead for %s", time.Duration(gap))
						}
						// Its work reads the clock of the context, which its end may follow.
						for end := time.Now().Add(2 * stallTTL); ctx.Err() == nil && time.Now().Before(end); {
							time.Sleep(100 * time.Millisecond)
						}
						return nil
					}, holdfast.TTL(stallTTL))
				}
			})
		}
		all.Wait()
	})
}

// TestEveryStandsStalls: whatever call of a replica stalls, no tick is served twice, and each tick is served or
// reported.
func TestEveryStandsStalls(t *testing.T) {
	eachStall(t, func(t *testing.T, clients []*stalling) {
		ctx, cancel := context.WithTimeout(bg, 30*time.Minute)
		defer cancel()
		c := newOutcomes()
		var all sync.WaitGroup
		for i, client := range clients {
			l := newLocker(t, client)
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // the stalling replica is the first at each tick
				for tick, err := range l.Every(ctx, "job", holdfast.Period(time.Minute), holdfast.TTL(stallTTL)) {
					c.Lock()
					switch {
					case err == nil:
						c.served[tick.Time]++
					case errors.Is(err, holdfast.ErrMissed):
						c.missed[tick.Time]++
					}
					c.Unlock()
				}
			})
		}
		first := holdfast.Period(time.Minute).Next(time.Now().UTC())
		all.Wait()
		both := 0 // ticks that were served and reported as missed
		for at := first.Add(time.Minute); at.Before(first.Add(15 * time.Minute)); at = at.Add(time.Minute) {
			n, missed := c.served[at], c.missed[at]
			if n > 1 || n+missed == 0 {
				t.Errorf("%s: served %d times, missed %d times", at.Format(time.TimeOnly), n, missed)
			}
			if n > 0 && missed > 0 {
				both++
			}
		}
		if both > 3 { // a stall and the time after it affect a few ticks
			t.Errorf("%d of 14 ticks were served and reported as missed", both)
		}
	})
}

// TestOnceStandsStalls: whatever call of a caller stalls, at most one call reports success, and at most one run
// is repeated.
func TestOnceStandsStalls(t *testing.T) {
	eachStall(t, func(t *testing.T, clients []*stalling) {
		var running alone
		var failed, done atomic.Int32
		var all sync.WaitGroup
		for _, c := range clients {
			l := newLocker(t, c)
			all.Go(func() {
				for range 100 {
					ctx, cancel := context.WithTimeout(bg, time.Minute)
					ran, err := optimistic.Once(ctx, l, c, "once", func(ctx context.Context) error {
						running.enter(t, ctx)
						defer running.leave(ctx)
						if done.Load() > 0 {
							t.Error("it ran again after a call has reported success")
						}
						time.Sleep(time.Second)
						return nil
					}, holdfast.TTL(stallTTL))
					cancel()
					if ran && err != nil {
						failed.Add(1)
					}
					if ran && err == nil {
						done.Add(1)
					}
					if err == nil {
						return
					}
				}
				t.Error("no call returns without an error")
			})
		}
		all.Wait()
		// One call stalls, so at most one run is not marked.
		if n, unmarked := done.Load(), failed.Load(); n > 1 || unmarked > 1 || n+unmarked == 0 {
			t.Errorf("%d calls ran it with success, %d with an error", n, unmarked)
		}
	})
}
