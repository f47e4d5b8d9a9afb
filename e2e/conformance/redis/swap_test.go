package redis

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/redisstore"
)

// isSwap reports whether a call releases a grant and requests another one.
func isSwap(s *redisstore.Script, args []string) bool {
	return s.Name == "acquire" && len(args) == 13
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
	var acquires, releases atomic.Int32
	url := "redis://" + common(t).Address()
	o := openSteps(t, url, overNative, func(s *redisstore.Script, _ []string, send func() error) error {
		switch s.Name {
		case "acquire":
			acquires.Add(1)
		case "release":
			releases.Add(1)
		}
		return send()
	})
	s := opened(t, o, nil).store.(*redisstore.Store)
	for _, tokens := range []int{1, 64} {
		q := func() driver.Request {
			r := provisional(fmt.Sprint(t.Name(), tokens))
			r.Tokens = tokens
			return r
		}
		g := must(t, s, q())
		acquires.Store(0)
		releases.Store(0)
		const n = 20
		for range n {
			next := swapped(t, s, g, q()).Granted()
			if next.Token <= g.Last() {
				t.Errorf("token %d after %d to %d", next.Token, g.Token, g.Last())
			}
			if next.Provisional || next.TTL != long {
				t.Errorf("the grant by a swap: %+v", next)
			}
			g = next
		}
		if a, r := acquires.Load(), releases.Load(); a != n || r != 0 {
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
		other := w.Granted()
		next.Pending()
		rises(t, g, other)
		release(t, b, other)
		if g = next.Granted(); other.Provisional {
			release(t, a, g)
			return
		}
		if time.Now().After(end) {
			t.Fatal("no waiter has started with the message of a swap")
		}
	}
}

// TestSwapThatIsTooLateReleasesNothing: a swap arrives after its own deadline. The server refuses the
// release and the request.
func TestSwapThatIsTooLateReleasesNothing(t *testing.T) {
	r := start(t)
	p := newPlain(t, r)
	s, err := redisstore.NewOver(p)
	check(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	old := must(t, s, request("n", driver.Exclusive, long))
	p.hold = isSwap
	_, q := requests.Swap(t, s, old, request("n", driver.Exclusive, long))
	<-q.Done
	// EVAL SOURCE 2 KEY COUNTER HEAD TTL LIFE UNTIL ...
	late := append([]string{}, p.kept...)
	late[8] = "1"
	if answer := strungTogether(do(t, r, late...)); answer[0] != "L" {
		t.Errorf("the answer to the late swap is %q", answer)
	}
	if err := s.Release(t.Context(), old, 0); err != nil {
		t.Errorf("the release after it: %v", err)
	}
	undone(t, s, q.Request)
	empty(t, s, "n")
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
	check(t, c.BeginMove(t.Context(), slot, from, to))
	check(t, c.MoveKey(t.Context(), counterOf(name), from, to))
	released, q := requests.Swap(t, s, g, request(name, driver.Unlimited, long))
	code(t, s, <-released, driver.CodeNotHeld)
	next := q.Granted()
	check(t, c.EndMove(t.Context(), slot, from, to))
	if last, _ := strconv.ParseUint(do(t, to, "GET", counterOf(name)).(string), 10, 64); last < next.Token {
		t.Errorf("the counter is %d, the token %d", last, next.Token)
	}
	release(t, s, next)
	release(t, s, stays)
}
