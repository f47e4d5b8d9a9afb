package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestWaiterKeepsLoneGrantWhileSlotMoves: a client holds a name whose hash slot is being moved, and a
// first waiter queues. Redis refuses to create a key in such a slot. The holder keeps its grant.
func TestWaiterKeepsLoneGrantWhileSlotMoves(t *testing.T) {
	c := cluster(t)
	for i := range 3 {
		name := fmt.Sprintf("%s-%d", t.Name(), i)
		slot, from, to := slotMove(t, c, redisstore.Key("", name))
		url := "redis+cluster://" + c.Nodes[0].Address()
		a, b := open(t, url), open(t, url)
		g := must(t, a, request(name, driver.Exclusive, long))
		if err := c.BeginMove(t.Context(), slot, from, to); err != nil {
			t.Fatal(err)
		}
		w := queue(t, b, request(name, driver.Exclusive, long))
		if r := renewed(t, a, g); r.Err != nil {
			t.Fatalf("the holder has lost its grant: %v", r.Err)
		}
		w.pending()
		release(t, a, g)
		next := w.granted()
		if err := c.EndMove(t.Context(), slot, from, to); err != nil {
			t.Fatal(err)
		}
		release(t, b, next)
	}
}

// TestRefusedExpiryAndDeletionLeaveNothing: the client may neither set the expiry of a key nor delete
// it. A refused request then leaves no lock behind.
func TestRefusedExpiryAndDeletionLeaveNothing(t *testing.T) {
	r := start(t)
	restrict(t, []*servers.Redis{r})
	s, admin := open(t, "redis://app:app-secret@"+r.Address()), open(t, "redis://"+r.Address())
	release(t, s, must(t, s, request("other", driver.Exclusive, long)))
	do(t, r, "ACL", "SETUSER", "app", "-pexpire", "-del")
	_, err := s.Acquire(t.Context(), request("n", driver.Exclusive, long))
	code(t, s, err, driver.CodeRefused)
	release(t, admin, must(t, admin, request("n", driver.Exclusive, long)))
}

// TestRefusedCommandKeepsGrants removes each documented right from a client, which then tries, waits,
// renews, releases, undoes and breaks. A refused command changes nothing: the holders keep their
// grants, the waiter stays queued, and no other client is granted.
func TestRefusedCommandKeepsGrants(t *testing.T) {
	r := start(t)
	admin := open(t, "redis://"+r.Address())
	for _, right := range documented {
		t.Run(right, func(t *testing.T) {
			restrict(t, []*servers.Redis{r})
			url := "redis://app:app-secret@" + r.Address()
			s := open(t, url)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			type state struct {
				name    string
				holders []driver.Grant
				own     *driver.Grant // the grant of the restricted client
				waiter  *waiter
			}
			var states []*state
			for i, limits := range [][]int{{1}, {driver.Unlimited, driver.Unlimited}, {3, 3}} {
				for _, waits := range []bool{false, true} {
					for _, owns := range []bool{false, true} {
						st := &state{name: fmt.Sprintf("%s-%d-%t-%t", right, i, waits, owns)}
						others := limits
						if owns {
							g := must(t, s, request(st.name, limits[0], long))
							st.own, others = &g, limits[1:]
						}
						for _, limit := range others {
							st.holders = append(st.holders, must(t, admin, request(st.name, limit, long)))
						}
						if waits {
							st.waiter = queue(t, admin, request(st.name, driver.Exclusive, long))
						}
						states = append(states, st)
					}
				}
			}
			do(t, r, "ACL", "SETUSER", "app", "-"+right)
			refusal := func(what string, err error) {
				t.Helper()
				// Where the queue entry could not be removed either, the outcome is unknown.
				if code := s.Classify(err); err != nil && strings.Contains(err.Error(), "docs/redis.md") && code != driver.CodeRefused && code != driver.CodeUnknown {
					t.Errorf("%s is refused with code %v: %v", what, code, err)
				}
			}
			holds := func(st *state, after string) {
				t.Helper()
				got, err := admin.Inspect(t.Context(), st.name)
				if err != nil {
					t.Fatal(err)
				}
				for _, g := range st.holders {
					if !slices.ContainsFunc(got.Holders, func(h driver.Holder) bool { return h.Token == g.Token && h.ID == g.ID }) {
						t.Errorf("%s: after %s a holder has lost its grant: %+v", st.name, after, got)
					}
				}
				most := len(st.holders)
				if st.own != nil {
					most++
				}
				if len(got.Holders) > most && st.holders != nil && st.holders[0].Limit == driver.Exclusive {
					t.Errorf("%s: after %s a grant stands beside the holder: %+v", st.name, after, got)
				}
				if st.waiter != nil && len(st.holders) > 0 {
					st.waiter.pending()
					if len(got.Waiters) == 0 {
						t.Errorf("%s: after %s the waiter has lost its queue entry: %+v", st.name, after, got)
					}
				}
			}
			// A refused request has neither a grant nor a queue entry: no client will undo it.
			nothing := func(st *state, q driver.Request, err error) {
				t.Helper()
				if err == nil || s.Classify(err) != driver.CodeRefused {
					return
				}
				for _, field := range strungTogether(do(t, r, "HGETALL", redisstore.Key("", st.name))) {
					if strings.Contains(field, q.ID) {
						t.Errorf("%s: a refused request of limit %d, wait %t has left %q", st.name, q.Limit, q.Wait, field)
					}
				}
			}
			for _, st := range states {
				for _, limit := range []int{driver.Exclusive, 5, driver.Unlimited} {
					q := request(st.name, limit, long)
					g, err := s.Acquire(t.Context(), q)
					refusal("a try", err)
					holds(st, "a try")
					nothing(st, q, err)
					if err == nil {
						release(t, admin, g)
					}
					q = request(st.name, limit, long)
					q.Wait = true
					short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
					g, err = s.Acquire(short, q)
					stop()
					refusal("a wait", err)
					holds(st, "a wait")
					nothing(st, q, err)
					if err == nil {
						release(t, admin, g)
					} else {
						undone(t, admin, q)
					}
				}
				if st.own != nil {
					refusal("a renewal", s.Renew(t.Context(), []driver.Grant{*st.own})[0].Err)
					holds(st, "a renewal")
					refusal("a release", s.Release(t.Context(), *st.own, 0))
					holds(st, "a release")
				}
				refusal("an undo", s.Undo(t.Context(), request(st.name, 1, long)))
				holds(st, "an undo")
				refusal("a break", s.Break(t.Context(), st.name, 1))
				holds(st, "a break")
			}
			do(t, r, "ACL", "SETUSER", "app", "+"+right)
			for _, st := range states {
				if st.own != nil {
					release(t, s, *st.own)
				}
				for _, g := range st.holders {
					release(t, admin, g)
				}
				if st.waiter != nil {
					release(t, admin, st.waiter.granted())
				}
				if g, err := s.Acquire(t.Context(), request(st.name, driver.Exclusive, long)); err != nil {
					t.Errorf("%s: the name is not free after all releases: %v", st.name, err)
				} else {
					release(t, s, g)
				}
			}
		})
	}
}

// TestRefusedInsideScriptIsRefused: a script needs a right that the user does not have. The caller gets
// the error at once, with the code for a refusal and not for an unreachable server.
func TestRefusedInsideScriptIsRefused(t *testing.T) {
	r := start(t)
	for _, right := range []string{"set", "pexpire", "time"} {
		restrict(t, []*servers.Redis{r})
		do(t, r, "ACL", "SETUSER", "app", "-"+right)
		refused(t, r, "redis://app:app-secret@"+r.Address(), "docs/redis.md")
	}
}

// TestRefusedRequestChangesNothing: a lease has expired, and the first waiter is disconnected. The
// request of another client would first grant the name to that waiter, but the client lacks a right. The
// server refuses it, and the name stays unchanged.
func TestRefusedRequestChangesNothing(t *testing.T) {
	r := start(t)
	admin, gate := open(t, "redis://"+r.Address()), newGate(t, r.Address())
	slow := open(t, "redis://"+gate.Address())
	for _, right := range []string{"hdel", "hset", "pexpire", "set", "get", "hget", "pttl"} {
		restrict(t, []*servers.Redis{r})
		s := open(t, "redis://app:app-secret@"+r.Address())
		release(t, s, must(t, s, request(right+"-warm", driver.Exclusive, long)))
		must(t, admin, request(right+"-other", driver.Exclusive, long))
		w := queue(t, slow, request(right+"-other", driver.Exclusive, long))
		key := redisstore.Key("", right+"-other")
		gate.hold()
		// Change the record so that the lease has expired. The client of the waiter has all rights, but
		// is disconnected and cannot react.
		rec, _ := do(t, r, "HGET", key, "s0").(string)
		at := strings.LastIndex(rec, " ")
		do(t, r, "HSET", key, "s0", rec[:at]+" 1+1")
		m, _ := do(t, r, "HGET", key, "m").(string)
		_, rest, _ := strings.Cut(m, " ")
		do(t, r, "HSET", key, "m", "2 "+rest)
		state := func() string {
			all := strungTogether(do(t, r, "HGETALL", key))
			var fields []string
			for i := 0; i+1 < len(all); i += 2 {
				fields = append(fields, all[i]+"="+all[i+1])
			}
			slices.Sort(fields)
			return strings.Join(fields, "\n")
		}
		before := state()
		do(t, r, "ACL", "SETUSER", "app", "-"+right)
	requests:
		for _, wait := range []bool{true, false} {
			for _, limit := range []int{driver.Exclusive, 3} {
				q := request(right+"-other", limit, long)
				q.Wait = wait
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				_, err := s.Acquire(ctx, q)
				cancel()
				if err == nil || s.Classify(err) != driver.CodeRefused {
					break requests // the request does not need this right
				}
				if after := state(); after != before {
					t.Errorf("without %s: %v, and the name has changed from\n%s\nto\n%s", right, err, before, after)
				}
			}
		}
		do(t, r, "ACL", "SETUSER", "app", "+"+right)
		gate.release()
		release(t, slow, w.granted())
	}
}
