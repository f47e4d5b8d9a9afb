//go:build linux || darwin

package check

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestPauseBetweenReadingsKeepsValidity requires that a pause between the readings of the
// clock and of the validity does not make the recorded end earlier.
func TestPauseBetweenReadingsKeepsValidity(t *testing.T) {
	const end = int64(time.Minute)
	clock := int64(time.Second)
	pauses := []int64{int64(242 * time.Millisecond)} // only the first reading has a pause
	remaining := func() time.Duration {
		if len(pauses) > 0 {
			clock += pauses[0]
			pauses = pauses[1:]
		}
		return time.Duration(end - clock)
	}
	if until, live := validUntil(func() int64 { return clock }, remaining); until != end || !live {
		t.Errorf("valid until %s, %t; want %s", time.Duration(until), live, time.Duration(end))
	}
	// With a pause at every reading, the recorded end may be too early, but never too late.
	for range 100 {
		pauses = append(pauses, int64(time.Millisecond))
	}
	if until, live := validUntil(func() int64 { return clock }, remaining); until > end || !live {
		t.Errorf("valid until %s, %t; the end is %s", time.Duration(until), live, time.Duration(end))
	}
}

// TestAliveRecordsValidity requires that alive records the validity of a living context.
// The event of a renewal may come only after the lock has ended.
func TestAliveRecordsValidity(t *testing.T) {
	store := memstore.New()
	defer store.Close(t.Context())
	l, err := holdfast.New(store)
	must.Succeed(t, err)
	defer l.Close(t.Context())
	k, err := l.Lock(t.Context(), "n")
	must.Succeed(t, err)
	path := filepath.Join(t.TempDir(), "log")
	log, err := newLog(path, "w")
	must.Succeed(t, err)
	w := &worker{log: log}
	if !w.alive(k, k.Leases()[0], 1) {
		t.Fatal("the context of a held lock has ended")
	}
	must.Succeed(t, log.Close())
	events, err := ReadFiles(path)
	must.Succeed(t, err)
	if len(events) != 2 || events[0].K != kindRenewed || events[1].K != kindAlive || events[0].T != events[1].T || events[0].Until <= events[1].T {
		t.Errorf("%+v", events)
	}
	must.Succeed(t, k.Unlock())
}
