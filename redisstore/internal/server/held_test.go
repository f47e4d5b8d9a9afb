package server

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// acked is a client whose replicas acknowledge a call when release is closed.
type acked struct {
	Client
	calls   atomic.Int32
	release chan struct{}
}

func (a *acked) EvalAcked(context.Context, *Script, []string, []string, string, int, time.Duration) ([]string, int, error) {
	a.calls.Add(1)
	<-a.release
	return []string{"R", strconv.FormatInt(time.Now().UnixMicro(), 10)}, 1, nil
}

// TestRenewalsAtOnceAreLimited renews many grants that replicas have to acknowledge. It requires that
// at most maxRenewals calls are under way at once, because each needs a connection of its own.
func TestRenewalsAtOnceAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &acked{release: make(chan struct{})}
		s := &Server{Client: a, Config: Config{Replicas: 1}}
		done := make(chan []Result)
		go func() { done <- s.EvalRenewals(t.Context(), &Script{Name: "renew"}, make([]Call, 3*maxRenewals)) }()
		synctest.Wait()
		if n := a.calls.Load(); n != maxRenewals {
			t.Errorf("%d calls at once, want %d", n, maxRenewals)
		}
		close(a.release)
		for _, r := range <-done {
			if r.Err != nil || r.Reply.Kind != 'R' {
				t.Errorf("%+v", r)
			}
		}
	})
}

// TestRequestsNeverUndoneNeedNoMemory makes requests without an answer, and undoes none of them. The test
// requires that the store forgets those that the server would refuse by now.
func TestRequestsNeverUndoneNeedNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := New(nil, Config{}, Recipe{})
		defer s.Cancel()
		const burst = 100
		for i := range 10 * burst {
			s.RecordLate(strconv.Itoa(i), driver.Errorf(driver.CodeUnknown, "the answer was lost"), s.Clock.Deadline())
			if i%burst == 0 {
				time.Sleep(3 * Window)
			}
		}
		if len(s.late) > 2*burst {
			t.Errorf("%d requests are recorded, want at most %d", len(s.late), 2*burst)
		}
		s.RecordLate("refused", driver.Errorf(driver.CodeRefused, "no"), s.Clock.Deadline())
		s.RecordLate("not sent", driver.Errorf(driver.CodeUnknown, "no"), 0)
		for _, id := range []string{"refused", "not sent"} {
			if _, kept := s.late[id]; kept {
				t.Errorf("the request %q is recorded, and cannot arrive", id)
			}
		}
	})
}
