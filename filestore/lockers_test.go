//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestManyCancelledWaitersLeaveNothing: 10,000 waiters of eight Lockers are cancelled at
// random moments while the locks change hands. No goroutine, descriptor or entry is left.
func TestManyCancelledWaitersLeaveNothing(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	dir := t.TempDir()
	before := descriptors(t)
	var lockers []*holdfast.Locker
	for range 8 {
		l, err := holdfast.Open(t.Context(), "file://"+dir)
		must.Succeed(t, err)
		lockers = append(lockers, l)
	}
	names := []string{"a", "b", "c"}
	var wg sync.WaitGroup
	for i := range 10_000 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(300*time.Millisecond))
			defer cancel()
			o := [][]holdfast.LockOption{nil, {holdfast.Shared()}, {holdfast.Limit(3)}}[rand.N(3)]
			k, err := lockers[i%len(lockers)].Lock(ctx, names[i%len(names)], o...)
			switch {
			case err == nil:
				// On a busy machine Unlock may fail. The Locker then releases the lock in the background.
				if err := k.Unlock(); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
					t.Error(err)
				}
			case !errors.Is(err, context.DeadlineExceeded):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, name := range names { // the Lockers release late grants in the background
		k, err := lockers[0].Lock(t.Context(), name, holdfast.Wait(20*time.Second))
		must.Succeed(t, err)
		must.Report(t, k.Unlock())
	}
	for st, err := range lockers[0].List(t.Context(), "") {
		t.Errorf("a lock remains: %+v, %v", st, err)
	}
	for _, l := range lockers {
		must.Report(t, l.Close(context.Background()))
	}
	left, err := os.ReadDir(dir + "/sessions")
	if err != nil || len(left) != 0 {
		t.Errorf("sessions remain: %v, %v", left, err)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were open before", after, before)
	}
	goleak.VerifyNone(t, ignore)
}

// descriptors returns the number of open descriptors of this process.
func descriptors(t *testing.T) int {
	fds, err := os.ReadDir("/dev/fd")
	must.Succeed(t, err)
	return len(fds)
}
