package sqlkit

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// mute is a recipe whose sessions end during the unlock, without an answer.
type mute struct {
	closing
	ended error
}

func (*mute) Lock(context.Context, *Session, *LockRequest) (Got, error) {
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}
func (*mute) Unlock(context.Context, *Session, *LockRequest) (bool, error) {
	return false, io.ErrUnexpectedEOF
}
func (*mute) End(context.Context, Link, Identity) (bool, error) { return true, nil }
func (r *mute) Ended(err error) bool                            { return r.ended != nil }
func (*mute) Cause(*Session, *LockRequest, *Pool) (driver.Cause, error) {
	return driver.CauseSessionEnded, nil
}

// TestUnansweredReleaseIsUncertain: the session ends without an answer to the release. Within
// the TTL the outcome is unknown. After the TTL the server's timer may have ended the session
// before the release arrived, and another client may have held the lock. So the release then
// reports that the lock is not held, as it does if the server has ended the session.
func TestUnansweredReleaseIsUncertain(t *testing.T) {
	for _, c := range []struct {
		name  string
		ended error
		ago   time.Duration
		code  driver.Code
	}{
		{name: "within the TTL", code: driver.CodeUnknown},
		{name: "after the TTL", ago: time.Minute, code: driver.CodeNotHeld},
		{name: "ended by the server", ended: errors.New("killed"), code: driver.CodeNotHeld},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, &mute{ended: c.ended}, Idle{Min: 2, Max: 2}, "")
			defer e.Close(t.Context())
			g, err := e.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Minute, From: noRequester{}})
			must.Succeed(t, err)
			clock := &ahead{}
			e.mu.Lock()
			l := e.leases["1"]
			l.sent, l.due = driver.NowOn(clock), time.Now().Add(time.Hour) // the engine's own checks see a young grant
			e.mu.Unlock()
			clock.by = c.ago
			if err := e.Release(t.Context(), g, 0); err == nil || driver.CodeOf(err) != c.code {
				t.Errorf("%v, want %v", err, c.code)
			}
			if err := e.Release(t.Context(), g, 0); driver.CodeOf(err) != driver.CodeNotHeld {
				t.Errorf("the second time %v, want %v", err, driver.CodeNotHeld)
			}
		})
	}
}

// ahead is a clock that is ahead of the machine's.
type ahead struct{ by time.Duration }

func (c *ahead) Now() time.Time       { return time.Now().Add(c.by) }
func (c *ahead) Slept() time.Duration { return 0 }
