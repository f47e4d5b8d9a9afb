package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/contention"
	"github.com/holdfast-go/holdfast/redisstore"
)

// intercepting is a client that counts the scripts it sends, and that loses or delays swaps.
type intercepting struct {
	redisstore.Client
	calls sync.Map // the number of calls of each script: its name to *atomic.Int32
	// lose, if set, is called for each swap. It returns whether the answer is lost, and whether the
	// server gets a swap whose answer is lost.
	lose func() (lost, sent bool)

	mu   sync.Mutex
	last func() ([]string, error) // sends the last lost swap again
}

// isSwap reports whether a call releases a grant and requests another one.
func isSwap(s *redisstore.Script, args []string) bool {
	return s.Name == "acquire" && len(args) == 13
}

func (c *intercepting) count(what string) int32 {
	n, _ := c.calls.LoadOrStore(what, new(atomic.Int32))
	return n.(*atomic.Int32).Load()
}

func (c *intercepting) Eval(ctx context.Context, s *redisstore.Script, keys, args []string) ([]string, error) {
	n, _ := c.calls.LoadOrStore(s.Name, new(atomic.Int32))
	n.(*atomic.Int32).Add(1)
	if !isSwap(s, args) || c.lose == nil {
		return c.Client.Eval(ctx, s, keys, args)
	}
	lost, sent := c.lose()
	if !lost {
		return c.Client.Eval(ctx, s, keys, args)
	}
	send := func() ([]string, error) { return c.Client.Eval(context.WithoutCancel(ctx), s, keys, args) }
	if sent {
		if _, err := send(); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	c.last = send
	c.mu.Unlock()
	return nil, errors.New("the answer is lost")
}

// intercepted returns a store over an intercepting client.
func intercepted(t *testing.T, url string) (*redisstore.Store, *intercepting) {
	t.Helper()
	c := &intercepting{Client: open(t, url).Client()}
	s, err := redisstore.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s, c
}

// swap runs Swap on a goroutine of its own.
type swap struct {
	*waiter
	released error
	reported bool // the release has an outcome
}

// swapIn starts a Swap, and returns when the release has its outcome or Swap has returned.
func swapIn(t *testing.T, s *redisstore.Store, old driver.Grant, r driver.Request) *swap {
	t.Helper()
	w := &swap{waiter: &waiter{t: t, r: r, done: make(chan struct{})}}
	w.r.Wait = true
	released := make(chan error, 4)
	go func() {
		defer close(w.done)
		w.g, w.err = s.Swap(t.Context(), old, w.r, func(err error) { released <- err })
	}()
	select {
	case w.released = <-released:
		w.reported = true
	case <-w.done:
		select {
		case w.released = <-released:
			w.reported = true
		default:
		}
	case <-time.After(testTimeout):
		t.Fatal("Swap has neither returned nor reported the release")
	}
	return w
}

// swapped calls swapIn, and requires that the release has succeeded.
func swapped(t *testing.T, s *redisstore.Store, old driver.Grant, r driver.Request) *swap {
	t.Helper()
	w := swapIn(t, s, old, r)
	if !w.reported || w.released != nil {
		t.Fatalf("the release by a swap: reported %t, %v; the request: %v", w.reported, w.released, w.err)
	}
	return w
}

// empty requires that a name has neither holder nor waiter.
func empty(t *testing.T, s driver.Store, name string) {
	t.Helper()
	st, err := s.(driver.Inspector).Inspect(t.Context(), name)
	if err != nil || len(st.Holders)+len(st.Waiters) > 0 {
		t.Errorf("%s: left behind: %+v, %v", name, st, err)
	}
}

// TestSwapIsOneCall: a contended release and the next request cost one call together, and each grant has
// a new token. Requests with a tag and with reserved tokens cost no more.
func TestSwapIsOneCall(t *testing.T) {
	s, c := intercepted(t, "redis://"+common(t).Address())
	for _, tokens := range []int{1, 64} {
		q := func() driver.Request {
			r := provisional(fmt.Sprint(t.Name(), tokens))
			r.Tokens = tokens
			return r
		}
		g := must(t, s, q())
		acquires, releases := c.count("acquire"), c.count("release")
		const n = 20
		for range n {
			next := swapped(t, s, g, q()).granted()
			if next.Token <= g.Last() {
				t.Errorf("token %d after %d to %d", next.Token, g.Token, g.Last())
			}
			if next.Provisional || next.TTL != long {
				t.Errorf("the grant by a swap: %+v", next)
			}
			g = next
		}
		if a, r := c.count("acquire")-acquires, c.count("release")-releases; a != n || r != 0 {
			t.Errorf("%d swaps took %d calls of acquire and %d of release", n, a, r)
		}
		release(t, s, g)
	}
}

// TestSwapStartsTheWaiter: a swap grants to the waiter of another client, like a release. That waiter
// may start with the message, before it confirms its grant.
func TestSwapStartsTheWaiter(t *testing.T) {
	r := common(t)
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	g := must(t, a, provisional(t.Name()))
	for end := time.Now().Add(testTimeout); ; {
		w := queue(t, b, provisional(t.Name()))
		next := swapped(t, a, g, provisional(t.Name()))
		other := w.granted()
		next.pending()
		if other.Token <= g.Token {
			t.Fatalf("token %d after %d", other.Token, g.Token)
		}
		release(t, b, other)
		if g = next.granted(); other.Provisional {
			release(t, a, g)
			return
		}
		if time.Now().After(end) {
			t.Fatal("no waiter has started with the message of a swap")
		}
	}
}

// TestSwapWithoutAnswer: the answer to a swap is lost, or the swap itself arrives late, with and without
// another waiter for the name. Both outcomes are unknown. The client then undoes the request and repeats
// the release, and nothing of them is left. A swap that arrives after that changes nothing.
func TestSwapWithoutAnswer(t *testing.T) {
	url := "redis://" + start(t).Address()
	s, c := intercepted(t, url)
	other := open(t, url)
	for _, sent := range []bool{true, false} {
		for _, waits := range []bool{true, false} {
			name := fmt.Sprint("sent-", sent, "-waits-", waits)
			old := must(t, s, request(name, driver.Exclusive, long))
			var w *waiter
			if waits {
				w = queue(t, other, request(name, driver.Exclusive, long))
			}
			c.lose = func() (bool, bool) { return true, sent }
			q := swapIn(t, s, old, request(name, driver.Exclusive, long))
			<-q.done
			c.lose = nil
			if !q.reported || s.Classify(q.released) != driver.CodeUnknown || s.Classify(q.err) != driver.CodeUnknown {
				t.Fatalf("%s: the release: %t, %v; the request: %v; want unknown outcomes", name, q.reported, q.released, q.err)
			}
			if sent {
				// The swap arrives again, and finds its own grant or queue entry.
				if answer, err := c.last(); err != nil || answer[0] != "g" && answer[0] != "q" {
					t.Errorf("%s: the second swap: %q, %v", name, answer, err)
				}
			}
			undone(t, s, q.r)
			switch err := s.Release(t.Context(), old, 0); {
			case sent:
				code(t, s, err, driver.CodeNotHeld)
			case err != nil:
				t.Errorf("%s: the repeated release: %v", name, err)
			}
			if w != nil {
				release(t, other, w.granted())
			}
			next := must(t, s, request(name, driver.Exclusive, long))
			if answer, err := c.last(); err != nil || answer[0] != "V" {
				t.Errorf("%s: the late swap: %q, %v; want V", name, answer, err)
			}
			if next.Token <= old.Token {
				t.Errorf("%s: token %d after %d", name, next.Token, old.Token)
			}
			release(t, s, next)
			empty(t, other, name)
		}
	}
}

// TestSwapThatIsTooLateReleasesNothing: a swap arrives after its own deadline. The server refuses the
// release and the request.
func TestSwapThatIsTooLateReleasesNothing(t *testing.T) {
	r := start(t)
	p := &plain{r: r}
	s, err := redisstore.New(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	old := must(t, s, request("n", driver.Exclusive, long))
	p.hold = isSwap
	q := swapIn(t, s, old, request("n", driver.Exclusive, long))
	<-q.done
	// EVAL SOURCE 2 KEY COUNTER HEAD TTL LIFE UNTIL ...
	late := append([]string{}, p.kept...)
	late[8] = "1"
	if answer := strungTogether(do(t, r, late...)); answer[0] != "L" {
		t.Errorf("the answer to the late swap is %q", answer)
	}
	if err := s.Release(t.Context(), old, 0); err != nil {
		t.Errorf("the release after it: %v", err)
	}
	undone(t, s, q.r)
	empty(t, s, "n")
}

// TestHalvesOfASwapAreIndependent: the grant that a swap releases has already been broken or released.
// The request of the swap is granted, or waits behind the next holder, which keeps its grant.
func TestHalvesOfASwapAreIndependent(t *testing.T) {
	r := common(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	for i := range 4 {
		holds, broken := i&1 != 0, i&2 != 0
		name := fmt.Sprint(t.Name(), i)
		old := must(t, s, provisional(name))
		if !broken {
			release(t, s, old)
		} else if err := other.Break(t.Context(), name, old.Token); err != nil {
			t.Fatal(err)
		}
		var g driver.Grant
		if holds {
			// The next holder waits first, so that the name is in the state of a contended one.
			first := must(t, other, request(name, driver.Exclusive, long))
			w := queue(t, other, request(name, driver.Exclusive, long))
			release(t, other, first)
			g = w.granted()
		}
		q := swapIn(t, s, old, provisional(name))
		if !q.reported {
			t.Fatalf("the release has no outcome; the request: %v", q.err)
		}
		code(t, s, q.released, driver.CodeNotHeld)
		if holds {
			q.pending()
			if a := renewed(t, other, g); a.Err != nil {
				t.Errorf("the holder has lost its grant: %v", a.Err)
			}
			release(t, other, g)
		}
		next := q.granted()
		if next.Token <= max(old.Token, g.Token) {
			t.Errorf("token %d after %d and %d", next.Token, old.Token, g.Token)
		}
		release(t, s, next)
		empty(t, other, name)
	}
}

// TestSwapMayChangeLimitAndTTL: a client swaps a grant for one with another limit and TTL. An exclusive
// request waits until the other holders of the name have released it.
func TestSwapMayChangeLimitAndTTL(t *testing.T) {
	r := common(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	limits := []int{driver.Exclusive, 3, driver.Unlimited}
	for _, from := range limits {
		for _, to := range limits {
			name := fmt.Sprint(t.Name(), from, "-", to)
			var beside []driver.Grant
			if from != driver.Exclusive {
				beside = append(beside, must(t, other, request(name, from, long)))
			}
			old := must(t, s, request(name, from, long))
			q := swapped(t, s, old, request(name, to, long/2))
			if to == driver.Exclusive && len(beside) > 0 {
				q.pending()
			}
			for _, g := range beside {
				if a := renewed(t, other, g); a.Err != nil {
					t.Errorf("%s: the grant beside it has ended: %v", name, a.Err)
				}
				release(t, other, g)
			}
			g := q.granted()
			if g.Limit != to || g.TTL != long/2 || g.Token <= old.Token {
				t.Errorf("%s: %+v after token %d", name, g, old.Token)
			}
			st, err := other.Inspect(t.Context(), name)
			if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != g.Token || st.Holders[0].Limit != to {
				t.Errorf("%s: %+v, %v", name, st, err)
			}
			release(t, s, g)
			empty(t, other, name)
		}
	}
}

// TestRefusedSwapReleasesNothing removes each documented right from a client, or fills the memory of its
// server. The client then swaps a grant, with and without a waiter of another client. A refused swap has
// neither released the grant nor made a queue entry. If a swap reports the release, the release was
// made.
func TestRefusedSwapReleasesNothing(t *testing.T) {
	r := start(t)
	admin := open(t, "redis://"+r.Address())
	const full = "memory"
	for _, right := range append([]string{full}, documented...) {
		restrict(t, []*servers.Redis{r})
		s := open(t, "redis://app:app-secret@"+r.Address())
		for i := range 4 {
			waits, tagged := i&1 != 0, i&2 != 0
			name := fmt.Sprintf("%s-%t-%t", right, waits, tagged)
			next := request(name, driver.Exclusive, long)
			next.Provisional = tagged
			// The first swap brings the name into the state of a contended one.
			g := swapped(t, s, must(t, s, request(name, driver.Exclusive, long)), request(name, driver.Exclusive, long)).granted()
			var w *waiter
			if waits {
				q := request(name, driver.Exclusive, long)
				q.Provisional = tagged
				w = queue(t, admin, q)
			}
			if right == full {
				do(t, r, "CONFIG", "SET", "maxmemory", "1")
			} else {
				do(t, r, "ACL", "SETUSER", "app", "-"+right)
			}
			q := swapIn(t, s, g, next)
			st, err := admin.Inspect(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if right == full {
				do(t, r, "CONFIG", "SET", "maxmemory", "0")
			} else {
				do(t, r, "ACL", "SETUSER", "app", "+"+right)
			}
			stands := len(st.Holders) == 1 && st.Holders[0].Token == g.Token
			switch {
			case !q.reported:
				<-q.done
				if c := s.Classify(q.err); q.err == nil || c == driver.CodeUnknown {
					t.Errorf("%s: %v without the outcome of the release", name, q.err)
				}
				if !stands {
					t.Errorf("%s: after %v the grant does not stand: %+v", name, q.err, st)
				}
				if w != nil {
					w.pending()
				}
				if len(st.Waiters) > 0 != waits {
					t.Errorf("%s: after %v a queue entry is left, or lost: %+v", name, q.err, st)
				}
				release(t, s, g)
				if w != nil {
					release(t, admin, w.granted())
				}
			case q.released != nil:
				t.Errorf("%s: the release: %v", name, q.released)
			default:
				if stands || right == full {
					t.Errorf("%s: the release was reported: %+v", name, st)
				}
				if w != nil {
					release(t, admin, w.granted())
				}
				release(t, s, q.granted())
			}
			empty(t, admin, name)
		}
	}
}

// TestSwapLoadsMissingScript: the server has lost its scripts, as after a restart. The client sends the
// script again with the swap.
func TestSwapLoadsMissingScript(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	g := must(t, s, request("n", driver.Exclusive, long))
	for range 3 {
		do(t, r, "SCRIPT", "FLUSH")
		g = swapped(t, s, g, request("n", driver.Exclusive, long)).granted()
	}
	release(t, s, g)
	empty(t, s, "n")
}

// TestSwapWhileSlotMoves: the counter and the name are on two nodes, with and without a waiter. The swap
// releases and grants, and tokens rise.
func TestSwapWhileSlotMoves(t *testing.T) {
	c := cluster(t)
	url := "redis+cluster://" + c.Nodes[0].Address()
	s, other := open(t, url), open(t, url)
	for _, waits := range []bool{false, true} {
		name := fmt.Sprint(t.Name(), waits)
		key := redisstore.Key("", name)
		slot, from, to := slotMove(t, c, key)
		g := must(t, s, request(name, driver.Exclusive, long))
		var w *waiter
		if waits {
			w = queue(t, other, request(name, driver.Exclusive, long))
		}
		if err := c.BeginMove(t.Context(), slot, from, to); err != nil {
			t.Fatal(err)
		}
		if err := c.MoveKey(t.Context(), counterOf(name), from, to); err != nil {
			t.Fatal(err)
		}
		q := swapped(t, s, g, request(name, driver.Exclusive, long))
		if waits {
			got := w.granted()
			q.pending()
			if got.Token <= g.Token {
				t.Errorf("token %d after %d", got.Token, g.Token)
			}
			release(t, other, got)
			g = got
		}
		next := q.granted()
		if next.Token <= g.Token {
			t.Errorf("token %d after %d", next.Token, g.Token)
		}
		if err := c.EndMove(t.Context(), slot, from, to); err != nil {
			t.Fatal(err)
		}
		last := swapped(t, s, next, request(name, driver.Exclusive, long)).granted()
		if last.Token <= next.Token {
			t.Errorf("token %d after %d", last.Token, next.Token)
		}
		release(t, s, last)
	}
}

// TestSwapOfEndedGrantWhileSlotMoves: the counter and the name are on two nodes, and the grant to release has
// ended before. The token of the next grant is recorded in the counter.
func TestSwapOfEndedGrantWhileSlotMoves(t *testing.T) {
	c := cluster(t)
	s := open(t, "redis+cluster://"+c.Nodes[0].Address())
	name := t.Name()
	slot, from, to := slotMove(t, c, redisstore.Key("", name))
	g := must(t, s, request(name, driver.Exclusive, long))
	release(t, s, g)
	// If the name had no key, the server would send the client to the node that has the counter.
	stays := must(t, s, request(name, driver.Unlimited, long))
	if err := c.BeginMove(t.Context(), slot, from, to); err != nil {
		t.Fatal(err)
	}
	if err := c.MoveKey(t.Context(), counterOf(name), from, to); err != nil {
		t.Fatal(err)
	}
	q := swapIn(t, s, g, request(name, driver.Unlimited, long))
	if !q.reported {
		t.Fatalf("the release has no outcome; the request: %v", q.err)
	}
	code(t, s, q.released, driver.CodeNotHeld)
	next := q.granted()
	if err := c.EndMove(t.Context(), slot, from, to); err != nil {
		t.Fatal(err)
	}
	if last, _ := strconv.ParseUint(do(t, to, "GET", counterOf(name)).(string), 10, 64); last < next.Token {
		t.Errorf("the counter is %d, the token %d", last, next.Token)
	}
	release(t, s, next)
	release(t, s, stays)
}

// TestLockersSwapWithLostAnswers: goroutines of two Lockers contend for one name, with and without
// handoffs, while some swaps or the answers to them are lost.
func TestLockersSwapWithLostAnswers(t *testing.T) {
	url := "redis://" + start(t).Address()
	other := open(t, url)
	for _, o := range [][]holdfast.Option{nil, {holdfast.LocalHandoff(0)}} {
		var swaps atomic.Int32
		contention.WithLostAnswers(t, fmt.Sprint("n", len(o)), other, 3, func() contention.Client {
			s, c := intercepted(t, url)
			c.lose = func() (bool, bool) {
				n := swaps.Add(1)
				return n%16 == 0, n%32 == 0
			}
			return contention.Client{Store: s}
		}, o...)
	}
}
