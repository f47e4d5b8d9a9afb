package sqltest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
)

var check = servertest.Check

// soon is the timeout for events that should happen at once. A busy machine may need most of
// it.
const soon = 20 * time.Second

// Request returns a request that does not wait, and what the store reports to it.
func Request(name string, limit int, ttl time.Duration) (driver.Request, *requests.Recorder) {
	r := requests.New(name, limit, ttl)
	return r, requests.Of(r)
}

// Must acquires a free lock.
func Must(t testing.TB, s driver.Store, name string, limit int, ttl time.Duration) (driver.Grant, *requests.Recorder) {
	t.Helper()
	r, a := Request(name, limit, ttl)
	return requests.Must(t, s, r), a
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

// freed repeats a request until it is granted, and releases the grant: a server may still be ending sessions, or a lease.
func freed(t testing.TB, s driver.Store, name string) (g driver.Grant) {
	t.Helper()
	requests.Eventually(t, name+" is free", func() bool {
		r, _ := Request(name, driver.Exclusive, time.Minute)
		var err error
		if g, err = s.Acquire(t.Context(), r); err != nil && s.Classify(err) == driver.CodeUnknown {
			requests.Undone(t, s, r) // otherwise it may block the next request
		}
		return err == nil
	})
	Release(t, s, g)
	return g
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

// Shown waits until an inspection shows a grant.
func Shown(t testing.TB, s driver.Inspector, g driver.Grant) {
	t.Helper()
	var st driver.State
	var err error
	if !Soon(func() bool {
		st, err = s.Inspect(t.Context(), g.Name)
		return err == nil && slices.ContainsFunc(st.Holders, func(h driver.Holder) bool { return h.Token == g.Token })
	}) {
		t.Fatalf("%q is seen as %+v, %v; want token %d", g.Name, st, err, g.Token)
	}
}

// Close closes a store, unless that was done before.
func Close(t testing.TB, s driver.Store) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil && s.Classify(err) != driver.CodeClosed {
		t.Errorf("Close: %v", err)
	}
}

// Wait starts a request that waits. It returns when the request is in the queue.
func Wait(t testing.TB, ctx context.Context, s driver.Store, name string, limit int) *requests.Waiter {
	t.Helper()
	r, _ := Request(name, limit, time.Minute)
	return requests.QueueWith(t, ctx, s, r)
}
