package sqlkit

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestAhead: a grant that seems to stand longer than it may stands for its TTL, unless
// that is not known, or the row may just have been written after the time was read.
func TestAhead(t *testing.T) {
	const now, ttl = int64(1e15), int64(1e6)
	late := applyWithin.Microseconds()
	for name, c := range map[string]struct{ expires, ttl, want int64 }{
		"as given":           {now + ttl, ttl, now + ttl},
		"written after now":  {now + ttl + late, ttl, now + ttl + late},
		"clock set back":     {now + ttl + late + 1, ttl, now + ttl},
		"of unknown TTL":     {now + ttl + late + 1, 0, now + ttl + late + 1},
		"has run out":        {now, ttl, 0},
		"long, not set back": {now + 100*ttl, 100 * ttl, now + 100*ttl},
	} {
		l := content{Holders: []holder{{Limit: 1, Expires: c.expires, TTL: c.ttl}}}.live(now)
		if got := l.expires(); got != c.want {
			t.Errorf("%s: until %+d, want %+d", name, got-now, c.want-now)
		}
	}
}

// spent is a recipe that finds its sessions marked when it unlocks.
type spent struct {
	mute
	marked bool
}

func (r *spent) Unlock(_ context.Context, s *Session, _ *Ask) (bool, error) {
	s.Spent = r.marked
	return true, nil
}

// TestSpent: a session that somebody is about to end is not kept for the next lock.
func TestSpent(t *testing.T) {
	for _, marked := range []bool{false, true} {
		l := &countedLink{}
		e := NewSessions(func(context.Context) (Link, error) { return l, nil }, &spent{marked: marked}, 2, "")
		g, err := e.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Hour, From: nobody{}})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Release(t.Context(), g, 0); err != nil {
			t.Error(err)
		}
		if l.closed.Load() != marked {
			t.Errorf("marked %t: closed %t", marked, l.closed.Load())
		}
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
