package redisstore

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestRenewalsAtOnceAreLimited renews many grants that replicas have to acknowledge. It requires that
// at most maxRenewals calls are under way at once, because each needs a connection of its own.
func TestRenewalsAtOnceAreLimited(t *testing.T) {
	for _, layout := range []Layout{Native, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int32
				hold := make(chan struct{})
				f := &fake{acked: func(_ context.Context, _ *Script, _, _ []string) ([]string, int, error) {
					calls.Add(1)
					<-hold
					return []string{"R", serverNow()}, 1, nil
				}}
				s := store(t, f, WithLayout(layout), WaitReplicas(1, time.Second))
				if _, err := s.Guarantees(t.Context()); err != nil {
					t.Fatal(err)
				}
				var grants []driver.Grant
				for i := range 3 * maxRenewals {
					g := driver.Grant{ID: strconv.Itoa(i), Name: "n" + strconv.Itoa(i), Limit: 1, Token: 7, TTL: time.Minute, Handle: &handle{slot: "0"}}
					if layout != Native {
						g.Handle = &peerHandle{}
					}
					grants = append(grants, g)
				}
				done := make(chan []driver.Renewal)
				go func() { done <- s.Renew(t.Context(), grants) }()
				synctest.Wait()
				if n := calls.Load(); n != maxRenewals {
					t.Errorf("%d calls at once, want %d", n, maxRenewals)
				}
				close(hold)
				for _, a := range <-done {
					if a.Err != nil {
						t.Error(a.Err)
					}
				}
			})
		})
	}
}
