package sqlkit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
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
		staysTogether(t, use, idle, &dialled)
		full = true
		var all []Link
		for range 2 {
			l, _, err := p.Get(t.Context())
			must.Succeed(t, err)
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

// staysTogether: with at least 2 and at most 8 idle ones, those that were in use at the same time stay for a while, and
// unused ones end.
func staysTogether(t *testing.T, use func(n int), idle func() int, dialled *int) {
	t.Helper()
	use(6)
	use(6)
	if *dialled != 6 || idle() != 6 {
		t.Errorf("dialled %d, idle %d", *dialled, idle())
	}
	use(12)
	if idle() != 8 {
		t.Errorf("idle %d, more than the maximum", idle())
	}
	for range 3 {
		time.Sleep(surplusFor/2 + time.Millisecond) // not at the moment at which the timer ends links
		use(4)
	}
	if idle() != 4 {
		t.Errorf("idle %d, and 4 are in use", idle())
	}
	time.Sleep(2 * surplusFor)
	if idle() != 2 {
		t.Errorf("idle %d after a rest", idle())
	}
}

// useTogether takes n links, and returns them when it has all of them.
func useTogether(t *testing.T, n int, take func() (Link, error), put func(Link)) {
	t.Helper()
	var all []Link
	for range n {
		one, err := take()
		must.Succeed(t, err)
		all = append(all, one)
	}
	for _, one := range all {
		put(one)
	}
}

// TestRequestsWaitForSessionsInOrder: requests beyond MaxConns wait for a session in the order in which they came,
// and a cancelled one gives its turn to the next.
func TestRequestsWaitForSessionsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialled := 0
		e := NewSessions(func(context.Context) (Link, error) { dialled++; return &countedLink{}, nil }, &quiet{}, Idle{Min: 2, Max: 8}, "")
		e.MaxConns = func(context.Context) (int, error) { return 2, nil }
		defer e.Close(t.Context())
		first, _ := e.take(t.Context(), &driver.Request{})
		second, _ := e.take(t.Context(), &driver.Request{})
		if _, err := e.take(t.Context(), &driver.Request{First: true}); driver.CodeOf(err) != driver.CodeUnavailable {
			t.Errorf("a first try: %v; want unavailable", err)
		}
		var order []int
		cancelled, cancel := context.WithCancel(t.Context())
		for i := range 4 {
			ctx := t.Context()
			if i == 1 {
				ctx = cancelled
			}
			go func() {
				s, err := e.take(ctx, &driver.Request{})
				if err != nil {
					order = append(order, -i)
					return
				}
				order = append(order, i)
				if i%2 == 0 {
					e.put(s)
				} else {
					e.drop(s)
				}
			}()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		e.put(first)
		synctest.Wait()
		e.drop(second)
		synctest.Wait()
		if !slices.Equal(order, []int{-1, 0, 2, 3}) || len(e.slots) > 0 {
			t.Errorf("order %v, %d sessions in use", order, len(e.slots))
		}
		if dialled > 3 {
			t.Errorf("dialled %d", dialled)
		}
	})
}

// TestSessionsFreeTheirSlots: a request may take a session before the request that has put it back frees its slot.
func TestSessionsFreeTheirSlots(t *testing.T) {
	e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, &quiet{}, Idle{Min: 8, Max: 8}, "")
	e.MaxConns = func(context.Context) (int, error) { return 100, nil }
	defer e.Close(t.Context())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5000 {
				s, err := e.take(t.Context(), &driver.Request{})
				if err != nil {
					t.Error(err)
					return
				}
				e.put(s)
			}
		})
	}
	all.Wait()
	if len(e.slots) > 0 {
		t.Errorf("%d slots of no session", len(e.slots))
	}
}

// endingLink is a link that its test ends.
type endingLink struct {
	countedLink
	gone chan struct{}
}

func (l *endingLink) Gone() <-chan struct{} { return l.gone }

// placed is a recipe whose sessions are at other servers in turn.
type placed struct {
	quiet
	servers []string
}

func (r *placed) Begin(context.Context, Link) (Identity, error) {
	id := Identity{Server: r.servers[0]}
	r.servers = r.servers[1:]
	return id, nil
}

// TestIdleSessionsEnd: an idle session is closed when its connection has ended, when its server is demoted, and when it
// was not needed for sessionIdleFor.
func TestIdleSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links []*endingLink
		dial := func(context.Context) (Link, error) {
			l := &endingLink{gone: make(chan struct{})}
			links = append(links, l)
			return l, nil
		}
		e := NewSessions(dial, &placed{servers: []string{"a", "b", "c"}}, Idle{Min: 8, Max: 8}, "")
		defer e.Close(t.Context())
		var all []*Session
		for range 3 {
			s, err := e.take(t.Context(), &driver.Request{})
			must.Succeed(t, err)
			all = append(all, s)
		}
		for _, s := range all {
			e.put(s)
		}
		require := func(after string, want ...bool) {
			t.Helper()
			synctest.Wait()
			for i, l := range links {
				if l.closed.Load() != want[i] {
					t.Errorf("after %s: session %d closed %t", after, i, !want[i])
				}
			}
		}
		close(links[0].gone)
		require("the end of a connection", true, false, false)
		e.demoted("b")
		require("a demotion", true, true, false)
		time.Sleep(sessionIdleFor - time.Second)
		require("a while", true, true, false)
		time.Sleep(time.Second)
		require("a rest", true, true, true)
	})
}

// answering is a link with one answer.
type answering struct {
	countedLink
	answers Answers
}

func (l *answering) Run(context.Context, ...string) (Answers, error) { return l.answers, nil }

// TestUnknownStateIsReadOnly: a server that does not answer whether it accepts writes is no primary.
func TestUnknownStateIsReadOnly(t *testing.T) {
	for name, answers := range map[string]Answers{"empty": nil, "no row": {nil, nil}, "NULL": {{Row{{}}}, nil}, "read-only": {{textRow("1")}, nil}} {
		p := NewPool(Idle{Min: 1, Max: 1}, func(context.Context) (Link, error) { return &answering{answers: answers}, nil })
		if _, err := p.RunAtPrimary(t.Context(), certain{}, &Dialect{}, "write"); !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s: %v", name, err)
		}
		p.Close()
	}
}

// TestOneRequestReadsTheLimit: while the server does not answer, one request at a time reads its limit of connections.
// A waiter returns after the timeout of an answer, and each request when the store is closed.
func TestOneRequestReadsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reading, most, answers := 0, 0, false
		e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, &quiet{}, Idle{Min: 2, Max: 8}, "")
		e.MaxConns = func(ctx context.Context) (int, error) {
			if answers {
				return 2, nil
			}
			reading++
			most = max(most, reading)
			<-ctx.Done()
			reading--
			return 0, driver.Errorf(driver.CodeUnavailable, "%w", ctx.Err())
		}
		var all sync.WaitGroup
		take := func(wait bool) {
			for range 3 {
				all.Go(func() {
					if _, err := e.take(t.Context(), &driver.Request{Wait: wait}); driver.CodeOf(err) != driver.CodeUnavailable {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		take(true)
		time.Sleep(AnswerWithin)
		all.Wait()
		answers = true
		s, err := e.take(t.Context(), &driver.Request{})
		must.Succeed(t, err)
		e.put(s)
		answers, e.slots = false, nil
		take(false)
		must.Report(t, e.Close(t.Context()))
		all.Wait()
		if most != 1 {
			t.Errorf("%d requests read the limit at once", most)
		}
	})
}

// free is a recipe whose locks are free.
type free struct{ quiet }

func (free) Lock(context.Context, *Session, *LockRequest) (Got, error) {
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}

// TestTryOfOwnLockIsBusyWithoutSession: a try for a lock that the engine holds needs no session to be busy. One that
// the lock does not keep out waits for a session.
func TestTryOfOwnLockIsBusyWithoutSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, &free{}, Idle{}, "")
		e.MaxConns = func(context.Context) (int, error) { return 1, nil }
		defer e.Close(t.Context())
		request := func(id, name string, limit int) driver.Request {
			return driver.Request{ID: id, Name: name, Limit: limit, TTL: time.Hour, From: noRequester{}}
		}
		if _, err := e.Acquire(t.Context(), request("1", "n", 2)); err != nil {
			t.Fatal(err)
		}
		for id, c := range map[string]struct {
			name  string
			limit int
			want  driver.Code
		}{
			"2": {"n", driver.Exclusive, driver.CodeBusy},
			"3": {"n", 2, driver.CodeWithdrawn},
			"4": {"m", driver.Exclusive, driver.CodeWithdrawn},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := e.Acquire(ctx, request(id, c.name, c.limit))
			cancel()
			if driver.CodeOf(err) != c.want {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}
