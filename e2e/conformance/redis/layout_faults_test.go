package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// eachLayout runs a test for each layout.
func eachLayout(t *testing.T, f func(t *testing.T, l layouts.Layout)) {
	for _, l := range layouts.All() {
		t.Run(string(l), func(t *testing.T) { f(t, l) })
	}
}

// many returns a limit at which several requests hold a name together. A layout of exclusive
// locks has none, so many returns [driver.Exclusive] for it.
func many(l layouts.Layout) int {
	switch l {
	case layouts.RedissonReadWrite:
		return driver.Unlimited
	case layouts.RedissonSemaphore, layouts.RedissonPermits:
		return 3
	}
	return driver.Exclusive
}

// TestLayoutForgetsBrokenGrants: while a name is held, the record of a broken grant is removed after its
// late requests can no longer arrive.
func TestLayoutForgetsBrokenGrants(t *testing.T) {
	r := start(t)
	eachLayout(t, func(t *testing.T, l layouts.Layout) {
		do(t, r, "FLUSHALL")
		s := openLayout(t, "redis://"+r.Address(), l, withFairWait(l)...)
		limit := many(l)
		if limit != driver.Exclusive {
			must(t, s, request("x", limit, long)) // keeps the name held
		}
		broken := func() (fields []string) {
			g := must(t, s, request("x", limit, long))
			check(t, s.Break(t.Context(), "x", g.Token))
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

// TestLayoutReaderReleasesAfterSlotMove: holdfast and another client hold a name as readers while its
// hash slot moves. The other reader's key has moved already. A release is refused and changes nothing. It
// succeeds after the move.
func TestLayoutReaderReleasesAfterSlotMove(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, false)
	name := t.Name()
	slot, from, to := slotMove(t, c, name)
	s := openLayout(t, "redis+cluster://"+c.Nodes[0].Address(), layouts.RedissonReadWrite)
	g := must(t, s, request(name, driver.Unlimited, long))
	key := "{" + name + "}:other:1:rwlock_timeout:1"
	do(t, from, "SET", key, "1", "PX", "60000")
	do(t, from, "HSET", name, "other:1", "1")
	check(t, c.BeginMove(t.Context(), slot, from, to))
	check(t, c.MoveKey(t.Context(), key, from, to))
	code(t, s, s.Release(t.Context(), g, 0), driver.CodeUnavailable)
	check(t, c.EndMove(t.Context(), slot, from, to))
	if a := renewed(t, s, g); a.Err != nil {
		t.Errorf("the reader has lost its lease: %v", a.Err)
	}
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Error(err)
	}
	do(t, to, "DEL", name, key)
	if left := remnants(t, layouts.RedissonReadWrite, to); len(left) > 0 {
		t.Errorf("keys remain: %q", left)
	}
}

// layoutRights are the commands that docs/redis-layouts.md requires on a single server, in addition to
// those of docs/security.md.
var layoutRights = strings.Fields("exists hexists hkeys hlen setnx incr incrby decrby lindex lrange lpop rpush lrem " +
	"zadd zscore zrem zincrby zrange zrangebyscore zcard")

// TestLayoutRefusedCommandKeepsGrants takes each documented right away from a client.
func TestLayoutRefusedCommandKeepsGrants(t *testing.T) {
	eachLayout(t, func(t *testing.T, l layouts.Layout) {
		t.Parallel()
		r := start(t)
		h := drivertest.Harness{TTL: ttl, Open: func(t testing.TB, namespace string) driver.Store {
			s, err := openingLayout("redis://"+r.Address(), l)(namespace)
			check(t, err)
			return s
		}}
		reasons := withoutRights(r, slices.Concat(documented, layoutRights))
		for i := range reasons {
			reasons[i].Unnoticed = true // no layout needs all rights
		}
		drivertest.Refusals(t, h, limited(t, r, l), reasons...)
	})
}

// TestLayoutNamesKeysThatTheUserMayNotUse: the user may use only the keys of the native layout. The error names the
// keys of the lock, so that the operator can allow them.
func TestLayoutNamesKeysThatTheUserMayNotUse(t *testing.T) {
	r := start(t)
	eachLayout(t, func(t *testing.T, l layouts.Layout) {
		restrict(t, []*servers.Redis{r}, layoutRights...)
		s := openLayout(t, "redis://app:app-secret@"+r.Address(), l, withFairWait(l)...)
		refused := func(what string, err error, names ...string) {
			t.Helper()
			code(t, s, err, driver.CodeRefused)
			for _, name := range append(names, "the keys of the lock: ") {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("%s: %v, want %q", what, err, name)
				}
			}
		}
		list := func() (err error) {
			for _, err = range s.List(t.Context(), "") {
			}
			return err
		}
		_, err := s.Acquire(t.Context(), request("orders", many(l), long))
		refused("Acquire", err, "orders")
		must(t, openLayout(t, "redis://"+r.Address(), l, withFairWait(l)...), request("orders", many(l), long))
		_, err = s.Inspect(t.Context(), "orders")
		refused("Inspect", err, "orders")
		do(t, r, "ACL", "SETUSER", "app", "+scan")
		refused("List", list(), "orders")
		do(t, r, "ACL", "SETUSER", "app", "-scan")
		refused("List without the right to scan", list(), "*", "holdfast:*")
		do(t, r, "FLUSHALL")
	})
}

// TestLayoutFullServerRefusesNewLocks: a server without free memory refuses new locks. Grants of long and
// of short leases can be renewed and released.
func TestLayoutFullServerRefusesNewLocks(t *testing.T) {
	r := start(t)
	eachLayout(t, func(t *testing.T, l layouts.Layout) {
		do(t, r, "FLUSHALL")
		s := openLayout(t, "redis://"+r.Address(), l, withFairWait(l)...)
		grants := []driver.Grant{must(t, s, request("x", many(l), 24*time.Hour))}
		if many(l) != driver.Exclusive {
			grants = append(grants, must(t, s, request("x", many(l), long)))
		}
		full := withoutMemory(r)
		full.Begin(t)
		defer full.End(t)
		slices.Reverse(grants) // the short lease first, then the long one
		for _, g := range grants {
			if a := s.Renew(t.Context(), []driver.Grant{g})[0]; a.Err != nil {
				t.Errorf("a full server does not renew: %v", a.Err)
			}
		}
		_, err := s.Acquire(t.Context(), request("y", driver.Exclusive, long))
		code(t, s, err, driver.CodeRefused)
		for _, g := range grants {
			check(t, s.Release(t.Context(), g, 0))
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
			admin := openLayout(t, "redis://"+r.Address(), layouts.RedissonFair, withFairWait(layouts.RedissonFair)...)
			s := limited(t, r, layouts.RedissonFair)
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
			w := requests.Start(t, q, func() (driver.Grant, error) { return s.Acquire(ctx, q) })
			if queues {
				eventually(t, "the waiter has no queue entry", func() bool { return do(t, r, "LLEN", queued) == int64(1) })
				do(t, r, "ACL", "SETUSER", "app", "-"+right)
				cancel()
			}
			if w.Ended() == nil {
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
// client may not set an expiry. The refused request leaves neither a lock nor a permit, nor a key that does not expire.
func TestLayoutRefusedExpiryLeavesNoGrant(t *testing.T) {
	r := start(t)
	eachLayout(t, func(t *testing.T, l layouts.Layout) {
		do(t, r, "FLUSHALL")
		admin := openLayout(t, "redis://"+r.Address(), l, withFairWait(l)...)
		s := limited(t, r, l)
		must(t, admin, request("x", many(l), 2*long))
		switch l {
		case layouts.RedissonPermits, layouts.RedissonSemaphore:
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
		req := request("new", many(l), long)
		_, err = s.Acquire(t.Context(), req)
		code(t, s, err, driver.CodeRefused)
		code(t, s, s.Undo(t.Context(), req), driver.CodeRefused)
		for _, key := range strungTogether(do(t, r, "KEYS", "holdfast:beside:*")) {
			if left, ok := do(t, r, "PTTL", key).(int64); !ok || left < 0 {
				t.Errorf("the key %s does not expire", key)
			}
		}
	})
}

// limited returns a store whose user app has all documented rights. The first request also connects
// and probes the server, so limited makes one before a test takes a right away.
func limited(t *testing.T, r *servers.Redis, l layouts.Layout) driver.Store {
	restrict(t, []*servers.Redis{r}, layoutRights...)
	do(t, r, "ACL", "SETUSER", "app", "~*", "&*")
	s := openLayout(t, "redis://app:app-secret@"+r.Address(), l, withFairWait(l)...)
	release(t, s, must(t, s, request("other", driver.Exclusive, long)))
	return s
}
