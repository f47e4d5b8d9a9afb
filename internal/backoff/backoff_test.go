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
		for i, most := range []time.Duration{10, 20, 40, 50, 50} {
			most *= time.Millisecond
			if d := b.Next(); d < most/2 || d > most {
				t.Errorf("delay %d is %s, want %s to %s", i, d, most/2, most)
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
		t.Errorf("Sleep returned %v after the end of its context", err)
	}
}
