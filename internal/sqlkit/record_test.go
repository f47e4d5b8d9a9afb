package sqlkit

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// inSight is a recipe that shows exclusive holders until they are evicted.
type inSight struct {
	closing
	tokens []uint64
}

func (r *inSight) Survey(context.Context, Link, []byte, bool) (seen []Sight, missing, err error) {
	for _, token := range r.tokens {
		seen = append(seen, Sight{Granted: true, Token: token, Label: Label{Limit: driver.Exclusive}})
	}
	return seen, nil, nil
}

func (r *inSight) Evict(_ context.Context, _ Link, seen Sight) error {
	r.tokens = slices.DeleteFunc(r.tokens, func(token uint64) bool { return token == seen.Token })
	return nil
}

// TestBreakFindsHolderBesideStaleRecord: a session has lost its lock and has not noticed it yet, so that its record
// stands beside that of the holder. Either can be broken.
func TestBreakFindsHolderBesideStaleRecord(t *testing.T) {
	for _, token := range []uint64{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			r := &inSight{tokens: []uint64{1, 2}}
			e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, r, Idle{}, "")
			defer e.Close(t.Context())
			if err := e.Break(t.Context(), "n", token); err != nil || !slices.Equal(r.tokens, []uint64{3 - token}) {
				t.Errorf("Break(%d): %v, and %d are left", token, err, r.tokens)
			}
		})
	}
}

// late is a recipe that grants a lock after a wait.
type late struct {
	inSight
	recorded time.Time
}

func (*late) Lock(context.Context, *Session, *LockRequest) (Got, error) {
	time.Sleep(time.Second + time.Millisecond)
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}

func (r *late) Ping(_ context.Context, _ *Session, a *LockRequest) (bool, error) {
	if a.Record && !a.Recorded {
		r.recorded, a.Recorded = time.Now(), true
	}
	return true, nil
}

func TestGrantAfterWaitIsRecordedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &late{}
		e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, r, Idle{}, "")
		defer e.Close(t.Context())
		request := driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Minute, Wait: true, From: noRequester{}}
		if _, err := e.Acquire(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		granted := time.Now()
		time.Sleep(VisibleAfter)
		synctest.Wait()
		if r.recorded.Before(granted) {
			t.Errorf("not recorded within %s", VisibleAfter)
		}
	})
}

// hiding is a recipe that does not show its holder.
type hiding struct {
	inSight
	locked bool
}

func (r *hiding) Locked(context.Context, Link, []byte) (bool, error) { return r.locked, nil }

// TestBreakProbesForHolderWithoutRecord: a break reports at once that a free lock is not held. It cannot exclude a
// holder that has not recorded its token.
func TestBreakProbesForHolderWithoutRecord(t *testing.T) {
	for locked, want := range map[bool]driver.Code{true: driver.CodeUnavailable, false: driver.CodeNotHeld} {
		synctest.Test(t, func(t *testing.T) {
			e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, &hiding{locked: locked}, Idle{}, "")
			defer e.Close(t.Context())
			began := time.Now()
			err := e.Break(t.Context(), "n", 1)
			if driver.CodeOf(err) != want || !locked && time.Since(began) > 0 {
				t.Errorf("locked %t: %v after %s, want %v", locked, err, time.Since(began), want)
			}
		})
	}
}
