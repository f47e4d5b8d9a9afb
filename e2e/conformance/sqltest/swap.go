package sqltest

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// Swap releases a grant and waits for the next one of its name in one call. It returns the outcome of
// the release, and the error of the request.
func Swap(t testing.TB, s Store, old driver.Grant) (g driver.Grant, released, err error) {
	t.Helper()
	r, _ := Request(old.Name, driver.Exclusive, old.TTL)
	r.Wait, r.Tokens = true, driver.HandoffMax+1
	reported := 0
	g, err = s.Swap(t.Context(), old, r, func(err error) {
		released = err
		reported++
	})
	if reported != 1 {
		t.Fatalf("Swap called released %d times: %v", reported, err)
	}
	return g, released, err
}

// SwapUntil acquires a free name and swaps the grant at once. It repeats that until done returns true,
// since a busy machine may be too slow to hand a lock off. It calls before between the grant and the swap.
func SwapUntil(t testing.TB, s Store, name string, before func(), done func(released, err error) bool) {
	t.Helper()
	var last driver.Grant
	for range 500 {
		g, _ := Must(t, s, name, driver.Exclusive, time.Minute)
		requests.Rises(t, last, g)
		before()
		next, released, err := Swap(t, s, g)
		if released != nil && s.Classify(released) != driver.CodeNotHeld && s.Classify(released) != driver.CodeUnknown {
			t.Fatalf("the release: %v", released)
		}
		if last = g; err == nil {
			requests.Rises(t, g, next)
			Release(t, s, next)
			last = next
		}
		if done(released, err) {
			return
		}
	}
	t.Fatal("no swap has handed the lock off")
}

// SwapServesStatement requires that a statement of another program which waits for a name, and frees it again, ends
// although a client swaps one grant of the name after the other.
func SwapServesStatement(t *testing.T, d *Database, params, name, statement string) {
	database := d.Create(t)
	s := d.Store(t, database, params)
	c, err := d.Pool(t, database).Conn(t.Context())
	check(t, err)
	first, _ := Must(t, s, name, driver.Exclusive, time.Minute)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if _, err := c.ExecContext(t.Context(), statement); err != nil {
			t.Error(err)
		}
	}()
	// The test's context has ended by then, and with it the statement: after a failure nothing releases the lock.
	t.Cleanup(func() {
		<-served
		_ = c.Close()
	})
	Release(t, s, first)
	SwapServesOthers(t, s, name, served)
}

// SwapServesOthers requires that a client which swaps one grant after the other releases the lock to a client
// that the store does not see waiting. served is closed when that client has had the lock.
func SwapServesOthers(t testing.TB, s Store, name string, served <-chan struct{}) {
	t.Helper()
	r, _ := Request(name, driver.Exclusive, time.Minute)
	r.Wait = true
	g, err := s.Acquire(t.Context(), r)
	for end := time.Now().Add(soon); err == nil; {
		select {
		case <-served:
			Release(t, s, g)
			return
		default:
		}
		if time.Now().After(end) {
			t.Fatal("the other client was not served")
		}
		var released error
		if g, released, err = Swap(t, s, g); released != nil {
			t.Fatalf("the release: %v", released)
		}
	}
	t.Fatal(err)
}
