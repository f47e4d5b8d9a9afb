package holdfast

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

type suspendClock struct{ slept atomic.Int64 }

func (c *suspendClock) Now() time.Time       { return time.Now() }
func (c *suspendClock) Slept() time.Duration { return time.Duration(c.slept.Load()) }

type onSuspendClock struct {
	driver.Store
	c       *suspendClock
	renewed chan time.Time
}

func (s onSuspendClock) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, r)
	g.SentAt = driver.NowOn(s.c)
	return g, err
}
func (s onSuspendClock) Renew(ctx context.Context, gs []driver.Grant) []driver.Renewal {
	a := s.Store.Renew(ctx, gs)
	for i := range a {
		a[i].SentAt = driver.NowOn(s.c)
	}
	select {
	case s.renewed <- time.Now():
	default:
	}
	return a
}

// TestLeasesAreRenewedAtOnceAfterASuspend: the schedule reads the same clock, so it detects the
// suspend, and renews all leases.
func TestLeasesAreRenewedAtOnceAfterASuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &suspendClock{}
		st := onSuspendClock{memstore.New(), c, make(chan time.Time, 10)}
		l, _ := New(st)
		k, err := l.Lock(context.Background(), "a") // TTL 30 s
		must.Succeed(t, err)
		l.mu.Lock()
		l.schedule.checked = driver.NowOn(c)
		l.mu.Unlock()
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		c.slept.Add(int64(20 * time.Second)) // 6.5 s of the validity are left, and the store answers
		select {
		case at := <-st.renewed:
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
		c := &suspendClock{}
		m := memstore.New()
		l, _ := New(onSuspendClock{m, c, make(chan time.Time, 10)})
		k, err := l.Lock(context.Background(), "a") // TTL 30 s
		must.Succeed(t, err)
		m.Script().FailRenewals("a", 1<<30, nil)
		l.mu.Lock()
		l.schedule.checked = driver.NowOn(c)
		l.mu.Unlock()
		time.Sleep(500 * time.Millisecond)
		began := time.Now()
		c.slept.Add(int64(24500 * time.Millisecond)) // the validity ends in 2 s, the lease in 5 s
		<-k.Context().Done()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Done closed %s after the resume: the validity ended after 2 s, the lease after 5 s", took)
		}
		_ = k.Unlock()
		_ = l.Close(context.Background())
	})
}
