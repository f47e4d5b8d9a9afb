package redis

import (
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
)

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
	check(t, s.Release(t.Context(), short, 5*time.Second))
	wantLife("a release that leaves the grant standing")
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
		check(t, end(q, g))
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
			release(t, other, w.Granted())
		}
	}
}
