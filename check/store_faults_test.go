//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestSkippedFaultBegins: a kind of fault that was skipped, because another one was under way, begins before
// that one begins for the third time.
func TestSkippedFaultBegins(t *testing.T) {
	nothing := func(context.Context, Fault) error { return nil }
	all := OneAtATime([]StoreFault{{Kind: "long", Begin: nothing, End: nothing}, {Kind: "other", Begin: nothing}, {Kind: "not chosen", Begin: nothing}})
	long, other := all[0], all[1]
	if !long.admit() || other.admit() {
		t.Fatal("two faults are under way")
	}
	end := func() {
		must.Succeed(t, long.End(t.Context(), Fault{}))
	}
	end()
	if !long.admit() {
		t.Fatal("a fault does not begin again")
	}
	end()
	if long.admit() {
		t.Error("a fault begins for the third time before one that was skipped")
	}
	if !other.admit() {
		t.Error("the fault that was skipped does not begin")
	}
}

// recorded is a server that records what a fault does to it.
type recorded struct {
	name string
	did  *[]string
}

func (r recorded) Pause() error { *r.did = append(*r.did, "pause "+r.name); return nil }
func (r recorded) Cont() error  { *r.did = append(*r.did, "continue "+r.name); return nil }
func (r recorded) Kill()        { *r.did = append(*r.did, "kill "+r.name) }

func (r recorded) Restart(context.Context) error {
	*r.did = append(*r.did, "restart "+r.name)
	return nil
}

// TestFaultEndsWhereItBegan: a fault ends at the servers that it has hit, although others have their roles by then.
// Without a server to hit, it does nothing.
func TestFaultEndsWhereItBegan(t *testing.T) {
	var did []string
	a, b := recorded{"a", &did}, recorded{"b", &did}
	primary, noLeader := a, errors.New("no leader")
	chooses := func(context.Context, Fault) ([]recorded, error) { return []recorded{primary}, noLeader }
	for _, f := range []StoreFault{
		killFault("kill", present(&primary)), pauseFault("pause", oneOf([]recorded{a, b})), pauseFault("leader", chooses),
	} {
		primary = a
		if err := f.Begin(t.Context(), Fault{N: 3}); err != nil && err != noLeader {
			t.Fatal(err)
		}
		primary = b
		must.Succeed(t, f.End(t.Context(), Fault{N: 3}))
	}
	if want := []string{"kill a", "restart a", "pause b", "continue b"}; !slices.Equal(did, want) {
		t.Errorf("the faults did %q, want %q", did, want)
	}
}
