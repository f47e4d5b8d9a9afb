package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/zkstore"
)

// metered is a connection that counts the written bytes.
type metered struct {
	net.Conn
	written *atomic.Int64
}

func (m metered) Write(b []byte) (int, error) {
	m.written.Add(int64(len(b)))
	return m.Conn.Write(b)
}

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
			a, _ := locker(t, []string{p.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				return metered{c, &written}, err
			}))
			_, sb := locker(t, []string{z.Address()})
			held := make([]*holdfast.Lock, locks)
			var taking sync.WaitGroup
			for from := range lanes {
				taking.Go(func() {
					for i := from; i < locks; i += lanes {
						name := fmt.Sprintf("slow-%s-%d", delay, i)
						k, err := a.Lock(t.Context(), name, holdfast.TTL(ttl))
						for errors.Is(err, holdfast.ErrUnavailable) && t.Context().Err() == nil { // the machine may be busy
							k, err = a.Lock(t.Context(), name, holdfast.TTL(ttl))
						}
						if err != nil {
							t.Error(err)
							return
						}
						held[i] = k
					}
				})
			}
			taking.Wait()
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
			for _, i := range []int{0, locks / 2, locks - 1} {
				k := held[i]
				children, _, err := raw.Children("/faults/" + k.Name())
				must(t, err)
				for _, c := range children {
					must(t, raw.Delete("/faults/"+k.Name()+"/"+c, -1))
				}
				select {
				case <-k.Context().Done():
				case <-time.After(testTimeout):
					t.Fatalf("the holder of %s was not notified that its node was deleted", k.Name())
				}
			}
			for i, k := range held {
				if err := k.Context().Err(); err != nil && i != 0 && i != locks/2 && i != locks-1 {
					t.Fatalf("%s was lost: %v", k.Name(), context.Cause(k.Context()))
				}
			}
			var giving sync.WaitGroup
			for from := range lanes {
				giving.Go(func() {
					for i := from; i < locks; i += lanes {
						if err := held[i].Unlock(); err != nil && i != 0 && i != locks/2 && i != locks-1 {
							t.Error(err)
						}
					}
				})
			}
			giving.Wait()
			empty(t, sb, held[1].Name())
		})
	}
}
