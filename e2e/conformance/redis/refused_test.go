package redis

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestRefusedCommandKeepsGrants removes each documented right from a client, and rights that belong together, or
// fills the memory of its server. A holder can still renew and release on a full server.
func TestRefusedCommandKeepsGrants(t *testing.T) {
	r := start(t)
	restrict(t, []*servers.Redis{r})
	drivertest.Refusals(t, drivertest.Harness{TTL: ttl, Open: func(t testing.TB, namespace string) driver.Store {
		s, err := opening("redis://" + r.Address())(namespace)
		check(t, err)
		return s
	}}, open(t, "redis://app:app-secret@"+r.Address()), append(withoutRights(r, append(documented, "pexpire -del")), withoutMemory(r))...)
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
		release(t, slow, w.Granted())
	}
}
