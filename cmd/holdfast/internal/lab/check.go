//go:build linux || darwin

package lab

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/driver"
)

// Control is the name of the lock without a mistake.
const Control = "none"

// ttl is the TTL of the locks in experiments.
const ttl = 600 * time.Millisecond

// The faults of the simulated server, in addition to those of package check.
const (
	faultSlow     = "slow-answers"
	faultFailover = "failover"
	faultDies     = "dies-holding"
)

// runTime is the length of one run of an experiment.
const runTime = 4 * time.Second

// Options configure an experiment. The zero value of a field selects its default.
type Options struct {
	// Seed is the seed of the first run, default 1. If a run does not show the mistake, the
	// next run uses the next seed.
	Seed uint64
	// Duration limits the experiment, default one minute, and at least the 4 s of one run. The
	// experiment ends earlier with the first run that shows the mistake. For [Control] it ends
	// after one run.
	Duration time.Duration
	// Dir is the directory in which Check creates a directory, with the mistake's name, for the
	// history and the page. The default is a temporary directory, which Check keeps if the last
	// run broke a rule.
	Dir string
	// Check calls Progress with the progress of a run.
	Progress func(check.Progress)
}

// Verdict is the outcome of an experiment.
type Verdict struct {
	Mistake Mistake
	// Report is the verdict of the last run. It is not OK if any rule was broken.
	Report *check.Report
	// Expected is the violation that shows the mistake. It is nil if no violation does.
	Expected *check.Violation
	// Seed is the seed of the last run. Runs is the number of runs.
	Seed uint64
	Runs int
}

// Checked reports whether a check convicts the mistake.
func (m *Mistake) Checked() bool { return len(m.rules) > 0 }

// find returns the mistake with the given name, if a check convicts it. For [Control] it returns the
// lock without a mistake.
func find(name string) (Mistake, error) {
	if name == Control {
		return Mistake{Name: Control, Title: "a lock without a mistake", What: "Nothing: the check acquits it.", faults: []string{"break", "delay", "cut", "drop-answers", "vanish"}}, nil
	}
	names := []string{Control}
	for _, m := range mistakes {
		if !m.Checked() {
			continue
		}
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	text := fmt.Sprintf("no mistake %q: choose from %s", name, strings.Join(names, ", "))
	return Mistake{}, &check.ConfigError{Text: text}
}

// Check checks the lock with a mistake, or without one for [Control]. It repeats runs until
// one shows the mistake, the time is over, or ctx ends. It returns an error if a run was
// not possible.
func Check(ctx context.Context, name string, o Options) (*Verdict, error) {
	m, err := find(name)
	if err != nil {
		return nil, err
	}
	o.Seed = cmp.Or(o.Seed, 1)
	o.Duration = cmp.Or(o.Duration, time.Minute)
	if o.Duration < runTime {
		return nil, &check.ConfigError{Field: "Duration", Text: fmt.Sprintf("%s: at least %s is allowed", o.Duration, runTime)}
	}
	dir := o.Dir
	if dir != "" {
		dir = filepath.Join(dir, m.Name)
	}
	end := time.Now().Add(o.Duration)
	for runs := 1; ; runs++ {
		seed := o.Seed + uint64(runs-1)
		faults := m.faults
		if faults == nil { // nil would select all faults
			faults = []string{}
		}
		report, err := check.Run(ctx, check.Config{
			Target: m.target(), Seed: seed, Duration: runTime, TTL: ttl, Workers: 8, Names: 2, Long: m.long, Faults: faults, Dir: dir, Progress: o.Progress,
		})
		if err != nil {
			return nil, err
		}
		r := &Verdict{Mistake: m, Report: report, Seed: seed, Runs: runs}
		for i := range report.Violations {
			if m.shown(report.Violations[i].Rule) {
				r.Expected = &report.Violations[i]
				break
			}
		}
		// A run that broke only other rules does not show the mistake, because a paused
		// machine may break them.
		if r.Expected != nil || name == Control || time.Now().Add(runTime).After(end) {
			return r, nil
		}
		if o.Dir == "" {
			_ = os.RemoveAll(report.Dir) // the next run makes its own temporary directory
		}
	}
}

// shown reports whether a violation of r shows the mistake. A violation of the model counts for
// exclusion and for tokens: the model checks both, and may find overlaps that last only
// microseconds.
func (m *Mistake) shown(r check.Rule) bool {
	return slices.Contains(m.rules, r) || r == check.RuleModel &&
		(slices.Contains(m.rules, check.RuleExclusion) || slices.Contains(m.rules, check.RuleTokens))
}

// target returns a new simulated server, with clients that use the mistake's recipe.
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
				Begin: func(ctx context.Context, _ check.Fault) error { s.disturbNetwork(ctx); return nil },
			},
			{
				Kind:  faultDies,
				Begin: func(context.Context, check.Fault) error { s.dies.Store(true); return nil },
			},
			{
				// The mistake is that the recipe ignores failovers, so the target does not
				// declare that this fault ends locks.
				Kind:  faultFailover,
				Begin: func(context.Context, check.Fault) error { s.failover(); return nil },
			},
		},
	}
}
