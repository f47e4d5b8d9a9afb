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
	// The first request also connects and probes the server. It is made with all documented rights.
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
			c := &restricted{t: t, r: r, admin: admin, s: open(t, "redis://app:app-secret@"+r.Address())}
			names := c.prepare(right)
			do(t, r, "ACL", "SETUSER", "app", "-"+right)
			for _, n := range names {
				c.acquire(n)
				c.end(n)
			}
			do(t, r, "ACL", "SETUSER", "app", "+"+right)
			for _, n := range names {
				c.releaseAll(n)
			}
		})
	}
}

// restricted is a client that lacks a right, and admin is a client with all rights.
type restricted struct {
	t        *testing.T
	r        *servers.Redis
	s, admin *redisstore.Store
}

// heldName is a name with one or two grants, and perhaps a waiter.
type heldName struct {
	name    string
	own     *driver.Grant  // the grant of the restricted client, nil if it has none
	holders []driver.Grant // the grants of admin
	waiter  *waiter        // a waiter of admin, nil if there is none
}

// prepare returns names with an exclusive grant, two shared ones or two permits. It is called while the
// client has all rights. Of each kind there is a name with and without a waiter, and with and without a
// grant of the restricted client.
func (c *restricted) prepare(prefix string) (all []*heldName) {
	c.t.Helper()
	for i, limits := range [][]int{{driver.Exclusive}, {driver.Unlimited, driver.Unlimited}, {3, 3}} {
		for _, waits := range []bool{false, true} {
			for _, owns := range []bool{false, true} {
				n := &heldName{name: fmt.Sprintf("%s-%d-%t-%t", prefix, i, waits, owns)}
				others := limits
				if owns {
					g := must(c.t, c.s, request(n.name, limits[0], long))
					n.own, others = &g, limits[1:]
				}
				for _, limit := range others {
					n.holders = append(n.holders, must(c.t, c.admin, request(n.name, limit, long)))
				}
				if waits {
					n.waiter = queue(c.t, c.admin, request(n.name, driver.Exclusive, long))
				}
				all = append(all, n)
			}
		}
	}
	return all
}

// acquire requests the name with each limit, first without Wait and then with it.
func (c *restricted) acquire(n *heldName) {
	c.t.Helper()
	for _, limit := range []int{driver.Exclusive, 5, driver.Unlimited} {
		q := request(n.name, limit, long)
		g, err := c.s.Acquire(c.t.Context(), q)
		c.checkCode("a try", err)
		c.checkKept(n, "a try")
		c.checkNothingLeft(n, q, err)
		if err == nil {
			release(c.t, c.admin, g)
		}
		q = request(n.name, limit, long)
		q.Wait = true
		short, stop := context.WithTimeout(c.t.Context(), 20*time.Millisecond)
		g, err = c.s.Acquire(short, q)
		stop()
		c.checkCode("a wait", err)
		c.checkKept(n, "a wait")
		c.checkNothingLeft(n, q, err)
		if err == nil {
			release(c.t, c.admin, g)
		} else {
			undone(c.t, c.admin, q)
		}
	}
}

// end renews and releases the client's own grant. Then it undoes and breaks what does not exist.
func (c *restricted) end(n *heldName) {
	c.t.Helper()
	if n.own != nil {
		c.checkCode("a renewal", c.s.Renew(c.t.Context(), []driver.Grant{*n.own})[0].Err)
		c.checkKept(n, "a renewal")
		c.checkCode("a release", c.s.Release(c.t.Context(), *n.own, 0))
		c.checkKept(n, "a release")
	}
	c.checkCode("an undo", c.s.Undo(c.t.Context(), request(n.name, 1, long)))
	c.checkKept(n, "an undo")
	c.checkCode("a break", c.s.Break(c.t.Context(), n.name, 1))
	c.checkKept(n, "a break")
}

// releaseAll releases all grants, also that of the waiter, and requires that the name is free then. The
// client has all rights again.
func (c *restricted) releaseAll(n *heldName) {
	c.t.Helper()
	if n.own != nil {
		release(c.t, c.s, *n.own)
	}
	for _, g := range n.holders {
		release(c.t, c.admin, g)
	}
	if n.waiter != nil {
		release(c.t, c.admin, n.waiter.granted())
	}
	if g, err := c.s.Acquire(c.t.Context(), request(n.name, driver.Exclusive, long)); err != nil {
		c.t.Errorf("%s: the name is not free after all releases: %v", n.name, err)
	} else {
		release(c.t, c.s, g)
	}
}

// checkCode requires that an error of a missing right has the code for a refusal.
func (c *restricted) checkCode(what string, err error) {
	c.t.Helper()
	// Where the queue entry could not be removed either, the outcome is unknown.
	if code := c.s.Classify(err); err != nil && strings.Contains(err.Error(), "docs/redis.md") && code != driver.CodeRefused && code != driver.CodeUnknown {
		c.t.Errorf("%s is refused with code %v: %v", what, code, err)
	}
}

// checkKept requires that admin's grants and waiter are as before, and that no grant stands beside an
// exclusive one.
func (c *restricted) checkKept(n *heldName, after string) {
	c.t.Helper()
	got, err := c.admin.Inspect(c.t.Context(), n.name)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, g := range n.holders {
		if !slices.ContainsFunc(got.Holders, func(h driver.Holder) bool { return h.Token == g.Token && h.ID == g.ID }) {
			c.t.Errorf("%s: after %s a holder has lost its grant: %+v", n.name, after, got)
		}
	}
	most := len(n.holders)
	if n.own != nil {
		most++
	}
	if len(got.Holders) > most && n.holders != nil && n.holders[0].Limit == driver.Exclusive {
		c.t.Errorf("%s: after %s a grant stands beside the holder: %+v", n.name, after, got)
	}
	if n.waiter != nil && len(n.holders) > 0 {
		n.waiter.pending()
		if len(got.Waiters) == 0 {
			c.t.Errorf("%s: after %s the waiter has lost its queue entry: %+v", n.name, after, got)
		}
	}
}

// checkNothingLeft requires that a refused request has neither a grant nor a queue entry: no client will
// undo it.
func (c *restricted) checkNothingLeft(n *heldName, q driver.Request, err error) {
	c.t.Helper()
	if err == nil || c.s.Classify(err) != driver.CodeRefused {
		return
	}
	for _, field := range strungTogether(do(c.t, c.r, "HGETALL", redisstore.Key("", n.name))) {
		if strings.Contains(field, q.ID) {
			c.t.Errorf("%s: a refused request of limit %d, wait %t has left %q", n.name, q.Limit, q.Wait, field)
		}
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
		release(t, s, must(t, s, request(right+"-warm", driver.Exclusive, long))) // connects, and probes the server
		must(t, admin, request(right+"-other", driver.Exclusive, long))
		w := queue(t, slow, request(right+"-other", driver.Exclusive, long))
		key := redisstore.Key("", right+"-other")
		gate.hold()
		// Change the record so that the lease expired in 1970: common.lua describes the fields s0 and m.
		// The client of the waiter has all rights, but is disconnected and cannot react.
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
					break requests // the request does not need this right, and may have changed the name
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
