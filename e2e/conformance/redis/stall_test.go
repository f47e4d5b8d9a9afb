package redis

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestOrderOutlastsServerStall: the server stops for longer than three refresh intervals. Meanwhile the
// holder releases, and a client tries once. After the stall the waiters are granted in their order, and
// the other client is not granted before them.
func TestOrderOutlastsServerStall(t *testing.T) {
	for _, stall := range []time.Duration{2500 * time.Millisecond, 3500 * time.Millisecond} {
		t.Run(stall.String(), func(t *testing.T) {
			t.Parallel()
			r := start(t)
			url := "redis://" + r.Address()
			holder, other := open(t, url), open(t, url)
			held := must(t, holder, request("x", driver.Exclusive, long))
			_, err := other.Acquire(t.Context(), request("x", driver.Exclusive, long))
			code(t, other, err, driver.CodeBusy)
			granted := make(chan int, 8)
			stores, waiters := make([]driver.Store, 8), make([]*waiter, 8)
			for i := range waiters {
				stores[i] = open(t, url)
				waiters[i] = queue(t, stores[i], request("x", driver.Exclusive, long))
				go func() {
					<-waiters[i].Done
					granted <- i
				}()
			}
			began := time.Now()
			check(t, r.Pause())
			released, tried := make(chan struct{}), make(chan error, 1)
			go func() {
				defer close(released)
				release(t, holder, held)
			}()
			go func() {
				_, err := other.Acquire(t.Context(), request("x", driver.Exclusive, long))
				tried <- err
			}()
			time.Sleep(stall)
			check(t, r.Cont())
			if time.Since(began) > stall+500*time.Millisecond {
				t.Skip("the machine is too slow: the stall was longer")
			}
			<-released
			if err := <-tried; !errors.As(err, new(*driver.BusyError)) {
				t.Errorf("a client that does not wait: %v, want a name that is held", err)
			}
			for i, w := range waiters {
				if got := <-granted; got != i {
					t.Fatalf("waiter %d is granted, want %d", got, i)
				}
				release(t, stores[i], w.Granted())
			}
		})
	}
}

// TestLateConfirmationKeepsTurn: a waiter is promoted, and its confirmation reaches the server after the
// lease of the promotion. No other client has a grant since, so the waiter gets the grant.
func TestLateConfirmationKeepsTurn(t *testing.T) {
	t.Parallel()
	gates, _, waiters, promoted := unconfirmed(t)
	gates[0].release()
	if g := waiters[0].Granted(); g.Token != promoted {
		t.Errorf("token %d, want that of the promotion, %d", g.Token, promoted)
	}
	gates[1].release()
	waiters[1].Pending()
}

// TestWaiterWithoutConfirmationQueuesAgain: a waiter is promoted, and does not confirm that in time. Then
// the next waiter is granted, and the first one waits behind it.
func TestWaiterWithoutConfirmationQueuesAgain(t *testing.T) {
	t.Parallel()
	gates, stores, waiters, promoted := unconfirmed(t)
	gates[1].release()
	second := waiters[1].Granted()
	gates[0].release()
	waiters[0].Pending()
	release(t, stores[1], second)
	if g := waiters[0].Granted(); g.Token <= second.Token || second.Token <= promoted {
		t.Errorf("tokens %d, then %d, then %d", promoted, second.Token, g.Token)
	}
}

// unconfirmed returns two waiters, in their order, whose gates hold all calls. The first one is promoted
// with the token promoted, and that grant has expired.
func unconfirmed(t *testing.T) (gates [2]gate, stores [2]driver.Store, waiters [2]*waiter, promoted uint64) {
	r := start(t)
	holder := open(t, "redis://"+r.Address())
	held := must(t, holder, request("x", driver.Exclusive, long))
	for i := range waiters {
		gates[i] = newGate(t, r.Address())
		stores[i] = open(t, "redis://"+gates[i].Address())
		waiters[i] = queue(t, stores[i], request("x", driver.Exclusive, long))
	}
	for _, g := range gates {
		g.hold()
	}
	release(t, holder, held)
	holders := func() []driver.Holder {
		st, err := holder.Inspect(t.Context(), "x")
		check(t, err)
		return st.Holders
	}
	first := holders()
	if len(first) != 1 {
		t.Fatalf("after the release: %+v, want the first waiter", first)
	}
	eventually(t, "the promotion does not expire", func() bool { return len(holders()) == 0 })
	return gates, stores, waiters, first[0].Token
}
