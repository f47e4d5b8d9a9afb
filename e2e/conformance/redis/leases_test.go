package redis

import (
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
)

// TestValidityRunsFromTheSend delays every answer. The validity of a grant begins no later than the send
// of its request. That holds for an immediate grant, after a wait, for a grant in a release, and after a
// renewal.
func TestValidityRunsFromTheSend(t *testing.T) {
	const delay = 200 * time.Millisecond
	r := start(t)
	p := behindProxy(t, r)
	s, other := open(t, "redis://"+p.Address()), open(t, "redis://"+r.Address())
	release(t, s, must(t, s, request("warm", driver.Exclusive, long)))
	wantOld := func(what string, sent driver.Instant) {
		t.Helper()
		if age := time.Since(sent.Time()); age < delay {
			t.Errorf("%s: the validity began %s ago, and the answer took %s", what, age, delay)
		}
	}
	if err := p.Delay(delay); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{driver.Exclusive, 3} {
		g := must(t, s, request("x", limit, long))
		wantOld("granted at once", g.SentAt)
		wantOld("renewed", s.Renew(t.Context(), []driver.Grant{g})[0].SentAt)
		release(t, s, g)
		both := s.Renew(t.Context(), []driver.Grant{must(t, s, request("y", limit, long)), must(t, s, request("z", limit, long))})
		wantOld("renewed with another", both[0].SentAt)
		wantOld("renewed with another", both[1].SentAt)
		for _, name := range []string{"y", "z"} {
			st, err := s.Inspect(t.Context(), name)
			if err != nil || len(st.Holders) != 1 {
				t.Fatalf("%+v, %v", st, err)
			}
			if err := other.Break(t.Context(), name, st.Holders[0].Token); err != nil {
				t.Fatal(err)
			}
		}
	}
	held := must(t, other, request("x", driver.Exclusive, long))
	w := queue(t, s, request("x", driver.Exclusive, long))
	release(t, other, held)
	g := w.granted()
	wantOld("granted after a wait", g.SentAt)
	w = queue(t, s, request("x", driver.Exclusive, long))
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	wantOld("granted in a release", w.granted().SentAt)
}

// TestRenewalKeepsKeyForOtherGrants: the renewal of a short lease keeps the key alive for the longer
// leases of other holders. A queue entry and a release keep it alive, too.
func TestRenewalKeepsKeyForOtherGrants(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	wantLife := func(after string) {
		t.Helper()
		if left, _ := do(t, r, "PTTL", nameKey(t, r)).(int64); left < (9 * time.Minute).Milliseconds() {
			t.Errorf("after %s the key expires in %d ms", after, left)
		}
	}
	must(t, s, request("x", driver.Unlimited, 10*time.Minute))
	short := must(t, s, request("x", driver.Unlimited, time.Second))
	wantLife("a second grant")
	for range 3 {
		if a := s.Renew(t.Context(), []driver.Grant{short})[0]; a.Err != nil {
			t.Fatal(a.Err)
		}
		wantLife("a renewal")
	}
	queue(t, s, request("x", driver.Exclusive, time.Second))
	wantLife("a queue entry")
	if err := s.Release(t.Context(), short, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	wantLife("a release that leaves the grant standing")
}

// TestWaitedGrantHasItsWholeTTL: a waiter's grant has a short lease until the client confirms it, and
// then the TTL of the request.
func TestWaitedGrantHasItsWholeTTL(t *testing.T) {
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	for _, limit := range []int{driver.Exclusive, 3, driver.Unlimited} {
		g := must(t, s, request("x", driver.Exclusive, long))
		w := queue(t, other, request("x", limit, long))
		release(t, s, g)
		next := w.granted()
		st, err := s.Inspect(t.Context(), "x")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].TTL < long/2 {
			t.Errorf("limit %d: %+v, %v; want a lease of %s", limit, st, err, long)
		}
		if left, _ := do(t, r, "PTTL", nameKey(t, r)).(int64); left < (long / 2).Milliseconds() {
			t.Errorf("limit %d: the key expires in %d ms", limit, left)
		}
		release(t, other, next)
	}
}

// TestReleaseGrantsToAllReaders: a release grants to every reader at the head of the queue in the same
// call. An undo and a break also grant to them.
func TestReleaseGrantsToAllReaders(t *testing.T) {
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	for what, end := range map[string]func(driver.Request, driver.Grant) error{
		"release": func(_ driver.Request, g driver.Grant) error { return s.Release(t.Context(), g, 0) },
		"undo":    func(q driver.Request, _ driver.Grant) error { return s.Undo(t.Context(), q) },
		"break":   func(_ driver.Request, g driver.Grant) error { return s.Break(t.Context(), g.Name, g.Token) },
	} {
		q := request(what, driver.Exclusive, long)
		g := must(t, s, q)
		var all []*waiter
		for range 3 {
			all = append(all, queue(t, other, request(what, driver.Unlimited, long)))
		}
		client := goredis.NewClient(&goredis.Options{Addr: r.Address()})
		sub := client.PSubscribe(t.Context(), "holdfast:wake:*")
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := end(q, g); err != nil {
			t.Fatal(err)
		}
		st, err := s.Inspect(t.Context(), what)
		if err != nil || len(st.Holders) != 3 {
			t.Errorf("after the %s: %+v, %v; want three holders", what, st, err)
		}
		woken := map[string]bool{}
		for messages := sub.Channel(); len(woken) < 3; {
			select {
			case m := <-messages:
				if strings.HasPrefix(m.Payload, "w") {
					woken[m.Payload] = true
				}
			case <-time.After(testTimeout):
				t.Fatalf("after the %s the server wakes %d of 3 readers", what, len(woken))
			}
		}
		_ = sub.Close()
		_ = client.Close()
		for _, w := range all {
			release(t, other, w.granted())
		}
	}
}

// TestStoreSubscribesAgain: a store subscribes again after the server has ended its subscription.
func TestStoreSubscribesAgain(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	must(t, s, request("x", driver.Exclusive, long))
	subscribed := func() bool {
		all, _ := do(t, r, "PUBSUB", "CHANNELS", "holdfast:wake:*").([]any)
		return len(all) == 1
	}
	for range 3 {
		eventually(t, "the store has no subscription", subscribed)
		do(t, r, "CLIENT", "KILL", "TYPE", "pubsub")
	}
	eventually(t, "the store does not subscribe again", subscribed)
}

// TestWaiterRefreshesItsQueueEntry: a queue entry lives for some seconds. Its client refreshes it although
// no message arrives, and the entry keeps its position.
func TestWaiterRefreshesItsQueueEntry(t *testing.T) {
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	g := must(t, s, request("x", driver.Exclusive, long))
	first := queue(t, other, request("x", driver.Exclusive, long))
	second := queue(t, s, request("x", driver.Exclusive, long))
	key := nameKey(t, r)
	deadline := func() int64 {
		entry, _ := do(t, r, "HGET", key, "q1").(string)
		part := strings.Split(entry, " ")
		if len(part) < 7 || part[0] != first.r.ID {
			t.Fatalf("the first entry is %q", entry)
		}
		n, err := strconv.ParseInt(part[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	made := deadline()
	eventually(t, "the entry is not refreshed", func() bool { return deadline() > made+3_000_000 })
	release(t, s, g)
	release(t, other, first.granted())
	release(t, s, second.granted())
}
