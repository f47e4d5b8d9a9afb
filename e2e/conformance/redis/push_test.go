package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// provisional returns a request whose caller may start before the client confirms the grant.
func provisional(name string) driver.Request {
	r := request(name, driver.Exclusive, long)
	r.Provisional = true
	return r
}

// passGrant passes a name between two stores until f accepts a grant. On a slow machine the waiter's
// refresh may confirm a grant before its message arrives.
func passGrant(t *testing.T, name string, a, b *redisstore.Store, f func(s *redisstore.Store, r driver.Request, g driver.Grant) bool) {
	t.Helper()
	g := must(t, a, provisional(name))
	for end := time.Now().Add(testTimeout); ; {
		w := queue(t, b, provisional(name))
		release(t, a, g)
		g = w.Granted()
		if f(b, w.Request, g) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no grant after a wait was as expected, the last %+v", g)
		}
		a, b = b, a
	}
}

// started passes a name between two stores until a waiter is granted it and may start before the
// confirmation.
func started(t *testing.T, name string, a, b *redisstore.Store) (s *redisstore.Store, r driver.Request, g driver.Grant) {
	t.Helper()
	passGrant(t, name, a, b, func(by *redisstore.Store, of driver.Request, got driver.Grant) bool {
		s, r, g = by, of, got
		return g.Provisional
	})
	return s, r, g
}

func counterOf(name string) string {
	key := redisstore.Key("", name)
	return key[:strings.IndexByte(key, '}')+1]
}

// TestShortHoldNeedsNoConfirmation: a contended lock costs two calls, for the queue entry and for the
// release. The server records its token, so no later grant has the same one.
func TestShortHoldNeedsNoConfirmation(t *testing.T) {
	r := start(t)
	a, b := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	before := 0
	passGrant(t, "short", a, b, func(_ *redisstore.Store, _ driver.Request, g driver.Grant) bool {
		now := calls(t, r, "evalsha")
		sent := now - before // calls since the last grant, normally a queue entry and a release
		before = now
		if !g.Provisional || sent != 2 {
			return false
		}
		if g.TTL > 2500*time.Millisecond {
			t.Errorf("TTL %s before the confirmation", g.TTL)
		}
		if last, _ := strconv.ParseUint(do(t, r, "GET", counterOf("short")).(string), 10, 64); last < g.Token {
			t.Errorf("the counter is %d, the token %d", last, g.Token)
		}
		return true
	})
}

// TestStartedClientDies: a client dies before it confirms its grant. The next waiter is granted after the
// short lease, and not before the validity of the first has ended. A late confirmation is refused.
func TestStartedClientDies(t *testing.T) {
	r := common(t)
	a, b, c := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	s, _, g := started(t, t.Name(), a, b)
	w := submit(t, c, provisional(t.Name()))
	next := w.Granted()
	if elapsed, _ := g.SentAt.Elapsed(); elapsed < g.TTL {
		t.Errorf("granted again after %s of a TTL of %s", elapsed, g.TTL)
	}
	rises(t, g, next)
	code(t, s, renewed(t, s, g).Err, driver.CodeNotHeld)
	release(t, c, next)
}

// tagOf returns the channel and the tag of the only queue entry of a name.
func tagOf(t *testing.T, r *servers.Redis, name string) (channel, tag string) {
	t.Helper()
	fields, _ := do(t, r, "HGETALL", redisstore.Key("", name)).([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		if strings.HasPrefix(fields[i].(string), "q") {
			channel, tag, _ = strings.Cut(strings.Fields(fields[i+1].(string))[5], ",")
		}
	}
	return strings.TrimPrefix(channel, "p:"), tag
}

// TestReleaseWithoutMessage: the client of a holder lacks the right to publish, or to raise the counter.
// Its release succeeds, and the waiter confirms its grant before it starts.
func TestReleaseWithoutMessage(t *testing.T) {
	r := start(t)
	for name, change := range map[string]string{"no publish": "-publish", "no counter": "-set"} {
		restrict(t, []*servers.Redis{r})
		limited, other := open(t, "redis://app:app-secret@"+r.Address()), open(t, "redis://"+r.Address())
		for {
			s, _, g := started(t, name, limited, other)
			if s == other {
				release(t, s, g)
				continue
			}
			w := queue(t, other, provisional(name))
			do(t, r, "ACL", "SETUSER", "app", change)
			if err := s.Release(t.Context(), g, 0); err != nil {
				if elapsed, _ := g.SentAt.Elapsed(); elapsed < g.TTL {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if next := w.Granted(); next.Provisional {
				t.Errorf("%s: the waiter has started", name)
			} else {
				release(t, other, next)
			}
			break
		}
	}
}

// TestReplicasAcknowledgeBeforeStart: with WaitReplicas a waiter starts only when replicas have its grant.
func TestReplicasAcknowledgeBeforeStart(t *testing.T) {
	primary := start(t)
	start(t, "--replicaof", strings.ReplaceAll(primary.Address(), ":", " "))
	caughtUp(t, primary, 1)
	a := open(t, "redis://"+primary.Address())
	b := open(t, "redis://"+primary.Address(), redisstore.WaitReplicas(1, time.Minute))
	for range 3 {
		g := must(t, a, provisional("acked"))
		other := queue(t, a, provisional("acked"))
		release(t, a, g)
		g = other.Granted() // its release may start the next waiter
		w := queue(t, b, provisional("acked"))
		if _, tag := tagOf(t, primary, "acked"); tag != "" {
			t.Errorf("the queue entry has the tag %q", tag)
		}
		release(t, a, g)
		if g = w.Granted(); g.Provisional {
			t.Error("the waiter has started")
		}
		release(t, b, g)
	}
}

// TestReleaseWhileSlotMoves: the hash slot of a lock moves, and its counter has moved already. A
// release succeeds without the counter, and the waiter confirms its grant.
func TestReleaseWhileSlotMoves(t *testing.T) {
	c := cluster(t)
	url := "redis+cluster://" + c.Nodes[0].Address()
	a, b, d := open(t, url), open(t, url), open(t, url)
	name := t.Name()
	slot, from, to := slotMove(t, c, redisstore.Key("", name))
	g := must(t, a, provisional(name))
	w := queue(t, b, provisional(name))
	release(t, a, g)
	g = w.Granted()
	if answer := renewed(t, b, g); answer.Err != nil {
		t.Skip("the machine was too busy to confirm in time")
	}
	next := queue(t, d, provisional(name))
	check(t, c.BeginMove(t.Context(), slot, from, to))
	check(t, c.MoveKey(t.Context(), counterOf(name), from, to))
	if err := b.Release(t.Context(), g, 0); err != nil {
		t.Error(err)
	}
	g = next.Granted()
	check(t, c.EndMove(t.Context(), slot, from, to))
	release(t, d, g)
}

// refusing is a store that ends each provisional grant before its confirmation arrives.
type refusing struct {
	*redisstore.Store
	end func(g driver.Grant)
}

func (s *refusing) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	for _, g := range grants {
		if g.Provisional {
			s.end(g)
		}
	}
	return s.Store.Renew(ctx, grants)
}

// TestRefusedConfirmationEndsTheContext: a holder starts, and its grant is deleted or broken before the
// confirmation arrives. The lock's context ends with that cause.
func TestRefusedConfirmationEndsTheContext(t *testing.T) {
	r := start(t)
	admin := open(t, "redis://"+r.Address())
	for cause, end := range map[holdfast.Cause]func(driver.Grant){
		holdfast.CauseGone:  func(g driver.Grant) { do(t, r, "DEL", redisstore.Key("", g.Name)) },
		holdfast.CauseTaken: func(g driver.Grant) { _ = admin.Break(context.Background(), g.Name, g.Token) },
	} {
		s := &refusing{Store: open(t, "redis://"+r.Address()), end: end}
		l, err := holdfast.New(s, holdfast.LocalHandoff(0))
		check(t, err)
		// The message with the grant may arrive late. The client then confirms the grant before the
		// holder starts.
		for ended := false; !ended; {
			name := string(cause)
			first := must(t, admin, request(name, driver.Exclusive, long))
			second := queue(t, admin, request(name, driver.Exclusive, long))
			got := make(chan *holdfast.Lock, 1)
			release(t, admin, first)
			g := second.Granted()
			go func() {
				k, err := l.Lock(t.Context(), name)
				if err != nil {
					t.Error(err)
				}
				got <- k
			}()
			for tag := ""; tag == ""; _, tag = tagOf(t, r, name) {
				time.Sleep(time.Millisecond)
			}
			release(t, admin, g)
			k := <-got
			if k == nil {
				return
			}
			if k.Remaining() > 3*time.Second {
				_ = k.Unlock()
				continue
			}
			<-k.Context().Done()
			var lost *holdfast.LostError
			if !errors.As(context.Cause(k.Context()), &lost) || lost.Cause != cause && lost.Cause != holdfast.CauseExpired {
				t.Errorf("%v, want the cause %q", context.Cause(k.Context()), cause)
			}
			ended = lost == nil || lost.Cause != holdfast.CauseExpired // on a busy machine the lease may expire first
			_ = k.Unlock()
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
