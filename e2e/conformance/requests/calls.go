package requests

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// Timeout limits each wait for an event that must happen. A healthy server needs a small part of it.
const Timeout = time.Minute

// Long is a TTL that outlasts a test.
const Long = time.Minute

// Must returns the grant of a request that is granted at once.
func Must(t testing.TB, s driver.Store, r driver.Request) driver.Grant {
	t.Helper()
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", r.Name, err)
	}
	return g
}

// Rises requires that a grant has a larger token than all of an earlier one.
func Rises(t testing.TB, before, next driver.Grant) {
	t.Helper()
	if next.Token <= before.Last() {
		t.Errorf("token %d after %d", next.Token, before.Last())
	}
}

// LocksRise is Rises for locks of a Locker.
func LocksRise(t testing.TB, before, next interface{ Token() uint64 }) {
	t.Helper()
	if next.Token() <= before.Token() {
		t.Errorf("token %d after %d", next.Token(), before.Token())
	}
}

// Code requires an error of a code.
func Code(t testing.TB, s driver.Store, err error, want driver.Code) {
	t.Helper()
	if err == nil || s.Classify(err) != want {
		t.Fatalf("%v (%v), want %v", err, s.Classify(err), want)
	}
}

// Eventually waits for a condition that no event announces.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Timeout); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so within %s: %s", Timeout, what)
		}
	}
}

// Retried repeats a call while the store is unavailable. A busy machine answers late, and a cluster may have no leader.
func Retried[T any](call func() (T, error)) (v T, err error) {
	for end := time.Now().Add(Timeout); ; time.Sleep(50 * time.Millisecond) {
		if v, err = call(); !errors.Is(err, holdfast.ErrUnavailable) || time.Now().After(end) {
			return v, err
		}
	}
}

// Each calls do for each number below n, on some goroutines.
func Each(t testing.TB, n, goroutines int, do func(i int) error) {
	t.Helper()
	var running sync.WaitGroup
	for from := range goroutines {
		running.Go(func() {
			for i := from; i < n; i += goroutines {
				must.Report(t, do(i))
			}
		})
	}
	running.Wait()
}

// Receive waits for a value.
func Receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Timeout):
		t.Fatalf("missing after %s: %s", Timeout, what)
		panic("unreachable")
	}
}

// Lost waits until the store reports the loss of the grant of a request, with a cause.
func Lost(t testing.TB, r driver.Request, want driver.Cause) {
	t.Helper()
	if cause := Of(r).AwaitLoss(t); cause != want {
		t.Fatalf("the holder lost its lock with cause %q, want %q", cause, want)
	}
}

// Release repeats the release of a grant until its outcome is known.
func Release(t testing.TB, s driver.Store, g driver.Grant) {
	t.Helper()
	known(t, s, "a release", func(ctx context.Context) error { return s.Release(ctx, g, 0) })
}

// Undone repeats an undo until the store confirms it.
func Undone(t testing.TB, s driver.Store, r driver.Request) {
	t.Helper()
	known(t, s, "an undo", func(ctx context.Context) error { return s.Undo(ctx, r) })
}

// Renewed repeats the renewal of a grant until its outcome is known.
func Renewed(t testing.TB, s driver.Store, g driver.Grant) (last driver.Renewal) {
	t.Helper()
	known(t, s, "a renewal", func(ctx context.Context) error {
		last = s.Renew(ctx, []driver.Grant{g})[0]
		return last.Err
	})
	return last
}

// known repeats a call until it succeeds, or finds no grant.
func known(t testing.TB, s driver.Store, what string, call func(context.Context) error) {
	t.Helper()
	for end := time.Now().Add(Timeout); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := call(ctx)
		cancel()
		if err == nil || s.Classify(err) == driver.CodeNotHeld {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s has no outcome within %s: %v", what, Timeout, err)
		}
	}
}

// Closing closes a store at the end of a test, unless the test has closed it.
func Closing[S driver.Store](t testing.TB, s S) S {
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil && s.Classify(err) != driver.CodeClosed {
			t.Error(err)
		}
	})
	return s
}

// Uses locks a name, lists and breaks the lock, and keeps a value. It returns the first error.
func Uses(t testing.TB, s interface {
	driver.Store
	driver.Inspector
	driver.Breaker
	driver.Values
}, name string) error {
	t.Helper()
	g, err := s.Acquire(t.Context(), New(name, driver.Exclusive, Long))
	if err != nil {
		return err
	}
	listed := 0
	for st, err := range s.List(t.Context(), name[:1]) {
		if err != nil {
			return err
		}
		if listed++; st.Name != name {
			t.Errorf("List has %q", st.Name)
		}
	}
	if listed != 1 {
		t.Errorf("List has %d names", listed)
	}
	if err := s.Break(t.Context(), name, g.Token); err != nil {
		return err
	}
	_, err = s.Put(t.Context(), "key", []byte("value"), "")
	return err
}

// Waiter is a request on a goroutine of its own. Grant and Err are its outcome when Done is closed.
type Waiter struct {
	Request driver.Request
	Done    chan struct{}
	Grant   driver.Grant
	Err     error
	t       testing.TB
}

// Submit sends a request that may wait.
func Submit(t testing.TB, s driver.Store, r driver.Request) *Waiter {
	r.Wait = true
	return Start(t, r, func() (driver.Grant, error) { return s.Acquire(t.Context(), r) })
}

// Start makes the call of a request on a goroutine of its own.
func Start(t testing.TB, r driver.Request, call func() (driver.Grant, error)) *Waiter {
	w := &Waiter{Request: r, Done: make(chan struct{}), t: t}
	go func() {
		defer close(w.Done)
		w.Grant, w.Err = call()
	}()
	return w
}

// Swap starts a Swap. It returns the outcome of the release, and that of the request.
func Swap(t testing.TB, s driver.Swapper, old driver.Grant, r driver.Request) (released <-chan error, w *Waiter) {
	r.Wait = true
	outcomes := make(chan error, 4)
	return outcomes, Start(t, r, func() (driver.Grant, error) {
		defer close(outcomes)
		return s.Swap(t.Context(), old, r, func(err error) { outcomes <- err })
	})
}

// Swapped starts a Swap, and returns its request when the grant is released.
func Swapped(t testing.TB, s driver.Swapper, old driver.Grant, r driver.Request) *Waiter {
	t.Helper()
	released, w := Swap(t, s, old, r)
	select {
	case err, reported := <-released:
		if err != nil || !reported {
			t.Fatalf("the release by a swap: reported %t, %v", reported, err)
		}
	case <-time.After(Timeout):
		t.Fatal("Swap has neither returned nor reported the release")
	}
	return w
}

// Queue sends a request, and returns when it has a queue entry.
func Queue(t testing.TB, s driver.Store, r driver.Request) *Waiter {
	t.Helper()
	return QueueWith(t, t.Context(), s, r)
}

// QueueWith is Queue with a context for the request.
func QueueWith(t testing.TB, ctx context.Context, s driver.Store, r driver.Request) *Waiter {
	t.Helper()
	r.Wait = true
	w := Start(t, r, func() (driver.Grant, error) { return s.Acquire(ctx, r) })
	queued := Of(r).Waits
	select {
	case <-queued:
	case <-w.Done:
		select {
		case <-queued: // the request waited, and is granted already
		default:
			t.Fatalf("the request did not wait: %+v, %v", w.Grant, w.Err)
		}
	case <-time.After(Timeout):
		t.Fatal("the request has no queue entry")
	}
	return w
}

// Granted waits for the grant.
func (w *Waiter) Granted() driver.Grant {
	w.t.Helper()
	if err := w.Ended(); err != nil {
		w.t.Fatal(err)
	}
	return w.Grant
}

// Ended waits until the request has ended, and returns its error.
func (w *Waiter) Ended() error {
	w.t.Helper()
	Receive(w.t, "the outcome of a request", w.Done)
	return w.Err
}

// Pending requires that the request has not ended.
func (w *Waiter) Pending() {
	w.t.Helper()
	select {
	case <-w.Done:
		w.t.Fatalf("the request did not wait: %+v, %v", w.Grant, w.Err)
	default:
	}
}

// Failed waits for the error of a request whose context has ended, and returns both.
func (w *Waiter) Failed() (driver.Request, error) {
	w.t.Helper()
	if w.Ended() == nil {
		w.t.Fatalf("granted after its end: %+v", w.Grant)
	}
	return w.Request, w.Err
}
