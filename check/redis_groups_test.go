//go:build linux || darwin

package check

import (
	"context"
	"errors"
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
