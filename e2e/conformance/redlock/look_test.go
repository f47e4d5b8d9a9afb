package redlock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// TestLooksBesideRequests locks and unlocks many names while the store looks after the grants
// that it holds: neither waits for the other for ever.
func TestLooksBesideRequests(t *testing.T) {
	f := start(t, 3, redlock.Config{})
	s := f.open(t)
	held := must(t, s, "held", time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // several looks
	defer cancel()
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			for ctx.Err() == nil {
				r := request(fmt.Sprint("n", i), time.Minute)
				if g, err := s.Acquire(ctx, r); err == nil {
					_ = s.Release(context.Background(), g, 0)
				} else if s.Classify(err) == driver.CodeUnknown {
					_ = s.Undo(t.Context(), r)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		all.Wait()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("requests do not return")
	}
	release(t, s, held)
}
