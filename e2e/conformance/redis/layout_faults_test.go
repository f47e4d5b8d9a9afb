package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// eachLayout runs a test for each layout.
func eachLayout(t *testing.T, f func(t *testing.T, l redisstore.Layout)) {
	for _, l := range redisstore.Layouts() {
		t.Run(string(l), func(t *testing.T) { f(t, l) })
	}
}

// many returns a limit at which several requests hold a name together. A layout of exclusive
// locks has none, so many returns [driver.Exclusive] for it.
func many(l redisstore.Layout) int {
	switch l {
	case redisstore.RedissonReadWrite:
		return driver.Unlimited
	case redisstore.RedissonSemaphore, redisstore.RedissonPermits:
		return 3
	}
	return driver.Exclusive
}

// TestLayoutLateRequestAfterRelease: a request gets no answer and is delayed. The client repeats
// it with the same ID, gets a grant, and releases it. The server refuses the delayed request when
// it arrives. If a step of the release has no answer, the next release succeeds.
func TestLayoutLateRequestAfterRelease(t *testing.T) {
	eachLayout(t, func(t *testing.T, l redisstore.Layout) {
		t.Parallel()
		r := start(t)
		s, g, late := lateRequest(t, r, withLayout(l)...)
		p := s.Client().(*plain)
		p.mu.Lock()
		p.hold = func(sc *redisstore.Script, _ []string) bool { return strings.HasSuffix(sc.Name, " undo") }
		p.mu.Unlock()
		err := s.Release(t.Context(), g, 0)
		if err != nil && driver.CodeOf(err) == driver.CodeUnknown {
			err = s.Release(t.Context(), g, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		if answer := strungTogether(do(t, r, late...)); answer[0] != "V" {
			t.Errorf("the answer to the late request is %q", answer)
		}
		release(t, s, must(t, s, request("x", driver.Exclusive, long)))
	})
}

// TestLayoutLateRequestAfterBreak: an operator takes a grant away, and another client holds the
// name for a while. Then a delayed request with the ID of the first grant arrives. The server
// refuses it, because the first holder would take the new lease for its own.
func TestLayoutLateRequestAfterBreak(t *testing.T) {
	eachLayout(t, func(t *testing.T, l redisstore.Layout) {
		t.Parallel()
		r := start(t)
		s, g, late := lateRequest(t, r, withLayout(l)...)
		if err := s.Break(t.Context(), "x", g.Token); err != nil {
			t.Fatal(err)
		}
		other := open(t, "redis://"+r.Address(), withLayout(l)...)
		release(t, other, must(t, other, request("x", driver.Exclusive, long)))
		if answer := strungTogether(do(t, r, late...)); answer[0] != "V" {
			t.Errorf("the answer to the late request is %q", answer)
		}
		if a := s.Renew(t.Context(), []driver.Grant{g})[0]; driver.CodeOf(a.Err) != driver.CodeNotHeld || a.Cause != driver.CauseTaken {
			t.Errorf("a renewal of the first grant: %+v", a)
		}
	})
}

// TestLayoutForgetsBrokenGrants: while a name is held, the record of a broken grant is removed after its
// late requests can no longer arrive.
func TestLayoutForgetsBrokenGrants(t *testing.T) {
	r := start(t)
	eachLayout(t, func(t *testing.T, l redisstore.Layout) {
		do(t, r, "FLUSHALL")
		s := open(t, "redis://"+r.Address(), withLayout(l)...)
		limit := many(l)
		if limit != driver.Exclusive {
			must(t, s, request("x", limit, long)) // keeps the name held
		}
		broken := func() (fields []string) {
			g := must(t, s, request("x", limit, long))
			if err := s.Break(t.Context(), "x", g.Token); err != nil {
				t.Fatal(err)
			}
			for _, field := range strungTogether(do(t, r, "HKEYS", "holdfast:beside:{x}")) {
				if strings.HasPrefix(field, "b:") {
					fields = append(fields, field)
				}
			}
			return fields
		}
		first := broken()
		if len(first) != 1 {
			t.Fatalf("records of broken grants: %q, want one", first)
		}
		do(t, r, "HSET", "holdfast:beside:{x}", first[0], "1") // expires the record
		if second := broken(); len(second) != 1 || second[0] == first[0] {
			t.Errorf("records of broken grants: %q, want one that is not in %q", second, first)
		}
	})
}

// TestLayoutFullServerRefusesNewLocks: a server without free memory refuses new locks. Grants of long and
// of short leases can be renewed and released.
func TestLayoutFullServerRefusesNewLocks(t *testing.T) {
	r := start(t)
	eachLayout(t, func(t *testing.T, l redisstore.Layout) {
		do(t, r, "FLUSHALL")
		s := open(t, "redis://"+r.Address(), withLayout(l)...)
		grants := []driver.Grant{must(t, s, request("x", many(l), 24*time.Hour))}
		if many(l) != driver.Exclusive {
			grants = append(grants, must(t, s, request("x", many(l), long)))
		}
		do(t, r, "CONFIG", "SET", "maxmemory", "1")
		defer do(t, r, "CONFIG", "SET", "maxmemory", "0")
		for i := range grants { // the short lease first, then the long one
			g := grants[len(grants)-1-i]
			if a := s.Renew(t.Context(), []driver.Grant{g})[0]; a.Err != nil {
				t.Errorf("a full server does not renew: %v", a.Err)
			}
		}
		_, err := s.Acquire(t.Context(), request("y", driver.Exclusive, long))
		code(t, s, err, driver.CodeRefused)
		for _, g := range grants {
			if err := s.Release(t.Context(), g, 0); err != nil {
				t.Errorf("a full server does not release: %v", err)
			}
		}
	})
}

// TestLayoutReaderReleasesAfterSlotMove: holdfast and another client hold a name as readers while its
// hash slot moves. The other reader's key has moved already. A release is refused and changes nothing. It
// succeeds after the move.
func TestLayoutReaderReleasesAfterSlotMove(t *testing.T) {
	c := cluster(t)
	name := t.Name()
	slot, from, to := slotMove(t, c, name)
	s := open(t, "redis+cluster://"+c.Nodes[0].Address(), redisstore.WithLayout(redisstore.RedissonReadWrite))
	g := must(t, s, request(name, driver.Unlimited, long))
	key := "{" + name + "}:other:1:rwlock_timeout:1"
	do(t, from, "SET", key, "1", "PX", "60000")
	do(t, from, "HSET", name, "other:1", "1")
	if err := c.BeginMove(t.Context(), slot, from, to); err != nil {
		t.Fatal(err)
	}
	if err := c.MoveKey(t.Context(), key, from, to); err != nil {
		t.Fatal(err)
	}
	code(t, s, s.Release(t.Context(), g, 0), driver.CodeUnavailable)
	if err := c.EndMove(t.Context(), slot, from, to); err != nil {
		t.Fatal(err)
	}
	if a := renewed(t, s, g); a.Err != nil {
		t.Errorf("the reader has lost its lease: %v", a.Err)
	}
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Error(err)
	}
	do(t, to, "DEL", name, key)
	if left := remnants(t, redisstore.RedissonReadWrite, to); len(left) > 0 {
		t.Errorf("keys remain: %q", left)
	}
}

// layoutRights are the commands that docs/redis-layouts.md requires on a single server, in addition to
// those of docs/redis.md.
var layoutRights = strings.Fields("exists hexists hkeys hlen setnx incr incrby decrby lindex lrange lpop rpush lrem " +
	"zadd zscore zrem zincrby zrange zrangebyscore zcard")

// TestLayoutRefusedCommandKeepsGrants takes each documented right away from a client. The client
// then requests, renews, releases, rolls back and breaks grants. When the client has the right again,
// each grant stands or is released, the waiter gets its grant, and each name is free after all releases.
func TestLayoutRefusedCommandKeepsGrants(t *testing.T) {
	r := start(t)
	eachLayout(t, func(t *testing.T, l redisstore.Layout) {
		do(t, r, "FLUSHALL")
		admin := open(t, "redis://"+r.Address(), withLayout(l)...)
		limit := many(l)
		for _, right := range slices.Concat(documented, layoutRights) {
			restrict(t, []*servers.Redis{r}, layoutRights...)
			do(t, r, "ACL", "SETUSER", "app", "~*", "&*")
			s := open(t, "redis://app:app-secret@"+r.Address(), withLayout(l)...)
			mine := must(t, s, request("mine", limit, long))
			otherHolder := func() (g *driver.Grant) { // nil if the layout has no shared locks or permits
				if limit == driver.Exclusive {
					return nil
				}
				other := must(t, admin, request("mine", limit, long))
				return &other
			}()
			busy := must(t, admin, request("busy", driver.Exclusive, long))
			var w *waiter
			if l != redisstore.RedissonSpin { // releases of this layout notify no waiter
				w = queue(t, admin, request("busy", driver.Exclusive, long))
			}
			expired := must(t, admin, request("expired", driver.Exclusive, long))
			expire(t, r, l, "expired")

			// The client uses the store without the right.
			do(t, r, "ACL", "SETUSER", "app", "-"+right)
			refusal := func(what string, err error) {
				t.Helper()
				if c := s.Classify(err); err != nil && c != driver.CodeRefused && c != driver.CodeBusy && c != driver.CodeUnknown {
					t.Errorf("without %s %s is refused with code %v: %v", right, what, c, err)
				}
			}
			var requests []driver.Request
			for _, name := range []string{"free", "busy", "mine", "expired"} {
				for _, of := range []int{driver.Exclusive, limit} {
					q := request(name, of, long)
					q.Wait = true
					short, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
					_, err := s.Acquire(short, q)
					stop()
					if errors.Is(err, context.DeadlineExceeded) {
						err = nil
					}
					refusal("a wait", err)
					requests = append(requests, q)
				}
			}
			renewErr := s.Renew(t.Context(), []driver.Grant{mine})[0].Err
			refusal("a renewal", renewErr)
			releaseErr := s.Release(t.Context(), mine, 0)
			refusal("a release", releaseErr)
			refusal("an undo", s.Undo(t.Context(), request("busy", 1, long)))
			breakErr := s.Break(t.Context(), "busy", busy.Token)
			refusal("a break", breakErr)

			// The client has the right again.
			do(t, r, "ACL", "SETUSER", "app", "+"+right)
			for _, q := range requests {
				undone(t, s, q)
			}
			if releaseErr != nil {
				if err := s.Release(t.Context(), mine, 0); err != nil {
					t.Errorf("without %s a release was refused (%v), and then: %v", right, releaseErr, err)
				}
			}
			if otherHolder != nil {
				if a := admin.Renew(t.Context(), []driver.Grant{*otherHolder})[0]; a.Err != nil {
					t.Errorf("without %s another holder's lease has ended: %v", right, a.Err)
				}
				release(t, admin, *otherHolder)
			}
			if a := admin.Renew(t.Context(), []driver.Grant{busy})[0]; breakErr != nil && a.Err != nil {
				t.Errorf("without %s a break was refused (%v), and the lease has ended: %v", right, breakErr, a.Err)
			}
			release(t, admin, busy)
			if w != nil {
				release(t, admin, w.granted())
			}
			release(t, admin, expired)
			for _, name := range []string{"free", "busy", "mine", "expired"} {
				n := 1
				if limit == 3 && name == "mine" {
					n = 3 // all permits of the semaphore
				}
				for range n {
					if _, err := admin.Acquire(t.Context(), request(name, n, long)); err != nil {
						t.Errorf("without %s: %s is not free after all releases: %v", right, name, err)
					}
				}
				if _, err := admin.Acquire(t.Context(), request(name, n, long)); err == nil {
					t.Errorf("without %s: %s is granted beyond its limit", right, name)
				}
			}
			_ = s.Close(t.Context())
			do(t, r, "FLUSHALL")
		}
	})
}

// TestFairLayoutRefusedRemovalKeepsTimes: a client lacks a right that it needs to change the queue. It
// finds the entry of a dead waiter, and its own waiter is cancelled or refused. Each entry that stays
// keeps its time, so it expires. Clients with the right remove both entries and their times.
func TestFairLayoutRefusedRemovalKeepsTimes(t *testing.T) {
	r := start(t)
	const queued, times = "redisson_lock_queue:{x}", "redisson_lock_timeout:{x}"
	for _, right := range []string{"lpop", "lrem", "rpush", "zadd", "zrem", "zincrby"} {
		t.Run(right, func(t *testing.T) {
			do(t, r, "FLUSHALL")
			admin := open(t, "redis://"+r.Address(), withLayout(redisstore.RedissonFair)...)
			s := limited(t, r, redisstore.RedissonFair)
			timed := func(after string) { // requires that each queue entry has a time
				t.Helper()
				with := strungTogether(do(t, r, "ZRANGE", times, "0", "-1"))
				for _, of := range strungTogether(do(t, r, "LRANGE", queued, "0", "-1")) {
					if !slices.Contains(with, of) {
						t.Errorf("after %s the entry %s has no time", after, of)
					}
				}
			}
			do(t, r, "RPUSH", queued, "dead:1")
			do(t, r, "ZADD", times, "1", "dead:1")
			do(t, r, "ACL", "SETUSER", "app", "-"+right)
			if g, err := s.Acquire(t.Context(), request("x", driver.Exclusive, long)); err == nil {
				release(t, s, g)
			}
			timed("a request that meets a dead waiter's entry")
			held := must(t, admin, request("x", driver.Exclusive, long))
			do(t, r, "ACL", "SETUSER", "app", "+"+right)
			q := request("x", driver.Exclusive, long)
			q.Wait = true
			queues := right != "rpush" && right != "zadd" // without these rights the waiter gets no queue entry
			if !queues {
				do(t, r, "ACL", "SETUSER", "app", "-"+right)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := s.Acquire(ctx, q)
				ended <- err
			}()
			if queues {
				eventually(t, "the waiter has no queue entry", func() bool { return do(t, r, "LLEN", queued) == int64(1) })
				do(t, r, "ACL", "SETUSER", "app", "-"+right)
				cancel()
			}
			if err := <-ended; err == nil {
				t.Fatal("granted while another client holds the name")
			}
			_ = s.Undo(t.Context(), q)
			timed("the waiter's end")
			do(t, r, "ACL", "SETUSER", "app", "+"+right)
			undone(t, s, q)
			release(t, admin, held)
			release(t, admin, must(t, admin, request("x", driver.Exclusive, long)))
			if left := do(t, r, "EXISTS", queued, times); left != int64(0) {
				t.Errorf("entries %q and times %q are left", do(t, r, "LRANGE", queued, "0", "-1"), do(t, r, "ZRANGE", times, "0", "-1"))
			}
		})
	}
}

// TestLayoutRefusedExpiryLeavesNoGrant: the key beside a name outlives the requested lease, and the
// client may not set an expiry. The refused request leaves neither a lock nor a permit.
func TestLayoutRefusedExpiryLeavesNoGrant(t *testing.T) {
	r := start(t)
	eachLayout(t, func(t *testing.T, l redisstore.Layout) {
		do(t, r, "FLUSHALL")
		admin := open(t, "redis://"+r.Address(), withLayout(l)...)
		s := limited(t, r, l)
		must(t, admin, request("x", many(l), 2*long))
		switch l {
		case redisstore.RedissonPermits, redisstore.RedissonSemaphore:
			do(t, r, "PEXPIRE", "x", "600000") // as a program that uses Redisson may do
		default:
			do(t, r, "DEL", "x")
		}
		do(t, r, "ACL", "SETUSER", "app", "-pexpire")
		state := func() string {
			var all []string
			for _, key := range strungTogether(do(t, r, "KEYS", "*")) {
				if !strings.HasPrefix(key, "holdfast:") && !strings.HasPrefix(key, "redisson_lock_token:") {
					all = append(all, key+fmt.Sprintf(": %q", do(t, r, "DUMP", key)))
				}
			}
			slices.Sort(all)
			return strings.Join(all, "\n")
		}
		before := state()
		_, err := s.Acquire(t.Context(), request("x", many(l), long))
		code(t, s, err, driver.CodeRefused)
		if after := state(); after != before {
			t.Errorf("a refused request has changed\n%s\nto\n%s", before, after)
		}
	})
}

// limited returns a store whose user app has all documented rights. The first request also connects
// and probes the server, so limited makes one before a test takes a right away.
func limited(t *testing.T, r *servers.Redis, l redisstore.Layout) driver.Store {
	restrict(t, []*servers.Redis{r}, layoutRights...)
	do(t, r, "ACL", "SETUSER", "app", "~*", "&*")
	s := open(t, "redis://app:app-secret@"+r.Address(), withLayout(l)...)
	release(t, s, must(t, s, request("other", driver.Exclusive, long)))
	return s
}

// expire changes the keys of a lease so that it has expired.
func expire(t *testing.T, r *servers.Redis, l redisstore.Layout, name string) {
	t.Helper()
	switch l {
	case redisstore.RedissonPermits:
		for _, permit := range strungTogether(do(t, r, "ZRANGE", "{"+name+"}:timeout", "0", "-1")) {
			do(t, r, "ZADD", "{"+name+"}:timeout", "1", permit)
		}
	case redisstore.RedissonSemaphore:
		for _, field := range strungTogether(do(t, r, "HKEYS", "holdfast:beside:{"+name+"}")) {
			if strings.HasPrefix(field, "e:") {
				do(t, r, "HSET", "holdfast:beside:{"+name+"}", field, "1")
			}
		}
	default:
		do(t, r, "DEL", name)
	}
}
