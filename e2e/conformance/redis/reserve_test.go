package redis

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestReservedTokensStayBehindTheClock: after a flush the server has no tokens, and grants a new client
// the time of its clock as the token. So no reserved token may be ahead of the clock. A grant has one
// token if the bucket has no counter.
func TestReservedTokensStayBehindTheClock(t *testing.T) {
	r := start(t)
	url := "redis://" + r.Address()
	last, several := uint64(0), 0
	for range 20 {
		a, b := open(t, url), open(t, url)
		reserving := func() driver.Request {
			q := request("flushed", driver.Exclusive, long)
			q.Tokens = 1 << 16
			return q
		}
		above := func(g driver.Grant) driver.Grant {
			t.Helper()
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Last()
			return g
		}
		g := above(must(t, a, reserving()))
		if g.Tokens > 1 {
			t.Errorf("%d tokens reserved without a counter", g.Tokens)
		}
		w := queue(t, b, reserving()) // granted by the release, and confirmed
		release(t, a, g)
		g = above(w.Granted())
		several += g.Tokens
		own := queue(t, b, reserving()) // of the client that releases
		release(t, b, g)
		g = above(own.Granted())
		several += g.Tokens
		do(t, r, "FLUSHALL")
	}
	if several < 100 {
		t.Errorf("%d tokens in 40 grants", several)
	}
}

// TestReservedTokensWithoutTheCounter: while a hash slot moves, a script cannot use the bucket's
// counter. The tokens of a grant without the counter, and of the grant after it, still rise.
func TestReservedTokensWithoutTheCounter(t *testing.T) {
	c := cluster(t)
	const name = "reserved-moving"
	slot, from, to := slotMove(t, c, redisstore.Key("", name))
	url := "redis+cluster://" + c.Nodes[0].Address()
	a, b := open(t, url), open(t, url)
	reserving := func() driver.Request {
		q := request(name, driver.Exclusive, long)
		q.Tokens = 64
		return q
	}
	first := must(t, a, reserving())
	check(t, c.BeginMove(t.Context(), slot, from, to))
	w := queue(t, b, reserving())
	release(t, a, first)
	moving := w.Granted()
	if moving.Token <= first.Last() {
		t.Errorf("token %d after %d", moving.Token, first.Last())
	}
	check(t, c.EndMove(t.Context(), slot, from, to))
	release(t, b, moving)
	if g := must(t, a, reserving()); g.Token <= moving.Last() {
		t.Errorf("token %d after %d", g.Token, moving.Last())
	} else {
		release(t, a, g)
	}
}

// TestWaiterNotifiesAHolderThatMayKeep: the first waiter behind a grant with reserved tokens that is older than a handoff sends
// its holder's client the name. The watch of that client then reports a change without a poll that has found one.
func TestWaiterNotifiesAHolderThatMayKeep(t *testing.T) {
	r := common(t)
	holder, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	raw := goredis.NewClient(&goredis.Options{Addr: r.Address()})
	defer raw.Close()
	messages := raw.PSubscribe(t.Context(), "holdfast:wake:*")
	defer messages.Close()
	_, err := messages.Receive(t.Context())
	check(t, err)
	q := request(t.Name(), driver.Exclusive, long)
	q.Tokens = 65
	g := must(t, holder, q)
	for g.Tokens == 1 { // the bucket had no counter
		release(t, holder, g)
		q = request(t.Name(), driver.Exclusive, long)
		q.Tokens = 65
		g = must(t, holder, q)
	}
	time.Sleep(2 * driver.HandoffTime) // the time for handoffs is over
	w := queue(t, other, request(t.Name(), driver.Exclusive, long))
	wait, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var got *goredis.Message
	for got == nil || got.Payload != "r"+t.Name() {
		got, err = messages.ReceiveMessage(wait)
		check(t, err)
	}

	changed, ended := make(chan struct{}, 100), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- holder.Watch(ctx, t.Name(), func() { changed <- struct{}{} }) }()
	<-changed
	check(t, raw.Publish(t.Context(), got.Channel, got.Payload).Err()) // nothing has changed
	select {
	case <-changed:
	case <-time.After(testTimeout):
		t.Error("the watch reports nothing after the message")
	}
	cancel()
	<-ended
	release(t, holder, g)
	release(t, other, w.Granted())
}
