package backoff

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestNextDoublesUpToMax(t *testing.T) {
	b := Backoff{First: 10 * time.Millisecond, Max: 50 * time.Millisecond}
	for range 2 {
		for i, limit := range []time.Duration{10, 20, 40, 50, 50} {
			limit *= time.Millisecond
			if d := b.Next(); d < limit/2 || d > limit {
				t.Errorf("delay %d is %s, want %s to %s", i, d, limit/2, limit)
			}
		}
		b.Reset()
	}
}

func TestSleepEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := Backoff{First: time.Millisecond, Max: time.Millisecond}
	if err := b.Sleep(ctx); err != nil {
		t.Error(err)
	}
	cancel()
	if err := Sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("Sleep returned %v after the end of its context, want Canceled", err)
	}
}
