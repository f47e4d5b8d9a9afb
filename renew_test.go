package holdfast_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestRenewalsDueTogetherGoInOneCall: a renewal includes the renewals that are due within a
// sixteenth of the renewal interval, and no others.
func TestRenewalsDueTogetherGoInOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var calls []string
		h := &hooked{Store: memstore.New()}
		h.renew = func(gs []driver.Grant, a []driver.Renewal) []driver.Renewal {
			var names []string
			for _, g := range gs {
				names = append(names, g.Name)
			}
			slices.Sort(names)
			calls = append(calls, time.Since(began).String()+" "+strings.Join(names, " "))
			return a
		}
		l := newLocker(t, h)
		// Each lease is renewed every 8 s, so the window is half a second.
		for _, name := range []string{"a", "b", "c"} {
			defer unlock(t, mustLock(t, l, name, holdfast.TTL(24*time.Second)))
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if want := []string{"8s a b", "8.6s c"}; !slices.Equal(calls, want) {
			t.Errorf("renewals %q, want %q", calls, want)
		}
	})
}
