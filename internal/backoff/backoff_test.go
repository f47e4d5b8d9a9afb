package backoff

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
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
	must.Report(t, b.Sleep(ctx))
	cancel()
	if err := Sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("Sleep returned %v after the end of its context, want Canceled", err)
	}
}

func TestYieldAcceptsEachNumberOfTries(t *testing.T) {
	for _, tries := range []int{0, 1, math.MaxInt} {
		must.Report(t, Yield(t.Context(), tries))
	}
}

func TestRefusedLoginIsRepeatedAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Refused
		refusal := errors.New("wrong password")
		logins := 0
		login := func(password string) error {
			if err := r.Err(); err != nil {
				return err
			}
			logins++
			if password != "right" {
				r.Note(refusal)
				return refusal
			}
			r.Note(nil)
			return nil
		}
		for range 600 {
			if err := login("wrong"); err != refusal {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if logins > 6 {
			t.Errorf("%d logins in a minute", logins)
		}
		time.Sleep(RefusedPause)
		if r.Err() != nil || r.Err() != refusal {
			t.Error("not one caller tries")
		}
		time.Sleep(RefusedPause)
		if err := login("right"); err != nil || r.Err() != nil {
			t.Error(err)
		}
	})
}
