package holdfast

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestLossStopsTheHoldLimit: a loss stops the timer of MaxHold.
func TestLossStopsTheHoldLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, err := New(s)
		must.Succeed(t, err)
		k, err := l.Lock(context.Background(), "a", MaxHold(time.Hour))
		must.Succeed(t, err)
		_ = s.Script().Lose("a", driver.CauseTaken)
		<-k.Context().Done()
		synctest.Wait()
		if k.limit.Stop() {
			t.Error("the timer of MaxHold still ran")
		}
		_ = k.Unlock()
		must.Report(t, l.Close(context.Background()))
	})
}

// TestJoinIsRefusedOnceTheLastUnlockHasBegun: a later join would release the lease of the
// next waiter.
func TestJoinIsRefusedOnceTheLastUnlockHasBegun(t *testing.T) {
	l, err := New(memstore.New(), LocalHandoff(4))
	must.Succeed(t, err)
	defer l.Close(context.Background())
	l.localContention.found("a", reserveAgain) // so that the grant reserves tokens
	k, err := l.Lock(t.Context(), "a")
	must.Succeed(t, err)
	h := k.holder
	next := make(chan *Lock, 1)
	go func() {
		k, err := l.Lock(context.Background(), "a")
		must.Report(t, err)
		next <- k
	}()
	waits := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		q := l.queues["a"]
		return q != nil && q.head != nil && q.state.pending()
	}
	for !waits() {
		time.Sleep(time.Millisecond)
	}
	l.apply(h.lease, &event{kind: unlocked, lock: k})
	if j := h.join(context.Background(), h.set); j != nil {
		t.Error("joined between the two halves of the last Unlock")
	}
	l.apply(h.lease, &event{kind: left, lock: k})
	n := <-next
	if n.Token() != k.Token()+1 || n.holder.lease != k.holder.lease {
		t.Error("not handed off")
	}
	if j := h.join(context.Background(), h.set); j != nil {
		t.Error("joined a lease that has another holder")
	}
	must.Report(t, n.Context().Err())
	must.Report(t, n.Unlock())
}

// TestRefusalFailsTheHeadAlone: the store refuses the request of the head, and the waiter behind it waits on.
func TestRefusalFailsTheHeadAlone(t *testing.T) {
	l, err := New(memstore.New())
	must.Succeed(t, err)
	q := &queue{name: "a", state: queueState{phase: requesting}, lease: l.newLease(t.Context(), "a", l.cfg.base)}
	first, second := &waiter{set: l.cfg.base, ready: make(chan struct{})}, &waiter{set: l.cfg.base, ready: make(chan struct{})}
	q.push(first)
	q.push(second)
	l.stepQueue(q, &queueEvent{kind: requestRefused, err: ErrRefused})
	if first.err != ErrRefused || first.queued || second.err != nil || q.head != second {
		t.Errorf("the head has the error %v, the waiter behind it %v", first.err, second.err)
	}
}

// TestErrDoesNotWaitForTheGoroutineThatFoundTheLoss: that goroutine has not yet ended the
// contexts, and Err reports the loss already.
func TestErrDoesNotWaitForTheGoroutineThatFoundTheLoss(t *testing.T) {
	l, err := New(memstore.New())
	must.Succeed(t, err)
	defer l.Close(context.Background())
	k, err := l.Lock(t.Context(), "a")
	must.Succeed(t, err)
	l.mu.Lock()
	var o outcome
	l.step(k.holder.lease, &event{kind: revoke, cause: CauseTaken}, &o)
	l.mu.Unlock()
	if k.Context().Err() == nil || k.Remaining() != 0 {
		t.Error("the lock looks valid")
	}
	select {
	case <-k.Context().Done():
	default:
		t.Error("Err reports the end, Done does not")
	}
	_ = l.perform(&o)
	if lost, ok := context.Cause(k.Context()).(*LostError); !ok || lost.Cause != CauseTaken {
		t.Error(context.Cause(k.Context()))
	}
	_ = k.Unlock()
}

// failing returns a store that answers a try with busy. It fails each waiting request, after the time takes, until up
// is set.
func failing(takes time.Duration) (s *Fake, up *atomic.Bool, requested <-chan struct{}) {
	up = new(atomic.Bool)
	waits := make(chan struct{})
	s = &Fake{Store: memstore.New(), OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		switch {
		case up.Load():
			return s.Store.Acquire(ctx, r)
		case !r.Wait:
			return driver.Grant{}, &driver.BusyError{}
		}
		select {
		case waits <- struct{}{}:
		default:
		}
		time.Sleep(takes)
		return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "it is down")
	}}
	return s, up, waits
}

// TestNewWaiterShortensTheBackoff: a queue backs off after many failures. A waiter that
// joins it is served within its own request timeout.
func TestNewWaiterShortensTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, up, requested := failing(0)
		l, err := New(s)
		must.Succeed(t, err)
		const ttl = 600 * time.Millisecond
		granted := make(chan time.Time, 2)
		lock := func() {
			k, err := l.Lock(context.Background(), "a", TTL(ttl))
			if err != nil {
				t.Error(err)
				return
			}
			granted <- time.Now()
			_ = k.Unlock()
		}
		go lock()
		synctest.Wait()
		time.Sleep(20 * time.Second) // the backoff has become long
		<-requested
		synctest.Wait()
		up.Store(true)
		came := time.Now()
		go lock()
		for range 2 {
			if d := (<-granted).Sub(came); d > ttl/3 {
				t.Errorf("granted after %s", d)
			}
		}
		must.Report(t, l.Close(context.Background()))
	})
}

// TestWaiterJoinsBeforeAFailure: a waiter that joins while a request is under way does not inherit the backoff of the
// failures before that request.
func TestWaiterJoinsBeforeAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = time.Second / 20
		s, up, requested := failing(takes)
		l, err := New(s)
		must.Succeed(t, err)
		defer l.Close(context.Background())
		var all sync.WaitGroup
		lock := func() {
			if k, err := l.Lock(context.Background(), "a", TTL(600*time.Millisecond)); err != nil {
				t.Error(err)
			} else {
				_ = k.Unlock()
			}
		}
		all.Go(lock)
		synctest.Wait()
		time.Sleep(20 * time.Second) // the backoff has become long
		<-requested
		came := time.Now()
		all.Go(lock)
		synctest.Wait()
		up.Store(true)
		all.Wait()
		if d := time.Since(came); d > 2*takes {
			t.Errorf("served after %s", d)
		}
	})
}

// TestCloseEndsInnerLocksFirst: the context of a lock that was taken under another one ends with its own cause.
func TestCloseEndsInnerLocksFirst(t *testing.T) {
	l, err := New(memstore.New())
	must.Succeed(t, err)
	outer, err := l.Lock(t.Context(), "outer")
	must.Succeed(t, err)
	passing, err := l.Lock(t.Context(), "passing")
	must.Succeed(t, err)
	inner, err := l.Lock(outer.Context(), "inner")
	must.Succeed(t, err)
	must.Succeed(t, passing.Unlock())
	must.Report(t, l.Close(t.Context()))
	var lost *LostError
	if cause := context.Cause(inner.Context()); !errors.As(cause, &lost) || lost.Name != "inner" {
		t.Errorf("the inner context ended because of %v", cause)
	}
}

// TestWaitContextKeepsItsError: the end of the other context does not change the error of a wait that has ended.
func TestWaitContextKeepsItsError(t *testing.T) {
	for _, callerFirst := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			caller, cancel := context.WithCancel(t.Context())
			wait, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			waiting, end := (&settings{waitCtx: wait}).waiting(caller)
			want := context.DeadlineExceeded
			if callerFirst {
				cancel()
				want = context.Canceled
			}
			<-waiting.Done()
			if first := waiting.Err(); first != want {
				t.Errorf("the wait ended with %v, want %v", first, want)
			}
			cancel()
			<-wait.Done()
			end()
			if last := waiting.Err(); last != want {
				t.Errorf("after the end of both contexts: %v, want %v", last, want)
			}
		})
	}
}

// TestRequestContextEndsByEachCause: a deadline, the caller, or the answer ends the context of a request to a
// server. The timer of the context starts only when something waits for that end.
func TestRequestContextEndsByEachCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := New(memstore.New())
		must.Succeed(t, err)
		defer l.Close(context.Background())
		type valueKey struct{}
		why := errors.New("why")
		for _, c := range []struct {
			name     string
			detached bool
			end      func(b *requestContext, cancel context.CancelCauseFunc)
			err      error
		}{
			{"no end", false, func(*requestContext, context.CancelCauseFunc) {}, nil},
			{"deadline", false, func(*requestContext, context.CancelCauseFunc) { time.Sleep(time.Second) }, context.DeadlineExceeded},
			{"caller", false, func(_ *requestContext, cancel context.CancelCauseFunc) { cancel(why) }, context.Canceled},
			{"caller of a detached request", true, func(_ *requestContext, cancel context.CancelCauseFunc) { cancel(why) }, nil},
			{"deadline of a detached request", true, func(*requestContext, context.CancelCauseFunc) { time.Sleep(time.Second) }, context.DeadlineExceeded},
			{"answer", false, func(b *requestContext, _ context.CancelCauseFunc) { b.end() }, context.Canceled},
		} {
			for _, waits := range []bool{false, true} { // whether something waits from the beginning
				ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), valueKey{}, "value"))
				var b requestContext
				began := time.Now()
				l.withTimeout(&b, ctx, c.detached, time.Second) // no guarantees yet: as for a server
				var inner context.Context
				if waits {
					var stop context.CancelFunc
					inner, stop = context.WithCancel(&b)
					defer stop()
				}
				if at, dated := b.Deadline(); !dated || !at.Equal(began.Add(time.Second)) {
					t.Errorf("%s: deadline %v %v", c.name, at, dated)
				}
				if b.Value(valueKey{}) != "value" {
					t.Errorf("%s: the value of the caller's context is lost", c.name)
				}
				if waits != (b.timer.Load() != nil) {
					t.Errorf("%s: the timer runs without need, or does not run", c.name)
				}
				c.end(&b, cancel)
				synctest.Wait()
				if !errors.Is(b.Err(), c.err) {
					t.Errorf("%s: %v, want %v", c.name, b.Err(), c.err)
				}
				if inner != nil && !errors.Is(inner.Err(), c.err) {
					t.Errorf("%s: the derived context: %v, want %v", c.name, inner.Err(), c.err)
				}
				if inner != nil && errors.Is(c.err, context.Canceled) && c.name == "caller" && context.Cause(inner) != why {
					t.Errorf("%s: the cause is %v", c.name, context.Cause(inner))
				}
				select {
				case <-b.Done():
					if c.err == nil {
						t.Errorf("%s: it has ended", c.name)
					}
				default:
					if c.err != nil {
						t.Errorf("%s: it has an error and is not done", c.name)
					}
				}
				b.end()
				cancel(nil)
				if end := b.Err(); c.err != nil && !errors.Is(end, c.err) {
					t.Errorf("%s: after the request %v, want %v", c.name, end, c.err)
				}
				if cause := context.Cause(&b); c.detached && cause != b.Err() {
					t.Errorf("%s: after the request the cause is %v, want %v", c.name, cause, b.Err())
				}
				if let := b.timer.Load() == noTimer; let != (b.Err() == context.Canceled) {
					t.Errorf("%s: the timer's context is kept without need, or not kept", c.name)
				}
			}
		}
	})
}

// TestReleaseStopsTheTimerOfTheConfirmation: after the release of an unconfirmed grant no timer runs.
func TestReleaseStopsTheTimerOfTheConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, err := New(&Fake{Store: s, OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			g, err := s.Acquire(ctx, r)
			g.Provisional = r.Wait && r.Provisional
			return g, err
		}}, LocalHandoff(0))
		must.Succeed(t, err)
		k, err := l.Lock(context.Background(), "a")
		must.Succeed(t, err)
		waited := make(chan error)
		go func() {
			k, err := l.Lock(context.Background(), "a")
			if err == nil {
				err = k.Unlock()
			}
			waited <- err
		}()
		synctest.Wait()
		_ = k.Unlock()
		must.Succeed(t, <-waited)
		if l.schedule.armed != 0 {
			t.Error("the timer of the schedule runs, and no lease needs it")
		}
		must.Report(t, l.Close(context.Background()))
	})
}
