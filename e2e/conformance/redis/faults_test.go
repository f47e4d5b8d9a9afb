package redis

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/redisstore"
	adapter "github.com/holdfast-go/holdfast/redisstore/goredis"
)

// testTimeout limits every wait for an event that must happen.
const testTimeout = time.Minute

// long is a TTL that outlasts a test.
const long = time.Minute

func must(t *testing.T, s driver.Store, r driver.Request) driver.Grant {
	t.Helper()
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", r.Name, err)
	}
	return g
}

func code(t *testing.T, s driver.Store, err error, want driver.Code) {
	t.Helper()
	if err == nil || s.Classify(err) != want {
		t.Fatalf("%v (%v), want %v", err, s.Classify(err), want)
	}
}

// waiter is a request that waits on a goroutine of its own.
type waiter struct {
	t    *testing.T
	r    driver.Request
	done chan struct{}
	g    driver.Grant
	err  error
}

// submit sends a request that may wait.
func submit(t *testing.T, s driver.Store, r driver.Request) *waiter {
	w := &waiter{t: t, r: r, done: make(chan struct{})}
	w.r.Wait = true
	go func() {
		defer close(w.done)
		w.g, w.err = s.Acquire(t.Context(), w.r)
	}()
	return w
}

// queue sends a request and returns when it has a queue entry.
func queue(t *testing.T, s driver.Store, r driver.Request) *waiter {
	t.Helper()
	w := submit(t, s, r)
	queued := requests.Of(r).Waits
	select {
	case <-queued:
	case <-w.done:
		select {
		case <-queued: // the request waited, and is granted already
		default:
			t.Fatalf("the request did not wait: %+v, %v", w.g, w.err)
		}
	case <-time.After(testTimeout):
		t.Fatal("the request has no queue entry")
	}
	return w
}

func (w *waiter) granted() driver.Grant {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(testTimeout):
		w.t.Fatal("not granted")
	}
	if w.err != nil {
		w.t.Fatal(w.err)
	}
	return w.g
}

func (w *waiter) pending() {
	w.t.Helper()
	select {
	case <-w.done:
		w.t.Fatalf("the request did not wait: %+v, %v", w.g, w.err)
	default:
	}
}

func lost(t *testing.T, r driver.Request, want driver.Cause) {
	t.Helper()
	select {
	case c := <-requests.Of(r).Losses:
		if c != want {
			t.Fatalf("the holder lost its lock with cause %q, want %q", c, want)
		}
	case <-time.After(testTimeout):
		t.Fatal("the holder was not notified")
	}
}

// undone repeats an undo until the server confirms it.
func undone(t *testing.T, s driver.Store, r driver.Request) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := s.Undo(ctx, r)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func behindProxy(t *testing.T, r *servers.Redis) *servers.Proxy {
	t.Helper()
	p, err := servers.NewProxy(r.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// short returns a context for one attempt.
func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// TestLostAnswerIsUnknown: the server applies requests, and their answers are lost. The store reports an
// unknown outcome, and later requests resolve it.
func TestLostAnswerIsUnknown(t *testing.T) {
	r := common(t)
	direct := open(t, "redis://"+r.Address())
	for _, wait := range []bool{false, true} {
		p := behindProxy(t, r)
		s := open(t, "redis://"+p.Address())
		name := t.Name() + map[bool]string{true: "-wait"}[wait]
		held := must(t, s, request(name+"-held", driver.Exclusive, long))
		// Use every connection of the client once, so that each has finished its handshake. A
		// request on a connection without that is never sent.
		for range 64 {
			if _, err := s.Inspect(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}

		drop := func() {
			t.Helper()
			if err := p.DropAnswers(); err != nil {
				t.Fatal(err)
			}
		}
		heal := func() {
			t.Helper()
			if err := p.Heal(); err != nil {
				t.Fatal(err)
			}
		}
		drop()
		q := request(name, driver.Exclusive, long)
		q.Wait = wait
		// Cancel the request after the server has applied it. No other client is granted the name until
		// the client has undone the request.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		acquired := make(chan error, 1)
		go func() {
			_, err := s.Acquire(ctx, q)
			acquired <- err
		}()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			st, err := direct.Inspect(t.Context(), name)
			if err == nil && len(st.Holders) == 1 && st.Holders[0].ID == q.ID {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%+v, %v", st, err)
			}
		}
		cancel()
		code(t, s, <-acquired, driver.CodeUnknown)
		heal()
		undone(t, s, q)
		g := must(t, direct, request(name, driver.Exclusive, long))
		if err := direct.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}

		drop()
		a := s.Renew(short(t), []driver.Grant{held})
		code(t, s, a[0].Err, driver.CodeUnknown)
		heal()
		for end := time.Now().Add(testTimeout); ; {
			if a = s.Renew(short(t), []driver.Grant{held}); a[0].Err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(a[0].Err)
			}
		}
		drop()
		code(t, s, s.Release(short(t), held, 0), driver.CodeUnknown)
		heal()
		for end := time.Now().Add(testTimeout); ; {
			err := s.Release(short(t), held, 0)
			if err != nil && s.Classify(err) == driver.CodeNotHeld {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
}

// TestDelayedRequestAfterUndoIsRefused: a request is delayed, and undone over another connection. The
// server refuses it when it arrives.
func TestDelayedRequestAfterUndoIsRefused(t *testing.T) {
	r := common(t)
	gate := newGate(t, r.Address())
	slow, direct := open(t, "redis://"+gate.Address()), open(t, "redis://"+r.Address())
	must(t, slow, request(t.Name()+"-warm", driver.Exclusive, long)) // connects

	for _, limit := range []int{driver.Exclusive, driver.Unlimited, 3} {
		gate.hold()
		q := request(t.Name(), limit, long)
		q.Wait = limit == driver.Exclusive
		_, err := slow.Acquire(short(t), q)
		code(t, slow, err, driver.CodeUnknown)
		undone(t, direct, q)
		gate.release() // the request arrives now, after its Undo was confirmed
		if err := slow.Release(t.Context(), must(t, slow, request(t.Name()+"-other", driver.Exclusive, long)), 0); err != nil {
			t.Fatal(err)
		}
		st, err := direct.Inspect(t.Context(), t.Name())
		if err != nil || len(st.Holders)+len(st.Waiters) != 0 {
			t.Fatalf("limit %d: granted after it was undone: %+v, %v", limit, st, err)
		}
	}
}

func TestEmptyRestartLosesLockAndServesWaiter(t *testing.T) {
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	q := request("x", driver.Exclusive, long)
	g := must(t, s, q)
	w := queue(t, other, request("x", driver.Exclusive, long))
	if err := r.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	lost(t, q, driver.CauseGone)
	next := w.granted() // the waiter keeps waiting, and is granted
	if next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}

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
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(g.Notes, "\n"), "a restart keeps the locks that the server's persistence has: "+durable) {
			t.Errorf("%s: the guarantees do not report it: %q", durable, g.Notes)
		}
		q := request("x", driver.Exclusive, long)
		held := must(t, s, q)
		w := queue(t, other, request("x", driver.Exclusive, long))
		if err := r.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if settings == nil {
			lost(t, q, driver.CauseGone)
			w.granted()
			continue
		}
		var a driver.Renewal
		eventually(t, "the holder cannot renew after the restart", func() bool {
			a = s.Renew(t.Context(), []driver.Grant{held})[0]
			return a.Err == nil || driver.CodeOf(a.Err) == driver.CodeNotHeld
		})
		if a.Err != nil {
			t.Errorf("%s: the lock was lost: %v", durable, a.Err)
		}
		w.pending()
		release(t, s, held)
		w.granted()
	}
}

func TestFlushLosesLockAndServesWaiter(t *testing.T) {
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	q := request("x", driver.Exclusive, long)
	g := must(t, s, q)
	w := queue(t, other, request("x", driver.Exclusive, long))
	do(t, r, "FLUSHALL")
	lost(t, q, driver.CauseGone)
	code(t, s, s.Renew(t.Context(), []driver.Grant{g})[0].Err, driver.CodeNotHeld)
	code(t, s, s.Release(t.Context(), g, 0), driver.CodeNotHeld)
	if next := w.granted(); next.Token <= g.Token {
		t.Errorf("token %d after %d", next.Token, g.Token)
	}
}

// TestTokensRiseAfterClockSetBack: tokens rise although the server has lost its data and its clock is
// behind.
func TestTokensRiseAfterClockSetBack(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	g := must(t, s, request("x", driver.Exclusive, long))
	do(t, r, "FLUSHALL")
	// A counter in the future has the effect of a clock that is behind.
	counter := redisstore.Key("", "x")[:len("holdfast:{000}")]
	do(t, r, "SET", counter, "8000000000000000")
	ahead := must(t, s, request("x", driver.Exclusive, long))
	if ahead.Token <= 8000000000000000 {
		t.Fatalf("token %d is not above the counter", ahead.Token)
	}
	do(t, r, "FLUSHALL")
	if again := must(t, s, request("x", driver.Exclusive, long)); again.Token <= ahead.Token || again.Token <= g.Token {
		t.Errorf("token %d after %d", again.Token, ahead.Token)
	}
	// The token of a waiter rises, too.
	do(t, r, "FLUSHALL")
	other := open(t, "redis://"+r.Address())
	first := must(t, other, request("x", driver.Exclusive, long))
	w := queue(t, s, request("x", driver.Exclusive, long))
	if err := other.Release(t.Context(), first, 0); err != nil {
		t.Fatal(err)
	}
	if again := w.granted(); again.Token <= ahead.Token {
		t.Errorf("token %d after %d", again.Token, ahead.Token)
	}
}

// TestWaiterGrantedAfterSubscriptionKilled: the server ends the subscriptions, and still grants to waiters.
func TestWaiterGrantedAfterSubscriptionKilled(t *testing.T) {
	r := start(t)
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	for range 5 {
		g := must(t, a, request("x", driver.Exclusive, long))
		w := queue(t, b, request("x", driver.Exclusive, long))
		do(t, r, "CLIENT", "KILL", "TYPE", "pubsub")
		if err := a.Release(t.Context(), g, 0); err != nil {
			if a.Classify(err) != driver.CodeUnknown {
				t.Fatal(err)
			}
			undone(t, a, driver.Request{ID: g.ID, Name: "x"}) // the kill has ended this connection, too
		}
		if err := b.Release(t.Context(), w.granted(), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWaitersGrantedWithoutMessages: no message arrives. Every waiter is granted at its next refresh.
func TestWaitersGrantedWithoutMessages(t *testing.T) {
	r := start(t)
	do(t, r, "ACL", "SETUSER", "nomessages", "on", ">secret", "~*", "+@all", "&nothing")
	a := open(t, "redis://nomessages:secret@"+r.Address())
	g := must(t, a, request("x", driver.Exclusive, long))
	var all []*waiter
	for range 3 {
		all = append(all, queue(t, open(t, "redis://nomessages:secret@"+r.Address()), request("x", driver.Exclusive, long)))
	}
	s := a
	for _, w := range all {
		if err := s.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
		g = w.granted()
	}
}

// TestHolderNoticesBreakWithoutMessages: no message reaches the holder of a broken lock. A check of the
// grant or a renewal still notifies it.
func TestHolderNoticesBreakWithoutMessages(t *testing.T) {
	r := start(t)
	do(t, r, "ACL", "SETUSER", "nomessages", "on", ">secret", "~*", "+@all", "&nothing")
	s, operator := open(t, "redis://nomessages:secret@"+r.Address()), open(t, "redis://"+r.Address())
	for _, limit := range []int{driver.Exclusive, 2} {
		q := request("x", limit, long)
		g := must(t, s, q)
		if err := operator.Break(t.Context(), "x", g.Token); err != nil {
			t.Fatal(err)
		}
		next := must(t, operator, request("x", driver.Exclusive, long)) // the name is free
		if a := s.Renew(t.Context(), []driver.Grant{g})[0]; s.Classify(a.Err) != driver.CodeNotHeld || a.Cause != driver.CauseTaken {
			t.Errorf("renewed: %v, cause %q", a.Err, a.Cause)
		}
		lost(t, q, driver.CauseTaken)
		if err := operator.Release(t.Context(), next, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBreakOfUnansweredGrantEndsWait: the answer with a grant is lost, and an operator breaks that grant.
// The server refuses the request's ID. A request with another ID is granted at once.
func TestBreakOfUnansweredGrantEndsWait(t *testing.T) {
	r := start(t)
	p := behindProxy(t, r)
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+p.Address())
	g := must(t, a, request("x", driver.Exclusive, long))
	q := request("x", driver.Exclusive, long)
	w := queue(t, b, q)
	if err := p.DropAnswers(); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	var token uint64
	for end := time.Now().Add(testTimeout); token == 0; time.Sleep(5 * time.Millisecond) {
		st, err := a.Inspect(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range st.Holders {
			if h.ID == q.ID && h.TTL > long/2 { // the client has confirmed it; an unconfirmed grant has less
				token = h.Token
			}
		}
		if time.Now().After(end) {
			t.Fatal("the grant is not confirmed")
		}
	}
	if err := a.Break(t.Context(), "x", token); err != nil {
		t.Fatal(err)
	}
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.done:
	case <-time.After(testTimeout):
		t.Fatal("the request still waits")
	}
	if c := b.Classify(w.err); c != driver.CodeUnavailable && c != driver.CodeUnknown {
		t.Errorf("%+v, %v; want an error", w.g, w.err)
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
	if err := s.Undo(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), q); s.Classify(err) != driver.CodeUnavailable {
		t.Fatalf("an undone request: %v", err)
	}
	key := do(t, r, "KEYS", "holdfast:{???}:*").([]any)[0].(string)
	do(t, r, "HSET", key, "v"+q.ID, "1")
	if _, err := s.Acquire(t.Context(), q); s.Classify(err) != driver.CodeBusy {
		t.Errorf("a request with an expired tombstone: %v", err)
	}
}

// TestDeadHeadDoesNotBlockNextWaiter: the client of the first waiter is dead. The next waiter is granted.
func TestDeadHeadDoesNotBlockNextWaiter(t *testing.T) {
	r := start(t)
	p := behindProxy(t, r)
	a, dead, b := open(t, "redis://"+r.Address()), open(t, "redis://"+p.Address()), open(t, "redis://"+r.Address())
	g := must(t, a, request("x", driver.Exclusive, long))
	queue(t, dead, request("x", driver.Exclusive, long))
	w := queue(t, b, request("x", driver.Exclusive, long))
	p.Cut() // the server sees that client as dead
	if err := a.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	w.granted()
}

// TestWaiterGrantedAfterHolderExpired: the holder's lease expires, and the server sends no message. The
// waiter is granted.
func TestWaiterGrantedAfterHolderExpired(t *testing.T) {
	url := "redis://" + common(t).Address()
	s, other := open(t, url), open(t, url)
	release(t, other, must(t, other, request(t.Name()+"-warm", driver.Exclusive, long))) // connects
	must(t, s, request(t.Name(), driver.Exclusive, 300*time.Millisecond))
	// The lease may have expired before the request arrives. Only the grant matters.
	release(t, other, submit(t, other, request(t.Name(), driver.Exclusive, long)).granted())
}

// TestPromotedReplicaKeepsAcknowledgedGrant: a replica acknowledges a grant and becomes the primary. The
// holder keeps its grant, and the waiter is next.
func TestPromotedReplicaKeepsAcknowledgedGrant(t *testing.T) {
	installed(t)
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	p := behindProxy(t, g.Primary)
	url := "redis://" + p.Address() + "?replicas=1"
	a, b := open(t, url), open(t, url)
	held := acknowledged(t, a, "x")
	w := queue(t, b, request("x", driver.Exclusive, long))

	g.Primary.Kill()
	if _, err := g.Replicas[0].Do(t.Context(), "REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	if err := p.Redirect(g.Replicas[0].Address()); err != nil {
		t.Fatal(err)
	}
	// The next grant waits for this replica of the new primary.
	more, err := servers.StartRedis(t.Context(), t.TempDir(), "--replicaof", strings.ReplaceAll(g.Replicas[0].Address(), ":", " "))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(more.Kill)
	if err := (&servers.RedisReplicas{Primary: g.Replicas[0], Replicas: []*servers.Redis{more}}).Linked(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The holder still has the acknowledged grant.
	for end := time.Now().Add(testTimeout); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		answer := a.Renew(ctx, []driver.Grant{held})
		cancel()
		if answer[0].Err == nil {
			break
		}
		if a.Classify(answer[0].Err) == driver.CodeNotHeld || time.Now().After(end) {
			t.Fatal(answer[0].Err)
		}
	}
	w.pending()
	if err := a.Release(t.Context(), held, 0); err != nil {
		t.Fatal(err)
	}
	if next := w.granted(); next.Token <= held.Token {
		t.Errorf("token %d after %d", next.Token, held.Token)
	}
}

// TestUnacknowledgedGrantIsRolledBack: a grant that no replica acknowledges fails and is removed. A renewal
// that no replica acknowledges fails.
func TestUnacknowledgedGrantIsRolledBack(t *testing.T) {
	installed(t)
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	url, wait := "redis://"+g.Primary.Address(), redisstore.WaitReplicas(1, 100*time.Millisecond)
	for client, open := range map[string]func() *redisstore.Store{
		"rueidis": func() *redisstore.Store { return open(t, url, wait) },
		"goredis": func() *redisstore.Store {
			c := goredis.NewClient(&goredis.Options{Addr: g.Primary.Address()})
			s, err := adapter.New(c, wait)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = s.Close(context.Background())
				_ = c.Close()
			})
			return s
		},
		"layout": func() *redisstore.Store { return open(t, url, append(withLayout(redisstore.Redisson), wait)...) },
	} {
		t.Run(client, func(t *testing.T) {
			s := open()
			held := acknowledged(t, s, "held-"+client)
			if err := g.Replicas[0].Pause(); err != nil {
				t.Fatal(err)
			}
			_, err := s.Acquire(t.Context(), request(client, driver.Exclusive, long))
			code(t, s, err, driver.CodeUnavailable)
			if st, err := s.Inspect(t.Context(), client); err != nil || len(st.Holders) != 0 {
				t.Errorf("%+v, %v", st, err)
			}
			code(t, s, s.Renew(t.Context(), []driver.Grant{held})[0].Err, driver.CodeUnavailable)
			if err := g.Replicas[0].Cont(); err != nil {
				t.Fatal(err)
			}
			acknowledged(t, s, client)
		})
	}
}

// TestFailoverToAnEmptyServerIsNoticed: a server without the grant takes the place of the primary. The
// holder is notified without a renewal, and its waiter gets a larger token.
func TestFailoverToAnEmptyServerIsNoticed(t *testing.T) {
	for _, layout := range []string{"", "?layout=redisson"} {
		t.Run(layout, func(t *testing.T) {
			old, promoted := start(t), start(t)
			p := behindProxy(t, old)
			s := open(t, "redis://"+p.Address()+layout)
			r := request("x", driver.Exclusive, long)
			g := must(t, s, r)
			w := queue(t, s, request("x", driver.Exclusive, long))
			if err := p.Redirect(promoted.Address()); err != nil {
				t.Fatal(err)
			}
			lost(t, r, driver.CauseGone)
			next := w.granted()
			if next.Token <= g.Token {
				t.Errorf("token %d after %d", next.Token, g.Token)
			}
			release(t, s, next)
		})
	}
}

// acknowledged repeats the request until a replica has the grant. A replica that has just been linked or
// continued may take longer than one request waits.
func acknowledged(t *testing.T, s driver.Store, name string) driver.Grant {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; {
		g, err := s.Acquire(t.Context(), request(name, driver.Exclusive, long))
		if err == nil {
			return g
		}
		code(t, s, err, driver.CodeUnavailable)
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestCloseEndsWaiting(t *testing.T) {
	r := common(t)
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	must(t, a, request(t.Name(), driver.Exclusive, long))
	w := queue(t, b, request(t.Name(), driver.Exclusive, long))
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-w.done
	code(t, b, w.err, driver.CodeClosed)
	if st, err := a.Inspect(t.Context(), t.Name()); err != nil || len(st.Waiters) != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestReleaseGrantsInOneCall: a release grants to the next waiter of the same client in one call.
func TestReleaseGrantsInOneCall(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	// A late subscription, a refresh or a check of the holder may add calls to a round. A round
	// without them shows the cost of a release with a grant.
	least := math.MaxInt
	for range 10 {
		g := must(t, s, request("x", driver.Exclusive, long))
		w := queue(t, s, request("x", driver.Exclusive, long))
		do(t, r, "CONFIG", "RESETSTAT")
		before := time.Now()
		if err := s.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
		next := w.granted()
		if next.Token <= g.Token || next.SentAt.Time().Before(before) {
			t.Errorf("%+v after %+v", next, g)
		}
		least = min(least, calls(t, r, "evalsha"))
		if err := s.Release(t.Context(), next, 0); err != nil {
			t.Fatal(err)
		}
	}
	if least != 1 {
		t.Errorf("%d calls for one release and one grant", least)
	}
	var none *driver.BusyError
	if _, err := s.Acquire(t.Context(), request("x", driver.Exclusive, long)); errors.As(err, &none) {
		t.Error(err)
	}
}
