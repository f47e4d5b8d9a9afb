package redis

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// TestRestartKeepsWhatIsPersisted: a server that is killed keeps a lock if its append-only file has it, and
// loses it if the last snapshot does not have it. The guarantees report the kind of persistence.
func TestRestartKeepsWhatIsPersisted(t *testing.T) {
	for durable, settings := range map[string][]string{
		"an append-only file": {"--appendonly", "yes", "--appendfsync", "always"},
		"snapshots at most":   nil,
	} {
		r := start(t, settings...)
		s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
		g, err := s.Guarantees(t.Context())
		check(t, err)
		if !strings.Contains(strings.Join(g.Notes, "\n"), "a restart keeps the locks that the server's persistence has: "+durable) {
			t.Errorf("%s: the guarantees do not report it: %q", durable, g.Notes)
		}
		q := request("x", driver.Exclusive, long)
		held := must(t, s, q)
		w := queue(t, other, request("x", driver.Exclusive, long))
		check(t, r.Restart(t.Context()))
		if settings == nil {
			lost(t, q, driver.CauseGone)
			w.Granted()
			continue
		}
		if a := renewed(t, s, held); a.Err != nil {
			t.Errorf("%s: the lock was lost: %v", durable, a.Err)
		}
		w.Pending()
		release(t, s, held)
		w.Granted()
	}
}

// TestFarWaiterWithoutMessagesIsGranted: a waiter refreshes its entry seldom, because many others are before
// it. All of them leave at once, and no message arrives. The waiter is granted at its next refresh.
func TestFarWaiterWithoutMessagesIsGranted(t *testing.T) {
	t.Parallel()
	r := start(t)
	do(t, r, "ACL", "SETUSER", "nomessages", "on", ">secret", "~*", "+@all", "&nothing")
	url := "redis://nomessages:secret@" + r.Address()
	holder, crowd := open(t, url), open(t, url)
	g := must(t, holder, request("x", driver.Exclusive, long))
	for range 40 {
		queue(t, crowd, request("x", driver.Exclusive, long))
	}
	w := queue(t, open(t, url), request("x", driver.Exclusive, long))
	check(t, crowd.Close(t.Context()))
	w.Pending()
	release(t, holder, g)
	w.Granted()
}

// TestHolderNoticesBreakWithoutMessages: no message reaches the holder of a broken lock. A check of the
// grant or a renewal still notifies it.
func TestHolderNoticesBreakWithoutMessages(t *testing.T) {
	t.Parallel()
	r := start(t)
	do(t, r, "ACL", "SETUSER", "nomessages", "on", ">secret", "~*", "+@all", "&nothing")
	s, operator := open(t, "redis://nomessages:secret@"+r.Address()), open(t, "redis://"+r.Address())
	for _, limit := range []int{driver.Exclusive, 2} {
		q := request("x", limit, long)
		g := must(t, s, q)
		check(t, operator.Break(t.Context(), "x", g.Token))
		next := must(t, operator, request("x", driver.Exclusive, long)) // the name is free
		if a := s.Renew(t.Context(), []driver.Grant{g})[0]; s.Classify(a.Err) != driver.CodeNotHeld || a.Cause != driver.CauseTaken {
			t.Errorf("renewed: %v, cause %q", a.Err, a.Cause)
		}
		lost(t, q, driver.CauseTaken)
		check(t, operator.Release(t.Context(), next, 0))
	}
}

// TestBreakOfUnansweredGrantEndsWait: the answer with a grant is lost, and an operator breaks that grant.
// The server refuses the request's ID. A request with another ID is granted at once.
func TestBreakOfUnansweredGrantEndsWait(t *testing.T) {
	r := start(t)
	p := proxy(t, r)
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+p.Address())
	g := must(t, a, request("x", driver.Exclusive, long))
	q := request("x", driver.Exclusive, long)
	w := queue(t, b, q)
	check(t, p.DropAnswers())
	check(t, a.Release(t.Context(), g, 0))
	var token uint64
	eventually(t, "the grant is confirmed", func() bool {
		st, err := a.Inspect(t.Context(), "x")
		check(t, err)
		for _, h := range st.Holders {
			if h.ID == q.ID && h.TTL > long/2 { // the client has confirmed it; an unconfirmed grant has less
				token = h.Token
			}
		}
		return token > 0
	})
	check(t, a.Break(t.Context(), "x", token))
	check(t, p.Heal())
	if c := b.Classify(w.Ended()); c != driver.CodeUnavailable && c != driver.CodeUnknown {
		t.Errorf("%+v, %v; want an error", w.Grant, w.Err)
	}
	release(t, b, must(t, b, request("x", driver.Exclusive, long)))
}

// TestTombstoneExpiresWithoutCleanup: the tombstone of an undone request has no effect after its time,
// even if no request has removed it.
func TestTombstoneExpiresWithoutCleanup(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	q := request("x", driver.Exclusive, long)
	must(t, s, request("x", driver.Exclusive, long))
	check(t, s.Undo(t.Context(), q))
	if _, err := s.Acquire(t.Context(), q); s.Classify(err) != driver.CodeUnavailable {
		t.Fatalf("an undone request: %v", err)
	}
	key := do(t, r, "KEYS", "holdfast:{???}:*").([]any)[0].(string)
	do(t, r, "HSET", key, "v"+q.ID, "1")
	if _, err := s.Acquire(t.Context(), q); s.Classify(err) != driver.CodeBusy {
		t.Errorf("a request with an expired tombstone: %v", err)
	}
}

// TestUnacknowledgedGrantIsRolledBack: a grant that no replica acknowledges fails and is removed. A renewal
// that no replica acknowledges fails.
func TestUnacknowledgedGrantIsRolledBack(t *testing.T) {
	t.Parallel()
	g := replicas(t)
	url, wait := "redis://"+g.Primary.Address(), redisstore.WaitReplicas(1, 100*time.Millisecond)
	for client, open := range map[string]func() store{
		"native": func() store { return open(t, url, wait) },
		"layout": func() store { return openLayout(t, url, layouts.Redisson, wait) },
	} {
		t.Run(client, func(t *testing.T) {
			s := open()
			held := acknowledged(t, s, "held-"+client)
			check(t, g.Replicas[0].Pause())
			_, err := s.Acquire(t.Context(), request(client, driver.Exclusive, long))
			code(t, s, err, driver.CodeUnavailable)
			if st, err := s.Inspect(t.Context(), client); err != nil || len(st.Holders) != 0 {
				t.Errorf("%+v, %v", st, err)
			}
			code(t, s, s.Renew(t.Context(), []driver.Grant{held})[0].Err, driver.CodeUnavailable)
			check(t, g.Replicas[0].Cont())
			acknowledged(t, s, client)
		})
	}
}

// TestWaiterWithoutAcknowledgementQueuesAgain: the grant of the first waiter is rolled back while no replica
// acknowledges it. The waiter makes a new queue entry, behind the second one, and gets the lock later.
func TestWaiterWithoutAcknowledgementQueuesAgain(t *testing.T) {
	g := replicas(t)
	url, wait := "redis://"+g.Primary.Address(), redisstore.WaitReplicas(1, 100*time.Millisecond)
	a, b, c := open(t, url, wait), open(t, url, wait), open(t, url, wait)
	held := acknowledged(t, a, "x")
	first, second := queue(t, b, request("x", driver.Exclusive, long)), queue(t, c, request("x", driver.Exclusive, long))
	check(t, g.Replicas[0].Pause())
	check(t, a.Release(t.Context(), held, 0))
	for behind, end := false, time.Now().Add(testTimeout); !behind; {
		st, err := a.Inspect(t.Context(), "x")
		if err != nil || time.Now().After(end) {
			t.Fatal(st, err)
		}
		behind = len(st.Waiters) > 0 && st.Waiters[len(st.Waiters)-1].Owner.ID == first.Request.ID
	}
	check(t, g.Replicas[0].Cont())
	one, other, s := first, second, b
	select {
	case <-first.Done:
	case <-second.Done:
		one, other, s = second, first, c
	case <-time.After(testTimeout):
		t.Fatal("no waiter is granted the lock")
	}
	check(t, s.Release(t.Context(), one.Granted(), 0))
	other.Granted()
}

// TestReleaseThatKeepsGrantIsAcknowledged: a release with a minimum hold fails until a replica has it, also
// when it is repeated. After that the promoted replica keeps the grant.
func TestReleaseThatKeepsGrantIsAcknowledged(t *testing.T) {
	g := replicas(t)
	wait := redisstore.WaitReplicas(1, 100*time.Millisecond)
	s := open(t, "redis://"+g.Primary.Address(), wait)
	held := acknowledged(t, s, "x")
	check(t, g.Replicas[0].Pause())
	for range 2 {
		code(t, s, s.Release(t.Context(), held, long), driver.CodeUnavailable)
	}
	check(t, g.Replicas[0].Cont())
	eventually(t, "the release is not acknowledged", func() bool {
		err := s.Release(t.Context(), held, long)
		if err != nil {
			code(t, s, err, driver.CodeUnavailable)
		}
		return err == nil
	})
	g.Primary.Kill()
	do(t, g.Replicas[0], "REPLICAOF", "NO", "ONE")
	other := open(t, "redis://"+g.Replicas[0].Address())
	if _, err := other.Acquire(t.Context(), request("x", driver.Exclusive, long)); !errors.As(err, new(*driver.BusyError)) {
		t.Errorf("after the failover: %v, want a name that is held", err)
	}
}

// TestLossOfAllDataIsNoticed: a server loses its data, or one without the grant takes its place. The holder is
// notified without a renewal, which is refused then like a release. Its waiter gets a larger token, except with
// RFencedLock, whose counter is lost, too.
func TestLossOfAllDataIsNoticed(t *testing.T) {
	losses := map[string]func(t *testing.T, r *servers.Redis, p *servers.Proxy){
		"flush":    func(t *testing.T, r *servers.Redis, _ *servers.Proxy) { do(t, r, "FLUSHALL") },
		"restart":  func(t *testing.T, r *servers.Redis, _ *servers.Proxy) { check(t, r.RestartEmpty(t.Context())) },
		"failover": func(t *testing.T, _ *servers.Redis, p *servers.Proxy) { check(t, p.Redirect(start(t).Address())) },
	}
	for _, l := range append(layouts.All(), "native") {
		for loss, lose := range losses {
			if l != "native" && l != layouts.Redisson && loss != "flush" {
				continue // the layouts share this code
			}
			t.Run(string(l)+"/"+loss, func(t *testing.T) {
				t.Parallel()
				r := start(t)
				p := proxy(t, r)
				var s store = open(t, "redis://"+p.Address())
				if l != "native" {
					s = openLayout(t, "redis://"+p.Address(), l, withFairWait(l)...)
				}
				q := request("x", driver.Exclusive, long)
				g := must(t, s, q)
				w := queue(t, s, request("x", driver.Exclusive, long))
				lose(t, r, p)
				lost(t, q, driver.CauseGone)
				if a := renewed(t, s, g); s.Classify(a.Err) != driver.CodeNotHeld {
					t.Errorf("a renewal of a lost grant: %+v", a)
				}
				next := w.Granted()
				code(t, s, s.Release(t.Context(), g, 0), driver.CodeNotHeld)
				if l != layouts.RedissonFenced {
					rises(t, g, next)
				}
				release(t, s, next)
			})
		}
	}
}

// acknowledged repeats the request until a replica has the grant. A replica that has just been linked or
// continued may take longer than one request waits.
func acknowledged(t *testing.T, s driver.Store, name string) (g driver.Grant) {
	t.Helper()
	eventually(t, "a replica has the grant", func() bool {
		var err error
		if g, err = s.Acquire(t.Context(), request(name, driver.Exclusive, long)); err != nil {
			code(t, s, err, driver.CodeUnavailable)
		}
		return err == nil
	})
	return g
}
