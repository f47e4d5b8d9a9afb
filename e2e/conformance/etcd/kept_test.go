package etcd

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestKeptGrantKeepsItsKey: grants that were released with a minimum hold keep their keys. The next request of the
// same store makes a queue entry with a key of its own, and overwrites none of them.
func TestKeptGrantKeepsItsKey(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	s := c.open(t)
	for name, test := range map[string]struct {
		limit, kept int
		wait        bool
	}{
		"wait":        {driver.Exclusive, 1, true},
		"shared wait": {driver.Unlimited, 2, true},
		"permit wait": {3, 2, true},
		"shared":      {driver.Unlimited, 2, false},
		"permit":      {3, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keep := time.Minute
			if test.limit == driver.Exclusive {
				keep = 3 * time.Second // the request waits for the end
			}
			var kept []driver.Grant
			for range test.kept {
				kept = append(kept, must(t, s, request(name, test.limit, time.Minute)))
			}
			for _, g := range kept {
				check(t, s.Release(t.Context(), g, keep))
			}
			r := request(name, test.limit, time.Minute)
			r.Wait = test.wait
			g := must(t, s, r)
			st, err := s.Inspect(t.Context(), name)
			check(t, err)
			if test.limit == driver.Exclusive {
				receive(t, "the report of the queue entry", requests.Of(r).Waits)
				test.kept = 0
			} else if n := test.kept; len(st.Holders) != n+1 || st.Holders[n].ID != g.ID || st.Holders[n].Token != g.Token {
				t.Errorf("holders %+v: want the kept grants and the new grant", st.Holders)
			}
			if a := s.Renew(t.Context(), []driver.Grant{g})[0]; a.Err != nil {
				t.Errorf("Renew: %v", a.Err)
			}
			check(t, s.Release(t.Context(), g, 0))
			if st, err := s.Inspect(t.Context(), name); err != nil || len(st.Holders) != test.kept {
				t.Errorf("after Release: %+v, %v, want the kept grants", st, err)
			}
		})
	}
}

// TestUndoKeepsKeptGrant: the key of a request belongs to a grant that was released with a minimum
// hold. The undo of the request does not delete that grant.
func TestUndoKeepsKeptGrant(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, d := c.disturbed(t)
	kept := must(t, s, request("n", 1, time.Minute))
	check(t, s.Release(t.Context(), kept, time.Minute))
	r := request("n", 1, time.Minute)
	r.Wait = true
	d.next(makes, instead(errBroken))
	_, err := s.Acquire(t.Context(), r)
	requests.Code(t, s, err, driver.CodeUnknown)
	check(t, s.Undo(t.Context(), r))
	if st, err := s.Inspect(t.Context(), "n"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != kept.ID {
		t.Fatalf("after Undo: %+v, %v, want the kept grant", st, err)
	}
}

// TestMinimumHoldEndsAlthoughLeadersChange: each new leader gives every lease its whole TTL again. A grant that
// is kept for a minimum hold ends in time nevertheless, while the store that has released it is open. A request that is
// lost delays that by a second at most.
func TestMinimumHoldEndsAlthoughLeadersChange(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{Members: 3})
	client := c.direct(t)
	var lost atomic.Bool
	s := over(t, c.direct(t, unary(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method != etcdserverpb.Lease_LeaseRevoke_FullMethodName {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		if end, ok := ctx.Deadline(); t.Context().Err() == nil && (!ok || time.Until(end) > time.Second) {
			t.Error("a lost request keeps the grant for more than a second")
		}
		if lost.CompareAndSwap(false, true) {
			return context.DeadlineExceeded
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	})))
	const keep = 3 * time.Second
	check(t, s.Release(t.Context(), must(t, s, request("n", driver.Exclusive, time.Minute)), keep))
	free := func() bool {
		st, err := s.Inspect(t.Context(), "n")
		return err == nil && len(st.Holders) == 0
	}
	for end := time.Now().Add(testTimeout); !free(); {
		if time.Now().After(end) {
			t.Fatal("each change of the leader keeps the grant for longer")
		}
		leader := c.leader(t, client)
		next, err := client.Status(t.Context(), c.members[(leader+1)%len(c.members)].Client)
		check(t, err)
		there := c.direct(t, func(cfg *clientv3.Config) { cfg.Endpoints = []string{c.members[leader].Client} })
		_, _ = there.MoveLeader(t.Context(), next.Header.MemberId) // the leader may have changed by itself
		for range 20 {
			if free() {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}
