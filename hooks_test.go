package holdfast_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

type traceKey struct{}

// recorder records the events that it gets.
type recorder struct {
	mu     sync.Mutex
	events []holdfast.Event
}

func (r *recorder) Start(ctx context.Context, e holdfast.Event) context.Context {
	r.add(e)
	return context.WithValue(ctx, traceKey{}, "trace")
}

func (r *recorder) Event(ctx context.Context, e holdfast.Event) {
	if ctx.Value(traceKey{}) != "trace" && e.Kind != holdfast.EventExposed {
		e.Kind = "event without the context of its start"
	}
	r.add(e)
}

func (r *recorder) add(e holdfast.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) kinds() []holdfast.EventKind {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds []holdfast.EventKind
	for _, e := range r.events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func TestHooksGetTheEventsOfALock(t *testing.T) {
	for name, tc := range map[string]struct {
		do   func(*testing.T, *holdfast.Locker, *memstore.Store)
		want []holdfast.EventKind
	}{
		"plain": {func(t *testing.T, l *holdfast.Locker, _ *memstore.Store) {
			unlock(t, mustLock(t, l, "a"))
		}, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventAcquired, holdfast.EventReleased}},
		"busy": {func(t *testing.T, l *holdfast.Locker, s *memstore.Store) {
			other := newLocker(t, s.Client())
			k := mustLock(t, other, "a")
			wantBusy(t, l, "a")
			_, _ = l.Lock(bg, "a", holdfast.Wait(time.Second))
			unlock(t, k)
		}, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventFailed, holdfast.EventAcquiring, holdfast.EventQueued, holdfast.EventFailed}},
		"renewed": {func(t *testing.T, l *holdfast.Locker, s *memstore.Store) {
			k := mustLock(t, l, "a", holdfast.TTL(3*time.Second))
			s.Script().FailRenewals("a", 1, nil)
			time.Sleep(1200 * time.Millisecond)
			unlock(t, k)
		}, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventAcquired, holdfast.EventRenewFailed, holdfast.EventRenewed, holdfast.EventReleased}},
		"lost": {func(t *testing.T, l *holdfast.Locker, s *memstore.Store) {
			k := mustLock(t, l, "a")
			_ = s.Script().Lose("a", driver.CauseTaken)
			<-k.Context().Done()
			synctest.Wait()
			_ = k.Unlock()
		}, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventAcquired, holdfast.EventLost}},
		"hold limit": {func(t *testing.T, l *holdfast.Locker, s *memstore.Store) {
			k := mustLock(t, l, "a", holdfast.MaxHold(time.Second))
			<-k.Context().Done()
			synctest.Wait()
			unlock(t, k)
		}, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventAcquired, holdfast.EventHoldLimit, holdfast.EventReleased}},
		"closed": {func(t *testing.T, l *holdfast.Locker, _ *memstore.Store) {
			mustLock(t, l, "a", holdfast.MaxHold(10*time.Second))
		}, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventAcquired, holdfast.EventLost}},
		"unconfirmed": {func(t *testing.T, l *holdfast.Locker, s *memstore.Store) {
			k := mustLock(t, l, "a")
			s.Script().FailReleases("a", 2, driver.Errorf(driver.CodeUnknown, "cut"))
			_ = k.Unlock()
			time.Sleep(10 * time.Second)
		}, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventAcquired, holdfast.EventUnconfirmed, holdfast.EventUnconfirmed, holdfast.EventReleased}},
		"undone": {func(t *testing.T, l *holdfast.Locker, s *memstore.Store) {
			s.Script().LoseAcquireAnswer("a", memstore.Applied, 0)
			s.Script().FailUndos("a", 1, driver.Errorf(driver.CodeUnavailable, "down"))
			_, _ = l.TryLock(bg, "a")
			time.Sleep(10 * time.Second)
		}, []holdfast.EventKind{holdfast.EventAcquiring, holdfast.EventFailed, holdfast.EventUndoFailed}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			r := &recorder{}
			l := newLocker(t, s, holdfast.WithHooks(nil), holdfast.WithHooks(r))
			tc.do(t, l, s)
			must.Report(t, l.Close(bg))
			n := len(r.kinds())
			time.Sleep(time.Minute)
			got := r.kinds()
			if len(got) != n {
				t.Errorf("%s: after Close has returned: %q", name, got[n:])
			}
			if name == "undone" { // the roll back begins before the failure is reported
				slices.Sort(got)
				slices.Sort(tc.want)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s: %q, want %q", name, got, tc.want)
			}
			for _, e := range r.events {
				if e.Name != "a" || e.Store != "memory" || e.At.IsZero() || e.Kind != holdfast.EventAcquiring && e.StoreKind != "memory" {
					t.Errorf("%s: %+v", name, e)
				}
			}
		})
	}
}

// exposed is a store whose password is exposed.
type exposed struct{ driver.Store }

func (exposed) Exposed() string { return "the password is not protected" }

// TestExposedPasswordIsReportedOnce: hooks get the warning before any other event. A log has it once a store, and
// the guarantees begin their notes with it.
func TestExposedPasswordIsReportedOnce(t *testing.T) {
	var log strings.Builder
	logged := holdfast.LogHooks(slog.New(slog.NewTextHandler(&log, nil)))
	for range 2 {
		r := &recorder{}
		l := newLocker(t, exposed{memstore.New()}, holdfast.WithHooks(r), holdfast.WithHooks(logged))
		unlock(t, mustLock(t, l, "a"))
		want := []holdfast.EventKind{holdfast.EventExposed, holdfast.EventAcquiring, holdfast.EventAcquired, holdfast.EventReleased}
		if got := r.kinds(); !slices.Equal(got, want) || r.events[0].Store != "memory" || r.events[0].Err == nil {
			t.Errorf("%q, %+v", got, r.events[0])
		}
		g, err := l.Guarantees(bg)
		if err != nil || g.Notes[0] != "WARNING: the password is not protected" {
			t.Errorf("%q, %v", g.Notes, err)
		}
	}
	const line = `level=WARN msg="holdfast: password exposed" store=memory error="the password is not protected"`
	if strings.Count(log.String(), line) != 1 {
		t.Error(log.String())
	}
}

// badHooks hooks panic and block.
type badHooks struct{ block chan struct{} }

func (n badHooks) Start(context.Context, holdfast.Event) context.Context { panic("start") }
func (n badHooks) Event(_ context.Context, e holdfast.Event) {
	if e.Kind == holdfast.EventRenewed {
		<-n.block
	}
	panic("event")
}

// TestPanicsAndBlockedHooksDoNotAffectALock: some hooks panic, others do not return. The Locker
// still renews and releases its lock.
func TestPanicsAndBlockedHooksDoNotAffectALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		block := make(chan struct{})
		l, other := newLocker(t, s, holdfast.WithHooks(badHooks{block}), holdfast.WithHooks(&recorder{})), newLocker(t, s.Client())
		k := mustLock(t, l, "a", holdfast.TTL(3*time.Second))
		time.Sleep(time.Minute) // renewals continue although a hook hangs
		if k.Context().Err() != nil {
			t.Fatal(context.Cause(k.Context()))
		}
		unlock(t, k)
		wantFree(t, other, "a")
		close(block)
	})
}

func TestLogHooksUseLevelsByEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := memstore.New()
		l := newLocker(t, s, holdfast.WithHooks(holdfast.LogHooks(slog.New(slog.NewTextHandler(&out, nil)))))
		unlock(t, mustLock(t, l, "quiet"))
		k := mustLock(t, l, "loud", holdfast.Reason("why"))
		_ = s.Script().Lose("loud", driver.CauseTaken)
		<-k.Context().Done()
		_ = k.Unlock()
		s.Script().FailReleases("slow", 1, driver.Errorf(driver.CodeUnknown, "cut"))
		_ = mustLock(t, l, "slow").Unlock()
		must.Succeed(t, l.Close(bg))
		text := out.String()
		if got := strings.Count(text, "level=INFO"); got != 1 || !strings.Contains(text, `msg="holdfast: locks" store=memory kind=memory`) {
			t.Errorf("%d lines of level INFO, want one that names the store and its recipe: %s", got, text)
		}
		if strings.Contains(text, "quiet") {
			t.Errorf("what is in order is logged above debug level: %s", text)
		}
		for _, want := range []string{"level=ERROR", `msg="holdfast: lost"`, "name=loud", "cause=taken", "reason=why", "level=WARN", "name=slow", "token="} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in %s", want, text)
			}
		}
		out.Reset()
		h := holdfast.LogHooks(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		h.Event(bg, holdfast.Event{Kind: holdfast.EventQueued, Took: time.Second, Holders: []holdfast.Holder{{Owner: driver.Owner{Host: "h", PID: 7}}}})
		if !strings.Contains(out.String(), "holder_pid=7") {
			t.Error(out.String())
		}
	})
}

// TestLogHooksLimitFailures: while the store does not renew or release many locks, the log gets one line a second for
// each store and kind of failure. The lines count the events that they leave out. Later events, one for each kind,
// write how many were left out after the last line.
func TestLogHooksLimitFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := holdfast.LogHooks(slog.New(slog.NewTextHandler(&out, nil)))
		const seconds, each = 5, 100
		kinds := []holdfast.EventKind{holdfast.EventRenewFailed, holdfast.EventUnconfirmed, holdfast.EventUndoFailed}
		for range seconds {
			for range each {
				for _, store := range []string{"a", "b"} {
					for _, kind := range kinds {
						h.Event(bg, holdfast.Event{Kind: kind, Store: store, Took: time.Minute})
					}
				}
			}
			h.Event(bg, holdfast.Event{Kind: holdfast.EventRenewed, Store: "a"})
			time.Sleep(time.Second)
		}
		for _, kind := range kinds {
			if got := strings.Count(out.String(), string(kind)); got != 2*seconds {
				t.Errorf("%s: %d lines, want one a second and store: %s", kind, got, &out)
			}
		}
		if got := strings.Count(out.String(), fmt.Sprint("held=1m0s omitted=", each-1)); got != 2*(seconds-1)*len(kinds) {
			t.Errorf("%d lines count what they leave out: %s", got, &out)
		}
		out.Reset()
		for range 2 * len(kinds) {
			h.Event(bg, holdfast.Event{Kind: holdfast.EventRenewed, Store: "a"})
		}
		for _, kind := range kinds {
			line := fmt.Sprintf("level=WARN msg=\"holdfast: %s\" store=a omitted=%d\n", kind, each-1)
			if got := strings.Count(out.String(), line); got != 1 {
				t.Errorf("%s: %d lines count the events after the last line: %s", kind, got, &out)
			}
		}
	})
}

// oneBroken is a store in which the record of "b" is broken, as long as broken is set.
type oneBroken struct {
	*memstore.Store
	broken atomic.Bool
}

func (s *oneBroken) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		for st, err := range s.Store.List(ctx, prefix) {
			if s.broken.Load() && st.Name == "b" {
				st = driver.State{Name: "b", Err: driver.Broken("b's record", "it is empty")}
			}
			if !yield(st, err) {
				return
			}
		}
	}
}

// TestListContinuesAfterABrokenRecord: List and WatchAll yield the other names, and ErrRefused for the
// name whose record is broken. WatchAll yields that error once.
func TestListContinuesAfterABrokenRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &oneBroken{Store: memstore.New()}
		s.broken.Store(true)
		l := newLocker(t, s)
		for _, name := range []string{"a", "b", "c"} {
			defer mustLock(t, l, name).Unlock()
		}
		check := func(all []holdfast.State) {
			t.Helper()
			if len(all) != 3 || len(all[0].Holders) != 1 || len(all[2].Holders) != 1 || all[0].Err != nil || all[2].Err != nil {
				t.Fatalf("%+v", all)
			}
			if b := all[1]; b.Name != "b" || b.Err == nil || !strings.Contains(b.Err.Error(), "b's record") {
				t.Errorf("%+v", b)
			}
		}
		var all []holdfast.State
		for st, err := range l.List(bg, "") {
			must.Succeed(t, err)
			all = append(all, st)
		}
		check(all)
		if !errors.Is(all[1].Err, holdfast.ErrRefused) {
			t.Errorf("%v", all[1].Err)
		}
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		time.AfterFunc(5*time.Second, func() { s.broken.Store(false) })
		var seen [][]holdfast.State
		for states, err := range l.WatchAll(ctx) {
			must.Succeed(t, err)
			seen = append(seen, states)
		}
		if len(seen) != 2 || seen[1][1].Err != nil {
			t.Fatalf("%+v", seen)
		}
		check(seen[0])
	})
}

func TestInspectListWatchAndBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s, holdfast.Process("web-1", "billing")), newLocker(t, s.Client())
		k := mustLock(t, l, "a/1", holdfast.Limit(2), holdfast.Reason("why"))
		b := mustLock(t, l, "a/2")
		var names []string
		for st, err := range other.List(bg, "a/") {
			must.Succeed(t, err)
			names = append(names, st.Name)
		}
		if !slices.Equal(names, []string{"a/1", "a/2"}) {
			t.Errorf("%v", names)
		}
		st, err := other.Inspect(bg, "a/1")
		if err != nil || len(st.Holders) != 1 {
			t.Fatalf("%+v, %v", st, err)
		}
		if h := st.Holders[0]; h.Host != "web-1" || h.Instance != "billing" || h.Reason != "why" || h.Slot != 0 || h.Limit != 2 || h.Token != k.Token() || h.TTL != 30*time.Second {
			t.Errorf("%+v", h)
		}

		var seen []int // holders, at each change
		ctx, cancel := context.WithCancel(bg)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for st, err := range other.Watch(ctx, "a/2") {
				must.Report(t, err)
				seen = append(seen, len(st.Holders))
			}
		}()
		synctest.Wait()
		if err := other.Break(bg, "a/2", b.Token()+100); !errors.Is(err, holdfast.ErrNotHeld) {
			t.Errorf("Break with a wrong token: %v", err)
		}
		must.Report(t, other.Break(bg, "a/2", b.Token()))
		wantCause(t, b.Context(), holdfast.CauseTaken)
		synctest.Wait()
		unlock(t, mustLock(t, other, "a/2"))
		synctest.Wait()
		cancel()
		<-done
		if len(seen) < 2 || seen[0] != 1 || seen[1] != 0 {
			t.Errorf("the watch saw %v", seen)
		}
		for range other.Watch(bg, "a/1") {
			break // the iterator may be stopped
		}
		unlock(t, k)
		_ = b.Unlock()

		// A watch and a list of a closed store end with its error.
		gone := s.Client()
		third := newLocker(t, gone)
		_ = gone.Close(bg)
		if err := watchError(third, "a"); !errors.Is(err, holdfast.ErrClosed) {
			t.Error(err)
		}
		if err := listError(third, ""); !errors.Is(err, holdfast.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestWatchAllYieldsEachChangeOnce: a change of any name is yielded at once if the store
// notifies of it, else within a second. It yields at most ten times a second.
func TestWatchAllYieldsEachChangeOnce(t *testing.T) {
	for name, c := range map[string]struct {
		hide bool // hides that the store sends notifications
		wait time.Duration
	}{"pushed": {false, 0}, "polled": {true, time.Second}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				var client driver.Store = s.Client()
				if c.hide {
					client = struct {
						driver.Store
						driver.Inspector
					}{client, client.(driver.Inspector)}
				}
				l, other := newLocker(t, s), newLocker(t, client)
				a := mustLock(t, l, "a")
				var seen []string
				ctx, cancel := context.WithCancel(bg)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for states, err := range other.WatchAll(ctx) {
						must.Report(t, err)
						names := ""
						for _, st := range states {
							names += st.Name
						}
						seen = append(seen, names)
					}
				}()
				time.Sleep(1100 * time.Millisecond)
				b := mustLock(t, l, "b")
				time.Sleep(c.wait)
				synctest.Wait()
				if want := []string{"a", "ab"}; !slices.Equal(seen, want) {
					t.Errorf("saw %q, want %q", seen, want)
				}
				// Several changes between two reads are yielded as one.
				for range 100 {
					unlock(t, mustLock(t, l, "c"))
				}
				unlock(t, b)
				time.Sleep(100*time.Millisecond + c.wait)
				synctest.Wait()
				if want := []string{"a", "ab", "a"}; !slices.Equal(seen, want) {
					t.Errorf("saw %q, want %q", seen, want)
				}
				unlock(t, a)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if last := seen[len(seen)-1]; last != "" {
					t.Errorf("at the end %q", last)
				}
				cancel()
				<-done
				for range other.WatchAll(bg) {
					break // the iterator may be stopped
				}
			})
		})
	}
	s := memstore.New()
	gone := s.Client()
	l := newLocker(t, gone)
	_ = gone.Close(bg)
	for _, err := range l.WatchAll(bg) {
		if !errors.Is(err, holdfast.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err == nil {
			break
		}
	}
}

// TestErrorsNameLockStoreAndReason: an error names the lock, the store, and what is wrong, once.
func TestErrorsNameLockStoreAndReason(t *testing.T) {
	s := memstore.New()
	l := newLocker(t, s, holdfast.Process("web-1", ""))
	k := mustLock(t, l, "a", holdfast.Limit(2), holdfast.Reason("nightly"))
	mustLock(t, l, "a", holdfast.Limit(2))
	busy := wantBusy(t, newLocker(t, s.Client()), "a")
	for _, want := range []string{`holdfast: "a" on memory: busy, held by pid `, " on web-1 (nightly) and 1 more"} {
		if !strings.Contains(busy.Error(), want) {
			t.Errorf("%q is not in %q", want, busy.Error())
		}
	}
	_ = s.Script().Lose("a", driver.CauseTaken)
	if got := k.Unlock().Error(); !strings.HasPrefix(got, `holdfast: "a" on memory: lock lost (taken), token `) {
		t.Error(got)
	}
	lost := &holdfast.LostError{Name: "a", Store: "s", Token: 1, Cause: "gone", Work: errors.New("w"), Err: errors.New("e")}
	if got := lost.Error(); got != `holdfast: "a" on s: lock lost (gone), token 1: e; the work said: w` {
		t.Error(got)
	}
}

// TestEveryLossIsReportedIfAHookExits: a hook ends the goroutine that reports events. The
// losses queued behind that event are still reported.
func TestEveryLossIsReportedIfAHookExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		var losses atomic.Int32
		free := make(chan struct{}) // blocks the report of the first loss
		l := newLocker(t, s, holdfast.WithHooks(onEvent(func(e holdfast.Event) {
			if e.Kind != holdfast.EventLost {
				return
			}
			switch losses.Add(1) {
			case 1:
				<-free
			case 2:
				runtime.Goexit()
			}
		})))
		for _, name := range []string{"a", "b", "c", "d"} {
			mustLock(t, l, name)
			must.Succeed(t, s.Script().Lose(name, driver.CauseTaken))
			synctest.Wait()
		}
		close(free)
		synctest.Wait()
		if n := losses.Load(); n != 4 {
			t.Errorf("%d of 4 losses are reported", n)
		}
	})
}
