package redisstore

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWaiterRefreshesWhileItCannotSubscribe: each failed subscription makes the waiters refresh soon. That does not
// delay the refresh that is due.
func TestWaiterRefreshesWhileItCannotSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &attempt{e: &entry{wake: make(chan struct{}), refreshSoon: make(chan struct{})}}
		slept := make(chan time.Duration)
		go func() {
			began := time.Now()
			a.sleep(t.Context(), time.NewTimer(0), 15*time.Second)
			slept <- time.Since(began)
		}()
		for range 20 {
			select {
			case a.e.refreshSoon <- struct{}{}:
				time.Sleep(100 * time.Millisecond)
			case d := <-slept:
				if d > near {
					t.Errorf("slept for %s, want at most %s", d, near)
				}
				return
			}
		}
		t.Error("no refresh in two seconds")
		a.e.wake <- struct{}{}
		<-slept
	})
}
