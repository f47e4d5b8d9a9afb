package sqltest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// soon is the timeout for events that should happen at once. A busy machine may need most of
// it.
const soon = 20 * time.Second

var ids atomic.Int64

// Requester is a driver.Requester that records what the store reports.
type Requester struct {
	id     string
	queued chan struct{}
	lost   chan driver.Cause
}

// Owner returns the requester's owner.
func (a *Requester) Owner() driver.Owner { return driver.Owner{ID: a.id, Host: "here", PID: 1} }

// Queued records that the request is in the queue.
func (a *Requester) Queued([]driver.Holder) {
	select {
	case a.queued <- struct{}{}:
	default:
	}
}

// Lost records the loss of the grant.
func (a *Requester) Lost(c driver.Cause, _ error) {
	select {
	case a.lost <- c:
	default:
	}
}

// AwaitLoss waits until the store reports a loss, and returns its cause.
func (a *Requester) AwaitLoss(t testing.TB) driver.Cause {
	t.Helper()
	select {
	case c := <-a.lost:
		return c
	case <-time.After(soon):
		t.Fatalf("the holder was not notified within %s", soon)
		return ""
	}
}

// Keeps fails the test if the store has reported a loss.
func (a *Requester) Keeps(t testing.TB) {
	t.Helper()
	select {
	case c := <-a.lost:
		t.Fatalf("the store reported a loss: %s", c)
	default:
	}
}

// Request returns a request that does not wait.
func Request(name string, limit int, ttl time.Duration) (driver.Request, *Requester) {
	a := &Requester{id: fmt.Sprintf("f%d-%d", time.Now().UnixNano(), ids.Add(1)), queued: make(chan struct{}, 1), lost: make(chan driver.Cause, 1)}
	return driver.Request{ID: a.id, Name: name, Limit: limit, TTL: ttl, From: a}, a
}

// Must acquires a free lock.
func Must(t testing.TB, s driver.Store, name string, limit int, ttl time.Duration) (driver.Grant, *Requester) {
	t.Helper()
	r, a := Request(name, limit, ttl)
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", name, err)
	}
	return g, a
}

// Busy requires that a lock is held.
func Busy(t testing.TB, s driver.Store, name string, limit int) {
	t.Helper()
	r, _ := Request(name, limit, time.Minute)
	if g, err := s.Acquire(t.Context(), r); err == nil || s.Classify(err) != driver.CodeBusy {
		t.Fatalf("Acquire(%q) returns %+v, %v; want busy", name, g, err)
	}
}

// Release releases a grant.
func Release(t testing.TB, s driver.Store, g driver.Grant) {
	t.Helper()
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// Undo repeats Undo until it returns nil.
func Undo(t testing.TB, s driver.Store, r driver.Request) {
	t.Helper()
	for end := time.Now().Add(soon); ; time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := s.Undo(ctx, r)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Undo: %v", err)
		}
	}
}

// Soon waits for a condition that no event announces, and reports whether it became true.
func Soon(ok func() bool) bool {
	for end := time.Now().Add(soon); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Rises requires that the token of a grant is larger than that of an earlier one.
func Rises(t testing.TB, before, next driver.Grant) {
	t.Helper()
	if next.Token <= before.Token {
		t.Errorf("token %d after %d", next.Token, before.Token)
	}
}

// Close closes a store.
func Close(t testing.TB, s driver.Store) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// Waiter is an Acquire that waits on its own goroutine.
type Waiter struct {
	t    testing.TB
	r    driver.Request
	done chan struct{}
	g    driver.Grant
	err  error
}

// Wait starts a request that waits. It returns when the request is in the queue.
func Wait(t testing.TB, ctx context.Context, s driver.Store, name string, limit int) *Waiter {
	t.Helper()
	r, a := Request(name, limit, time.Minute)
	return wait(t, ctx, s, r, a)
}

func wait(t testing.TB, ctx context.Context, s driver.Store, r driver.Request, a *Requester) *Waiter {
	t.Helper()
	r.Wait = true
	w := &Waiter{t: t, r: r, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.g, w.err = s.Acquire(ctx, r)
	}()
	select {
	case <-a.queued:
	case <-w.done:
		t.Fatalf("a wait for %q ended at once: %+v, %v", r.Name, w.g, w.err)
	case <-time.After(soon):
		t.Fatalf("a wait for %q was not queued", r.Name)
	}
	return w
}

// Granted waits for the grant and returns it.
func (w *Waiter) Granted() driver.Grant {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(soon):
		w.t.Fatal("a waiter was not granted")
	}
	if w.err != nil {
		w.t.Fatal(w.err)
	}
	return w.g
}

// Failed waits for the error of a request whose context has ended, and returns both.
func (w *Waiter) Failed() (driver.Request, error) {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(soon):
		w.t.Fatal("a cancelled wait did not end")
	}
	if w.err == nil {
		w.t.Fatalf("granted after its end: %+v", w.g)
	}
	return w.r, w.err
}

// StillWaits fails the test if the wait has ended.
func (w *Waiter) StillWaits() {
	w.t.Helper()
	select {
	case <-w.done:
		w.t.Fatalf("the wait ended: %+v, %v", w.g, w.err)
	default:
	}
}
