package etcd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestTryOfBusyPrefixIsAnswered: a request for "a" that does not wait gets an answer although the
// keys below "a" change before each of its transactions. A refused request leaves no key.
func TestTryOfBusyPrefixIsAnswered(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	below := c.direct(t)
	other := c.open(t)
	var changes atomic.Int64 // the changes below "a" so far
	var takeAt atomic.Int64  // the number of the change after which the other client takes "a"
	var taken driver.Grant
	s := over(t, c.direct(t, onTxn(func(_ *etcdserverpb.TxnRequest, send func() error) error {
		changes.Add(1)
		if _, err := below.Put(t.Context(), "a/b/c", fmt.Sprint(changes.Load())); err != nil {
			return err
		}
		if changes.Load() == takeAt.Load() {
			taken = must(t, other, request("a", driver.Exclusive, time.Minute))
		}
		return send()
	})))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for _, limit := range []int{driver.Exclusive, driver.Unlimited} {
		g, err := s.Acquire(ctx, request("a", limit, time.Minute))
		if err != nil {
			t.Fatalf("limit %d, after %d changes below: %v", limit, changes.Load(), err)
		}
		if a := s.Renew(ctx, []driver.Grant{g})[0]; a.Err != nil {
			t.Error(a.Err)
		}
		if _, err := s.Acquire(ctx, request("a", driver.Exclusive, time.Minute)); s.Classify(err) != driver.CodeBusy {
			t.Errorf("beside a grant of limit %d: %v", limit, err)
		}
		st, err := c.open(t).Inspect(ctx, "a")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != g.Token || len(st.Waiters) != 0 {
			t.Errorf("%+v, %v", st, err)
		}
		check(t, s.Release(ctx, g, 0))
	}

	// After as many attempts the store creates a queue entry although keys have changed. The name is
	// free during these attempts, and held when the store creates the entry.
	const attempts = 8
	takeAt.Store(changes.Load() + attempts + 1)
	if _, err := s.Acquire(ctx, request("a", driver.Exclusive, time.Minute)); s.Classify(err) != driver.CodeBusy {
		t.Errorf("after another client took the lock meanwhile: %v", err)
	}
	st, err := other.Inspect(ctx, "a")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != taken.Token || len(st.Waiters) != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}
