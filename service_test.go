package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(bg)
	cancel()
	return ctx
}

// TestCloseWithAnEndedContextReleases: Close releases the locks. If the store is unreachable, Close returns soon.
func TestCloseWithAnEndedContextReleases(t *testing.T) {
	for _, reachable := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			l, other := newLocker(t, s), newLocker(t, s.Client())
			mustLock(t, l, "a")
			mustLock(t, l, "b")
			if !reachable {
				s.Script().Stop()
			}
			began := time.Now()
			err := l.Close(ended())
			switch took := time.Since(began); {
			case reachable && err != nil:
				t.Errorf("Close: %v", err)
			case reachable:
			case !errors.Is(err, holdfast.ErrUnavailable) || !errors.Is(err, context.Canceled):
				t.Errorf("Close: %v", err)
			case took == 0 || took > 2*time.Second:
				t.Errorf("Close took %s", took)
			}
			if !reachable {
				s.Script().Start()
				must.Report(t, l.Close(bg))
			}
			for _, name := range []string{"a", "b"} {
				wantFree(t, other, name)
			}
		})
	}
}

// TestLockIsHeldWhileItsHolderDrains: the caller's context has ended. The lock is held for
// longer than many TTLs, until Unlock.
func TestLockIsHeldWhileItsHolderDrains(t *testing.T) {
	for _, maker := range []func(context.Context, *holdfast.Locker, func(context.Context) error) error{
		func(ctx context.Context, l *holdfast.Locker, f func(context.Context) error) error {
			return l.Do(ctx, "a", f, holdfast.TTL(time.Second))
		},
		func(ctx context.Context, l *holdfast.Locker, f func(context.Context) error) error {
			return l.DoAll(ctx, []string{"0", "a"}, f, holdfast.TTL(time.Second))
		},
		func(ctx context.Context, l *holdfast.Locker, f func(context.Context) error) error {
			return l.Do(ctx, "a", func(ctx context.Context) error {
				return l.Do(ctx, "a", f, holdfast.Reentrant())
			}, holdfast.TTL(time.Second))
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			l, other := newLocker(t, s), newLocker(t, s.Client())
			ctx, cancel := context.WithCancel(bg)
			err := maker(ctx, l, func(ctx context.Context) error {
				token := holdfast.Token(ctx, "a")
				cancel()
				<-ctx.Done()
				time.Sleep(20 * time.Second)
				wantBusy(t, other, "a")
				if got := holdfast.Token(ctx, "a"); got != token || token == 0 {
					t.Errorf("token %d after the end of the context, %d before", got, token)
				}
				drain := holdfast.DrainContext(ctx)
				if drain.Err() != nil {
					t.Errorf("the drain context has ended: %v", context.Cause(drain))
				}
				return nil
			})
			must.Report(t, err)
			k, err := other.TryLock(bg, "a")
			if err != nil {
				t.Fatalf("not free after Do: %v", err)
			}
			unlock(t, k)
		})
	}
}

// TestDrainIsBounded: a lock that is never unlocked ends a TTL after the time for
// draining, and so does its drain context.
func TestDrainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		ctx, cancel := context.WithCancel(bg)
		k, err := l.Lock(ctx, "a", holdfast.TTL(3*time.Second), holdfast.Drain(30*time.Second))
		must.Succeed(t, err)
		drain := holdfast.DrainContext(k.Context())
		cancel()
		began := time.Now()
		unlock(t, mustLock(t, other, "a"))
		if got := time.Since(began); got < 30*time.Second || got > 34*time.Second {
			t.Errorf("granted to another Locker after %s", got)
		}
		if cause := context.Cause(drain); !errors.Is(cause, holdfast.ErrLost) {
			t.Errorf("the drain context: %v", cause)
		}
		if k.Remaining() != 0 || holdfast.Token(k.Context(), "a") != 0 {
			t.Errorf("%s remain, token %d", k.Remaining(), holdfast.Token(k.Context(), "a"))
		}
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
	})
}

// TestDrainContextEndsWithTheLock: a drain context ends in each of the ways in which a lock
// ends, with the same cause. That holds for a drain context made before or after that end.
func TestDrainContextEndsWithTheLock(t *testing.T) {
	type key struct{}
	for name, end := range map[string]struct {
		do    func(*holdfast.Locker, *holdfast.Lock, memstore.Script)
		cause error
	}{
		"Unlock":  {func(_ *holdfast.Locker, k *holdfast.Lock, _ memstore.Script) { _ = k.Unlock() }, holdfast.ErrReleased},
		"loss":    {func(_ *holdfast.Locker, _ *holdfast.Lock, s memstore.Script) { _ = s.Lose("b", driver.CauseTaken) }, holdfast.ErrLost},
		"outer":   {func(_ *holdfast.Locker, _ *holdfast.Lock, s memstore.Script) { _ = s.Lose("a", driver.CauseTaken) }, holdfast.ErrLost},
		"Close":   {func(l *holdfast.Locker, _ *holdfast.Lock, _ memstore.Script) { _ = l.Close(bg) }, holdfast.ErrLost},
		"MaxHold": {func(*holdfast.Locker, *holdfast.Lock, memstore.Script) { time.Sleep(time.Minute); synctest.Wait() }, holdfast.ErrHoldLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				l := newLocker(t, s)
				ctx, cancel := context.WithCancel(context.WithValue(bg, key{}, 7))
				outer, err := l.Lock(ctx, "a", holdfast.TTL(time.Hour))
				must.Succeed(t, err)
				k, err := l.Lock(outer.Context(), "b", holdfast.TTL(time.Hour), holdfast.MaxHold(time.Minute))
				must.Succeed(t, err)
				before := holdfast.DrainContext(context.WithValue(k.Context(), key{}, 8))
				cancel()
				if before.Err() != nil || before.Value(key{}) != 8 {
					t.Errorf("%v, value %v", context.Cause(before), before.Value(key{}))
				}
				derived, stop := context.WithCancel(before)
				defer stop()
				end.do(l, k, s.Script())
				for _, ctx := range []context.Context{before, holdfast.DrainContext(k.Context()), derived} {
					if ctx == derived {
						synctest.Wait()
					}
					if ctx.Err() == nil || !errors.Is(context.Cause(ctx), end.cause) {
						t.Errorf("cause %v, want %v", context.Cause(ctx), end.cause)
					}
				}
				if name == "MaxHold" && holdfast.Token(before, "b") != 0 {
					t.Error("a token after MaxHold")
				}
				_, _ = k.Unlock(), outer.Unlock()
			})
		})
	}
	if holdfast.DrainContext(bg) != bg {
		t.Error("a context without a lock has changed")
	}
}

// TestWaitContextLimitsTheWaitingAlone: the end of a WaitContext ends a wait, with or without
// an answer of the store. It does not end a lock that is held.
func TestWaitContextLimitsTheWaitingAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		why := errors.New("SIGTERM")
		wait, cancel := context.WithCancelCause(bg)
		k, err := l.Lock(bg, "a", holdfast.WaitContext(wait))
		must.Succeed(t, err)
		time.AfterFunc(time.Second, func() { cancel(why) })
		began := time.Now()
		_, err = other.Lock(bg, "a", holdfast.WaitContext(wait))
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, holdfast.ErrBusy) || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if _, err := other.Lock(bg, "b", holdfast.WaitContext(wait)); !errors.Is(err, context.Canceled) {
			t.Errorf("with a wait that has ended: %v", err)
		}
		if err := context.Cause(k.Context()); err != nil {
			t.Errorf("the end of the wait has ended the lock's context: %v", err)
		}
		deadline, stop := context.WithTimeout(bg, time.Second)
		defer stop()
		_, err = other.Lock(bg, "a", holdfast.WaitContext(deadline))
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !errors.Is(err, holdfast.ErrBusy) {
			t.Errorf("after a deadline: %v", err)
		}
		unlock(t, k)
	})
}

// TestCancelledCallerMatchesNeitherBusyNorUnavailable: the caller gets context.Canceled alone,
// whatever the store has answered.
func TestCancelledCallerMatchesNeitherBusyNorUnavailable(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *holdfast.Locker, memstore.Script){
		"held":          func(t *testing.T, l *holdfast.Locker, _ memstore.Script) { mustLock(t, l, "a") },
		"away":          func(_ *testing.T, _ *holdfast.Locker, s memstore.Script) { s.Stop() },
		"held and away": func(t *testing.T, l *holdfast.Locker, s memstore.Script) { mustLock(t, l, "a"); s.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				l := newLocker(t, s)
				prepare(t, newLocker(t, s.Client()), s.Script())
				defer s.Script().Start()
				ctx, cancel := context.WithCancel(bg)
				time.AfterFunc(time.Second, cancel)
				_, err := l.Lock(ctx, "a")
				if !errors.Is(err, context.Canceled) || errors.Is(err, holdfast.ErrBusy) || errors.Is(err, holdfast.ErrUnavailable) {
					t.Error(err)
				}
			})
		})
	}
}

// TestPingReportsWhetherTheStoreAnswers: each call of Ping sends a new request.
func TestPingReportsWhetherTheStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l := newLocker(t, s)
		for range 2 {
			must.Report(t, l.Ping(bg))
			s.Script().Stop()
			for what, err := range map[string]error{"Ping": l.Ping(bg), "Inspect": second(l.Inspect(bg, "a"))} {
				if !errors.Is(err, holdfast.ErrUnavailable) {
					t.Errorf("%s while the store is away: %v", what, err)
				}
			}
			s.Script().Start()
		}
		if err := l.Ping(ended()); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestOwnerIsNamedForPeople: an error names the holder's client, also if that client left out
// some fields.
func TestOwnerIsNamedForPeople(t *testing.T) {
	for want, o := range map[string]driver.Owner{
		"pid 7 on web-1":           {PID: 7, Host: "web-1"},
		"pid 7 on web-1 (blue)":    {PID: 7, Host: "web-1", Instance: "blue"},
		"another client":           {},
		"another client on web-1":  {Host: "web-1"},
		"another client (session)": {Instance: "session"},
	} {
		if got := o.Client(); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
		err := &holdfast.BusyError{Name: "n", Store: "s", Holders: []holdfast.Holder{{Owner: o}}}
		if got := `holdfast: "n" on s: busy, held by ` + want; err.Error() != got {
			t.Errorf("%q, want %q", err, got)
		}
	}
}

// TestInstanceAloneKeepsTheHost: the option Process with an empty host keeps the host's
// name.
func TestInstanceAloneKeepsTheHost(t *testing.T) {
	s := memstore.New()
	l, named := newLocker(t, s), newLocker(t, s.Client(), holdfast.Process("", "web-1"))
	k, j := mustLock(t, l, "a"), mustLock(t, named, "b")
	a, err := l.Inspect(bg, "a")
	must.Succeed(t, err)
	b, err := l.Inspect(bg, "b")
	must.Succeed(t, err)
	if a.Holders[0].Host == "" || a.Holders[0].Host != b.Holders[0].Host || b.Holders[0].Instance != "web-1" {
		t.Errorf("%+v and %+v", a.Holders, b.Holders)
	}
	unlock(t, k)
	unlock(t, j)
}
