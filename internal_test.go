package holdfast

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestLossStopsTheHoldLimit: nothing runs on for a lock that was lost and whose
// Unlock is late.
func TestLossStopsTheHoldLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, err := New(s)
		if err != nil {
			t.Fatal(err)
		}
		k, err := l.Lock(context.Background(), "a", MaxHold(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Script().Lose("a", driver.Taken)
		<-k.Context().Done()
		synctest.Wait()
		if k.limit.Stop() {
			t.Error("the timer of MaxHold still ran")
		}
		_ = k.Unlock()
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
