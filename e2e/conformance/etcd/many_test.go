package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestManyLocksOverASlowLink: the client renews thousands of locks over a link with a round
// trip that is a large part of the TTL. It loses none.
func TestManyLocksOverASlowLink(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes the client itself too slow for so many locks")
	}
	for _, test := range []struct {
		locks      int
		delay, ttl time.Duration
	}{
		{12_000, 20 * time.Millisecond, 6 * time.Second},
		{10_000, 100 * time.Millisecond, 9 * time.Second},
	} {
		t.Run(fmt.Sprint(test.locks, "-", test.delay), func(t *testing.T) {
			c := start(t, servers.EtcdConfig{})
			check(t, c.proxies[0].Delay(test.delay))
			l := locker(t, c.open(t))
			held := make([]*holdfast.Lock, test.locks)
			requests.Each(t, test.locks, 200, func(i int) (err error) {
				held[i], err = l.TryLock(t.Context(), fmt.Sprint("n-", i), holdfast.TTL(test.ttl))
				return err
			})
			if t.Failed() {
				t.FailNow()
			}
			time.Sleep(2 * test.ttl)
			lost := 0
			for _, k := range held {
				if k.Context().Err() != nil {
					if lost++; lost == 1 {
						t.Error(context.Cause(k.Context()))
					}
				}
			}
			if lost > 0 {
				t.Errorf("%d of %d locks were lost", lost, test.locks)
			}
			requests.Each(t, test.locks, 200, func(i int) error { return held[i].Unlock() })
		})
	}
}

// TestFailedRenewalAffectsItsTransactionOnly: a renewal takes several transactions, and one
// fails. Only the grants of that one have an error.
func TestFailedRenewalAffectsItsTransactionOnly(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, d := c.disturbed(t)
	var grants []driver.Grant
	for i := range 250 {
		grants = append(grants, must(t, s, request(fmt.Sprint("n", i), 1, time.Minute)))
	}
	reads := 0
	d.next(func(txn *etcdserverpb.TxnRequest) bool {
		if !makes(txn) {
			reads++
		}
		return reads == 2
	}, after(errBroken))
	failed := 0
	for _, a := range s.Renew(t.Context(), grants) {
		if a.Err != nil {
			failed++
		}
	}
	if failed == 0 || failed > 100 {
		t.Errorf("%d of %d grants have an error, want those of one transaction", failed, len(grants))
	}
}
