package sqlkit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestPoolKeepsLinksUsedTogether: links that were in use at the same time stay for a while,
// and unused links end. A server that refuses a client reduces the pool to its least size.
func TestPoolKeepsLinksUsedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialled, full := 0, false
		p := NewPool(Idle{Min: 2, Max: 8}, func(context.Context) (Link, error) {
			if full {
				return nil, driver.Errorf(driver.CodeUnavailable, "%w", ErrTooMany)
			}
			dialled++
			return &countedLink{}, nil
		})
		defer p.Close()
		take := func() (Link, error) { l, _, err := p.Get(t.Context()); return l, err }
		use := func(n int) { t.Helper(); useTogether(t, n, take, p.Put) }
		idle := func() int {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.idle)
		}
		use(6)
		use(6)
		if dialled != 6 || idle() != 6 {
			t.Errorf("dialled %d, idle %d", dialled, idle())
		}
		use(12)
		if idle() != 8 {
			t.Errorf("idle %d, more than the maximum", idle())
		}
		for range 3 {
			time.Sleep(surplusFor / 2)
			use(4)
		}
		if idle() != 4 {
			t.Errorf("idle %d, and 4 are in use", idle())
		}
		time.Sleep(2 * surplusFor)
		if idle() != 2 {
			t.Errorf("idle %d after a rest", idle())
		}
		full = true
		var all []Link
		for range 2 {
			l, _, err := p.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		if _, _, err := p.Get(t.Context()); driver.CodeOf(err) != driver.CodeUnavailable {
			t.Fatal(err)
		}
		all = append(all, &countedLink{})
		for _, l := range all {
			p.Put(l)
		}
		if idle() != 2 {
			t.Errorf("idle %d while the server refuses clients", idle())
		}
	})
}

// TestSessionsStayIfUsedTogether: the rule of TestPoolKeepsLinksUsedTogether also holds for
// sessions.
func TestSessionsStayIfUsedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialled := 0
		e := NewSessions(func(context.Context) (Link, error) { dialled++; return &countedLink{}, nil }, &quiet{}, Idle{Min: 2, Max: 8}, "")
		defer e.Close(t.Context())
		take := func() (*Session, error) { return e.take(t.Context()) }
		use := func(n int) { t.Helper(); useTogether(t, n, take, e.put) }
		idle := func() int {
			synctest.Wait()
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.idle)
		}
		use(6)
		use(6)
		if dialled != 6 || idle() != 6 {
			t.Errorf("dialled %d, idle %d", dialled, idle())
		}
		for range 3 {
			time.Sleep(surplusFor / 2)
			use(4)
		}
		if idle() != 4 {
			t.Errorf("idle %d, and 4 are in use", idle())
		}
		time.Sleep(2 * surplusFor)
		if idle() != 2 {
			t.Errorf("idle %d after a rest", idle())
		}
	})
}

// useTogether takes n links or sessions, and returns them when it has all of them.
func useTogether[T any](t *testing.T, n int, take func() (T, error), put func(T)) {
	t.Helper()
	var all []T
	for range n {
		one, err := take()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	for _, one := range all {
		put(one)
	}
}
