//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
)

func TestUndoRemovesQueueEntryOrGrant(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	r := request("a", driver.Exclusive)
	for range 2 {
		if err := a.Undo(testContext(t), r); err != nil {
			t.Fatalf("undo of a request that never arrived: %v", err)
		}
	}
	g, err := a.Acquire(testContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	p := queue(t, b, "a", driver.Exclusive)
	for range 2 {
		if err := a.Undo(testContext(t), r); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, a, a.Release(testContext(t), g, 0), driver.CodeNotHeld)
	p.granted(t)
}

func TestWithdrawnQueueEntryIsPassedOver(t *testing.T) {
	dir := tempDir(t)
	a, b, c := open(t, dir), open(t, dir), open(t, dir)
	for _, s := range []*filestore.Store{a, b, c} {
		s.NoFallback()
	}
	g := take(t, a, "a", driver.Exclusive)
	p, q := queue(t, b, "a", driver.Exclusive), queue(t, c, "a", driver.Exclusive)
	p.cancel()
	err := p.ended(t)
	wantCode(t, b, err, driver.CodeWithdrawn)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not contain the reason", err)
	}
	release(t, a, g)
	q.granted(t)
}

// TestWithdrawnWriterLetsReadersPass: readers queue behind a writer. The withdrawal of its entry admits
// them.
func TestWithdrawnWriterLetsReadersPass(t *testing.T) {
	dir := tempDir(t)
	a, b, c := open(t, dir), open(t, dir), open(t, dir)
	for _, s := range []*filestore.Store{a, b, c} {
		s.NoFallback()
	}
	take(t, a, "a", driver.Unlimited)
	w, r := queue(t, b, "a", driver.Exclusive), queue(t, c, "a", driver.Unlimited)
	w.cancel()
	wantCode(t, b, w.ended(t), driver.CodeWithdrawn)
	r.granted(t)
}

func TestCancelledWaitsLeaveNothing(t *testing.T) {
	dir := tempDir(t)
	var stores []*filestore.Store
	for range 3 {
		stores = append(stores, open(t, dir))
	}
	take(t, stores[0], "warm", driver.Exclusive)
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			s := stores[i%len(stores)]
			ctx, cancel := context.WithTimeout(context.Background(), rand.N(40*time.Millisecond))
			defer cancel()
			r := request("a", []int{1, 1, 2, driver.Unlimited}[i%4])
			r.Wait = i%5 > 0
			g, err := s.Acquire(ctx, r)
			switch code := s.Classify(err); {
			case err == nil:
				if err := s.Release(context.Background(), g, 0); err != nil {
					t.Error(err)
				}
			case code == driver.CodeUnknown:
				if err := s.Undo(context.Background(), r); err != nil {
					t.Error(err)
				}
			case code != driver.CodeWithdrawn && code != driver.CodeBusy && code != driver.CodeUnavailable:
				t.Errorf("%v: %v", code, err)
			}
		})
	}
	wg.Wait()
	st, err := stores[0].Inspect(testContext(t), "a")
	if err != nil || len(st.Holders)+len(st.Waiters) > 0 {
		t.Errorf("entries remain: %+v, %v", st, err)
	}
	take(t, stores[1], "a", driver.Exclusive)
}
