//go:build linux || darwin

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/driver"
)

// Control is the name of the lock without a mistake.
const Control = "none"

// ttl is that of the experiments' locks.
const ttl = 600 * time.Millisecond

// The faults of the experiments' server, beside those of package check.
const (
	faultSlow     = "slow-answers"
	faultFailover = "failover"
	faultDies     = "dies-holding"
)

// Mistakes returns all mistakes. The caller may change the returned slice.
func Mistakes() []Mistake { return slices.Clone(mistakes) }

// Options say how an experiment is made. The zero value of a field is its default.
type Options struct {
	// Seed is the first seed, default 1. A run that does not show the mistake is followed
	// by one with the next.
	Seed uint64
	// Duration bounds the experiment, default one minute: it ends with the first run
	// that convicts the mistake of what it is. [Control] runs for one Run.
	Duration time.Duration
	// Run is how long one run lasts, default 4 s, at least 2 s.
	Run time.Duration
	// Dir is where history and page go; default a temporary directory that is kept
	// if a rule was broken.
	Dir string
	// Progress is called with the progress of a run.
	Progress func(check.Progress)
}

// Result is what an experiment came to.
type Result struct {
	Mistake Mistake
	// Report is the verdict of the last run; not OK if the mistake was convicted, or
	// another rule was broken.
	Report *check.Report
	// Expected is the violation that shows the mistake, nil if none does.
	Expected *check.Violation
	// Seed is that of the last run, and Runs their number.
	Seed uint64
	Runs int
}

// Find is the mistake of a name, or Control.
func Find(name string) (Mistake, error) {
	if name == Control {
		return Mistake{Name: Control, Title: "a lock without a mistake", What: "Nothing: the check acquits it.", faults: []string{"break", "delay", "cut", "drop-answers", "vanish"}}, nil
	}
	names := []string{Control}
	for _, m := range mistakes {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return Mistake{}, &nameError{fmt.Sprintf("lab: no mistake %q: choose from %s", name, strings.Join(names, ", "))}
}

// nameError is a mistake in a name. It matches holdfast.ErrInvalid.
type nameError struct{ text string }

func (e *nameError) Error() string { return e.text }

func (e *nameError) Is(target error) bool { return target == holdfast.ErrInvalid }

// Run makes the mistake of a name, or none with [Control], until it is convicted,
// the time is over, or ctx ends. Errors say that the experiment could not be made.
func Run(ctx context.Context, name string, o Options) (*Result, error) {
	m, err := Find(name)
	if err != nil {
		return nil, err
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Duration == 0 {
		o.Duration = time.Minute
	}
	if o.Run == 0 {
		o.Run = 4 * time.Second
	}
	if o.Run < 2*time.Second || o.Duration < o.Run {
		return nil, &nameError{fmt.Sprintf("lab: a Run of %s in a Duration of %s: give at least 2s, and no less than one Run", o.Run, o.Duration)}
	}
	dir := o.Dir
	if dir != "" {
		dir = filepath.Join(dir, m.Name)
	}
	end := time.Now().Add(o.Duration)
	for runs := 1; ; runs++ {
		seed := o.Seed + uint64(runs-1)
		faults := m.faults
		if faults == nil {
			faults = []string{}
		}
		report, err := check.Run(ctx, check.Config{
			Target: m.target(), Seed: seed, Duration: o.Run, TTL: ttl, Workers: 8, Names: 2, Long: m.long, Faults: faults, Dir: dir, Progress: o.Progress,
		})
		if err != nil {
			return nil, err
		}
		r := &Result{Mistake: m, Report: report, Seed: seed, Runs: runs}
		for i := range report.Violations {
			if m.shown(report.Violations[i].Rule) {
				r.Expected = &report.Violations[i]
				break
			}
		}
		// Other rules may be broken by the mistake too, or a machine that stood still.
		if r.Expected != nil || name == Control || time.Now().Add(o.Run).After(end) {
			return r, nil
		}
		if o.Dir == "" {
			_ = os.RemoveAll(report.Dir) // a temporary one, of a run that showed something else
		}
	}
}

// shown reports whether a rule may convict. An overlap of microseconds the
// model alone may see: its rules are exclusion and rising tokens in one.
func (m *Mistake) shown(r check.Rule) bool {
	return slices.Contains(m.rules, r) || r == check.RuleModel &&
		(slices.Contains(m.rules, check.RuleExclusion) || slices.Contains(m.rules, check.RuleTokens))
}

// target is a new server and the recipe over it.
func (m *Mistake) target() *check.Target {
	s := newServer()
	s.lagged = m.recipe.forgetsFailover
	var clients atomic.Int64
	return &check.Target{
		Open: func(context.Context) (driver.Store, error) {
			n := clients.Add(1)
			return &client{recipe: m.recipe, s: s, skew: time.Duration(n%3) * clientSkew, far: n%2 == 0}, nil
		},
		Faults: []check.StoreFault{
			{
				Kind:  faultSlow,
				Begin: func(ctx context.Context, _ check.Fault) error { s.spoil(ctx); return nil },
			},
			{
				Kind:  faultDies,
				Begin: func(context.Context, check.Fault) error { s.dies.Store(true); return nil },
			},
			{
				// Not said to take locks away: that is the mistake.
				Kind:  faultFailover,
				Begin: func(context.Context, check.Fault) error { s.failover(); return nil },
			},
		},
	}
}
