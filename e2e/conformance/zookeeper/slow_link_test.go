package zookeeper

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// TestThousandsOfLocksOverASlowLink: a client holds thousands of locks over a slow link. It loses
// none, and after a while it stops sending requests for each lock. It notices each node that an
// operator deletes, and releases all locks.
func TestThousandsOfLocksOverASlowLink(t *testing.T) {
	const locks, ttl, lanes = 6000, 6 * time.Second, 128
	for _, delay := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			z, p := proxied(t)
			must(t, p.Delay(delay))
			var written atomic.Int64
			a, _ := locker(t, []string{p.Address()}, onWrites(func(b []byte) { written.Add(int64(len(b))) }, nil))
			_, sb := locker(t, []string{z.Address()})
			held := make([]*holdfast.Lock, locks)
			requests.Each(t, locks, lanes, func(i int) (err error) {
				name := fmt.Sprintf("slow-%s-%d", delay, i)
				held[i], err = requests.Retried(func() (*holdfast.Lock, error) {
					return a.Lock(t.Context(), name, holdfast.TTL(ttl))
				})
				return err
			})
			if t.Failed() {
				t.FailNow()
			}
			began, still := time.Now(), time.Now()
			for last := written.Load(); time.Since(began) < 2*ttl || time.Since(still) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
				for _, k := range held {
					if k.Context().Err() != nil {
						t.Fatalf("%s was lost: %v", k.Name(), context.Cause(k.Context()))
					}
				}
				if now := written.Load(); now-last > 2*locks {
					last, still = now, time.Now()
				}
				if time.Since(began) > 3*testTimeout {
					t.Fatal("the client does not stop sending requests for each lock")
				}
			}
			raw := connect(t, z.Address())
			some := []int{0, locks / 2, locks - 1}
			deleted := func(i int) bool { return slices.Contains(some, i) }
			for _, i := range some {
				dir := "/faults/" + held[i].Name()
				must(t, raw.Delete(dir+"/"+nodes(t, raw, dir, "it stands", count(1))[0], -1))
				ends(t, held[i])
			}
			for i, k := range held {
				if k.Context().Err() != nil && !deleted(i) {
					t.Fatalf("%s was lost: %v", k.Name(), context.Cause(k.Context()))
				}
			}
			requests.Each(t, locks, lanes, func(i int) error {
				if err := held[i].Unlock(); !deleted(i) {
					return err
				}
				return nil
			})
			empty(t, sb, held[1].Name())
		})
	}
}
