package holdfast_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// queueUp starts goroutines that acquire a lock one after another, in the order of the calls of take. Each
// goroutine holds the lock for d.
type queueUp struct {
	t     *testing.T
	wg    sync.WaitGroup
	mu    sync.Mutex
	names []string
	took  []uint64
}

func (q *queueUp) take(name string, l *holdfast.Locker, d time.Duration) {
	q.wg.Go(func() {
		k := mustLock(q.t, l, "a")
		q.mu.Lock()
		q.names, q.took = append(q.names, name), append(q.took, k.Token())
		q.mu.Unlock()
		time.Sleep(d)
		unlock(q.t, k)
	})
	synctest.Wait()
}

// served returns the waiters that were served, in order, and requires that tokens rise.
func (q *queueUp) served() string {
	q.wg.Wait()
	for i := 1; i < len(q.took); i++ {
		if q.took[i] <= q.took[i-1] {
			q.t.Errorf("tokens do not rise: %v", q.took)
		}
	}
	return strings.Join(q.names, "")
}

// TestDefaultHandoffIsBounded: without an option, a lease is handed off at most 64 times,
// and at most 5 ms after its grant. Longer locks are served in the order of the store's
// queue. Each holder has a token of its own, and is reported.
func TestDefaultHandoffIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		hold time.Duration
		n    int
		want string
		o    []holdfast.Option
	}{
		"short holds":  {time.Millisecond, 8, "ol" + strings.Repeat("l", 4) + "olll", nil},
		"long holds":   {6 * time.Millisecond, 3, "olol" + "l", nil},
		"no time":      {0, 80, "ol" + strings.Repeat("l", 64) + "o" + strings.Repeat("l", 15), nil},
		"three":        {0, 9, "ol" + "lll" + "o" + "llll" + "l", []holdfast.Option{holdfast.LocalHandoff(3)}},
		"switched off": {time.Millisecond, 3, "olol" + "l", []holdfast.Option{holdfast.LocalHandoff(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, r := memstore.New(), &recorder{}
				l, other, first := newLocker(t, s, append(c.o, holdfast.WithHooks(r))...), newLocker(t, s.Client()), newLocker(t, s.Client(), c.o...)
				k := mustLock(t, l, "a")
				(&queueUp{t: t}).take("l", l, 0) // both Lockers compete
				unlock(t, k)
				synctest.Wait()
				k = mustLock(t, first, "a")
				q := &queueUp{t: t}
				// The other Locker has its queue entry before first unlocks.
				q.take("o", other, time.Millisecond)
				for range c.n {
					q.take("l", l, c.hold)
				}
				q.take("o", other, 0)
				unlock(t, k)
				if got := q.served(); got != c.want {
					t.Errorf("served %s, want %s", got, c.want)
				}
				synctest.Wait()
				for _, kind := range []holdfast.EventKind{holdfast.EventAcquired, holdfast.EventReleased} {
					kinds := slices.DeleteFunc(r.kinds(), func(k holdfast.EventKind) bool { return k != kind })
					if want := 2 + c.n; len(kinds) != want {
						t.Errorf("%d events of kind %s, want %d", len(kinds), kind, want)
					}
				}
			})
		})
	}
}

// TestLeaseAfterAHandoffIsRenewedAndExclusive: a lease that was handed off is renewed, can
// be lost and broken, and excludes other Lockers. A waiter with other options does not get
// it.
func TestLeaseAfterAHandoffIsRenewedAndExclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s, holdfast.LocalHandoff(holdfast.MaxHandoff)), newLocker(t, s.Client())
		var k *holdfast.Lock
		pass := func(o ...holdfast.LockOption) *holdfast.Lock {
			got := lockLater(t, l, bg, o...)
			token := k.Token()
			unlock(t, k)
			next := <-got
			if next.Token() <= token {
				t.Errorf("token %d after %d", next.Token(), token)
			}
			return next
		}
		grant := func() holdfast.Holder { // the grant as the store keeps it
			st, err := other.Inspect(bg, "a")
			if err != nil || len(st.Holders) != 1 {
				t.Fatal(st, err)
			}
			return st.Holders[0]
		}
		k = mustLock(t, l, "a")
		if h := grant(); h.Tokens != 1 {
			t.Errorf("%d tokens reserved while no goroutine waits", h.Tokens)
		}
		k = pass()
		k = pass()
		first := grant()
		for i := range 3 {
			if k = pass(holdfast.Reason("next")); grant().Token != first.Token || k.Token() != first.Token+uint64(i)+1 {
				t.Errorf("token %d of a grant from %d on: not handed off", k.Token(), grant().Token)
			}
		}
		time.Sleep(5*time.Minute + 5*time.Second) // the lease is renewed, and no renewal is due at the break
		wantBusy(t, other, "a")
		if k.Context().Err() != nil {
			t.Fatal(context.Cause(k.Context()))
		}
		if err := other.Break(bg, "a", driver.LastToken(first.Token, first.Tokens)+1); !errors.Is(err, holdfast.ErrNotHeld) {
			t.Errorf("break of a token beyond the grant: %v", err)
		}
		must.Report(t, other.Break(bg, "a", k.Token()))
		<-k.Context().Done()
		wantCause(t, k.Context(), holdfast.CauseTaken)
		err := k.Unlock()
		if lost, ok := errors.AsType[*holdfast.LostError](err); !ok || lost.Token != k.Token() {
			t.Error(err)
		}

		k = mustLock(t, l, "a")
		token := grant().Token
		if k = pass(holdfast.Shared()); grant().Token == token {
			t.Error("an exclusive grant handed off to a reader")
		}
		token = grant().Token
		if k = pass(); grant().Token == token {
			t.Error("a shared grant handed off")
		}
		token = grant().Token
		if k = pass(holdfast.TTL(time.Minute)); grant().Token == token {
			t.Error("a grant of another TTL handed off")
		}
		unlock(t, k)

		k = mustLock(t, l, "a", holdfast.MinHold(time.Minute))
		token = grant().Token
		began := time.Now()
		if k = pass(); grant().Token == token || time.Since(began) < time.Minute {
			t.Errorf("handed off within its MinHold, after %s", time.Since(began))
		}
		unlock(t, k)
		wantFree(t, other, "a")
	})
}

// TestHandoffWithoutReservedTokensKeepsTheToken: on a store without reserved tokens a handoff keeps the
// token, and is off by default.
func TestHandoffWithoutReservedTokensKeepsTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{0, 2} {
			s := altered(memstore.New(), func(g *driver.Guarantees) { g.Reserves = false })
			var o []holdfast.Option
			if n > 0 {
				o = append(o, holdfast.LocalHandoff(n))
			}
			l := newLocker(t, s, o...)
			k := mustLock(t, l, "a")
			tokens := []uint64{k.Token()}
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					k := mustLock(t, l, "a")
					tokens = append(tokens, k.Token())
					unlock(t, k)
				})
				synctest.Wait()
			}
			unlock(t, k)
			wg.Wait()
			want := []uint64{1, 2, 3, 4}
			if n > 0 {
				want = []uint64{1, 1, 1, 2}
			}
			if !slices.Equal(tokens, want) {
				t.Errorf("LocalHandoff(%d): tokens %v, want %v", n, tokens, want)
			}
		}
	})
}
