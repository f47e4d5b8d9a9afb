package holdfast

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestLeasesAreRenewedAtOnceAfterASuspend: the schedule reads the same clock, so it detects the
// suspend, and renews all leases.
func TestLeasesAreRenewedAtOnceAfterASuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, renewed := &FakeClock{}, make(chan time.Time, 10)
		s := OnClock(memstore.New(), c)
		renew := s.OnRenew
		s.OnRenew = func(ctx context.Context, gs []driver.Grant) []driver.Renewal {
			defer func() { renewed <- time.Now() }()
			return renew(ctx, gs)
		}
		l, _ := New(s)
		k, err := l.Lock(context.Background(), "a") // TTL 30 s
		must.Succeed(t, err)
		l.mu.Lock()
		l.schedule.checked = driver.NowOn(c)
		l.mu.Unlock()
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		c.Suspended.Add(int64(20 * time.Second)) // 6.5 s of the validity are left, and the store answers
		select {
		case at := <-renewed:
			t.Logf("renewed %s after the resume", at.Sub(began))
		case <-k.Context().Done():
			t.Errorf("lost %s after the resume: %v", time.Since(began), context.Cause(k.Context()))
		}
		_ = k.Unlock()
		_ = l.Close(context.Background())
	})
}

func TestDoneClosesSoonAfterASuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &FakeClock{}
		m := memstore.New()
		l, _ := New(OnClock(m, c))
		k, err := l.Lock(context.Background(), "a") // TTL 30 s
		must.Succeed(t, err)
		m.Script().FailRenewals("a", 1<<30, nil)
		l.mu.Lock()
		l.schedule.checked = driver.NowOn(c)
		l.mu.Unlock()
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		c.Suspended.Add(int64(24500 * time.Millisecond)) // the validity ends in 2 s, the lease in 5 s
		<-k.Context().Done()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Done closed %s after the resume: the validity ended after 2 s, the lease after 5 s", took)
		}
		_ = k.Unlock()
		_ = l.Close(context.Background())
	})
}
