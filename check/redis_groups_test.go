//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestClockAheadContinuesHolderOnce: inject calls the End of a fault also if its Begin failed after
// the faults of the round had ended. A holder that Begin has continued must not be continued again,
// because that unlocks the worker's mutex twice.
func TestClockAheadContinuesHolderOnce(t *testing.T) {
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1)
	if errors.Is(err, servers.ErrNotInstalled) {
		t.Skip(err)
	}
	must.Succeed(t, err)
	defer g.Kill()
	p := &redisPair{target: &Target{}, primary: g.Primary, replica: g.Replicas[0]}
	if err := p.replica.FakeClock(t.Context()); errors.Is(err, servers.ErrNotInstalled) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	resumed := 0
	p.target.pauseHolder = func(context.Context, time.Duration, func(string) (bool, error)) (*pausedHolder, error) {
		g.Kill() // the replica cannot be promoted
		return &pausedHolder{proceed: func() error { resumed++; return nil }}, nil
	}
	if err := p.beginClockAhead(t.Context(), Fault{}); err == nil || resumed != 1 {
		t.Errorf("a dead replica was promoted: %v; the holder continued %d times, want once", err, resumed)
	}
	if err := p.held.resume(); err != nil || resumed != 1 {
		t.Error("the end of the fault would continue the holder again")
	}
}

// TestDeadEntriesOfAFairLockStay: the check accepts what Redisson leaves of dead waiters, and no entry of a living waiter or
// without a deadline, which no script removes.
func TestDeadEntriesOfAFairLockStay(t *testing.T) {
	r, err := servers.StartRedis(t.Context(), t.TempDir())
	if errors.Is(err, servers.ErrNotInstalled) {
		t.Skip(err)
	}
	must.Succeed(t, err)
	defer r.Kill()
	future := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
	for _, c := range []struct {
		what     string
		deadline string // of the second of two entries, "" for none
		stays    bool
	}{
		{"dead", "2", true},
		{"living", future, false},
		{"lost", "", false},
	} {
		do := func(args ...string) {
			t.Helper()
			_, err := r.Do(t.Context(), args...)
			must.Succeed(t, err)
		}
		list, times := fairQueue+"{"+c.what+"}", fairDeadlines+"{"+c.what+"}"
		do("RPUSH", list, "a:1", "b:1")
		do("ZADD", times, "1", "a:1")
		if c.deadline != "" {
			do("ZADD", times, c.deadline, "b:1")
		}
		if stays, err := redisStays(t.Context(), r, list); err != nil || stays != c.stays {
			t.Errorf("%s: stays is %t (%v), want %t", c.what, stays, err, c.stays)
		}
	}
}
