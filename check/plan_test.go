//go:build linux || darwin

package check

import (
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// first returns the first n locks of a plan, which has no end.
func first(n int, plan iter.Seq[plannedLock]) (all []plannedLock) {
	for s := range plan {
		if all = append(all, s); len(all) == n {
			break
		}
	}
	return all
}

func count(steps []plannedLock, is func(plannedLock) bool) (n int) {
	for _, s := range steps {
		if is(s) {
			n++
		}
	}
	return n
}

// TestSameSeedGivesSameSchedule requires that the plan of work and of faults depends only
// on the seed and the configuration.
func TestSameSeedGivesSameSchedule(t *testing.T) {
	g := driver.Guarantees{Shared: true, Semaphore: true, Mixed: true}
	kinds := []string{faultKill, faultPause, faultCut}
	type plan struct {
		steps  [][]plannedLock
		faults []Fault
	}
	make := func(seed uint64, round int) (p plan) {
		c := Config{Local: "memory", Seed: seed}
		must.Succeed(t, c.complete())
		for worker := range c.Workers {
			for life := range 2 {
				for lane := range c.Lanes {
					p.steps = append(p.steps, first(500, c.planLocks(round, worker, life, lane, &g)))
				}
			}
		}
		p.faults = c.faults(round, kinds, 10*time.Second)
		return p
	}
	one := make(1, 0)
	if !reflect.DeepEqual(one, make(1, 0)) {
		t.Error("one seed gave two schedules")
	}
	for name, other := range map[string]plan{"seed": make(2, 0), "round": make(1, 1)} {
		if reflect.DeepEqual(one.steps, other.steps) || reflect.DeepEqual(one.faults, other.faults) {
			t.Errorf("another %s gave the same schedule", name)
		}
	}
	for i := range one.steps {
		if i > 0 && reflect.DeepEqual(one.steps[i], one.steps[i-1]) {
			t.Error("two goroutines have the same work")
		}
	}
	if len(one.faults) < 10 {
		t.Errorf("only %d faults in 10s", len(one.faults))
	}
	until := map[int]time.Duration{}
	for _, f := range one.faults {
		if f.At < until[f.Worker] {
			t.Errorf("worker %d has two faults at once: %+v", f.Worker, f)
		}
		until[f.Worker] = f.At + f.For
		if f.At+f.For > 10*time.Second-quietEnd(DefaultTTL, 10*time.Second) {
			t.Errorf("no quiet end: %+v", f)
		}
		if f.Kind == faultPause && f.For <= DefaultTTL {
			t.Errorf("a pause of %s, want more than the TTL", f.For)
		}
		if !slices.Contains(kinds, f.Kind) {
			t.Errorf("fault %s is not in the configuration", f.Kind)
		}
	}
}

// TestPlanDrawsWhatItDescribes requires that each kind of work occurs among 2,000 steps.
func TestPlanDrawsWhatItDescribes(t *testing.T) {
	exclusive := driver.Guarantees{MaxTTL: time.Hour}
	every := driver.Guarantees{MaxTTL: time.Hour, Shared: true, Semaphore: true, Mixed: true}
	draw := func(round, long int, g *driver.Guarantees) (all []plannedLock) {
		c := Config{Local: "memory", Long: long}
		must.Succeed(t, c.complete())
		for worker := range 4 {
			all = append(all, first(500, c.planLocks(round, worker, 0, 0, g))...)
		}
		return all
	}
	usual := []string{"name-0", "name-1", "name-2"}
	isUsual := func(s plannedLock) bool { return slices.Contains(usual, s.Names[0]) }
	atFirst := func(s plannedLock) bool { return s.Names[0] == usual[0] }

	denseSteps, sparseSteps := draw(0, 0, &exclusive), draw(2, 0, &exclusive)
	for _, factor := range []time.Duration{1, 2, 4, 8, 16} {
		is := func(s plannedLock) bool { return s.TTL == factor*DefaultTTL }
		// The short locks at the first name use factor 1, whatever factor was drawn.
		if count(denseSteps, func(s plannedLock) bool { return is(s) && !atFirst(s) }) == 0 {
			t.Errorf("no step has %d times the TTL", factor)
		}
		if got := count(sparseSteps, is); (got > 0) != (factor >= 4) {
			t.Errorf("%d steps of a sparse round have %d times the TTL", got, factor)
		}
	}
	for what, is := range map[string]func(plannedLock) bool{
		"holds beyond its TTL": func(s plannedLock) bool { return s.Hold > s.TTL },
		"locks two names":      func(s plannedLock) bool { return len(s.Names) == 2 },
		"tries":                func(s plannedLock) bool { return s.Try },
		"limits its waiting":   func(s plannedLock) bool { return s.Wait > 0 },
		"is cancelled":         func(s plannedLock) bool { return s.Cancel > 0 },
		"ignores its context":  func(s plannedLock) bool { return s.IgnoresContext },
		"re-enters":            func(s plannedLock) bool { return s.Reenters },
	} {
		if count(denseSteps, is) == 0 {
			t.Errorf("no step %s", what)
		}
	}
	if got := count(denseSteps, isUsual); got != len(denseSteps) {
		t.Errorf("%d of %d steps have one of the usual names", got, len(denseSteps))
	}
	if got := count(denseSteps, atFirst); got < len(denseSteps)/2 {
		t.Errorf("%d of %d steps meet at the first name", got, len(denseSteps))
	}
	if got := count(sparseSteps, isUsual); got > len(sparseSteps)/10 {
		t.Errorf("%d of %d steps of a sparse round have one of the usual names", got, len(sparseSteps))
	}

	mixed := draw(0, 0, &every)
	for what, is := range map[string]func(plannedLock) bool{
		"a lock for readers":   func(s plannedLock) bool { return s.Limit == driver.Unlimited && isUsual(s) },
		"a semaphore":          func(s plannedLock) bool { return s.Limit == 2 || s.Limit == 3 },
		"a short reader":       func(s plannedLock) bool { return s.Limit == driver.Unlimited && !isUsual(s) && s.TTL == DefaultTTL },
		"a long reader":        func(s plannedLock) bool { return s.Limit == driver.Unlimited && !isUsual(s) && s.TTL == 16*DefaultTTL },
		"a writer beside them": func(s plannedLock) bool { return s.Limit == driver.Exclusive && !isUsual(s) },
	} {
		if count(mixed, is) == 0 {
			t.Errorf("no step is %s", what)
		}
	}

	// If the workers do not meet at one name, Config.Long is the percentage of all steps.
	for _, long := range []int{1, 50, 100} {
		got := count(draw(2, long, &exclusive), func(s plannedLock) bool { return s.Hold >= DefaultTTL })
		if want := 2000 * long / 100; got < want/2 || got > want*3/2 {
			t.Errorf("%d of 2000 steps hold for the TTL or longer, want about %d", got, want)
		}
	}
}

// TestStickyPlanDrawsWhatItDescribes requires that a worker mostly locks the name that is its own, and that each kind of work
// occurs among 1,000 locks.
func TestStickyPlanDrawsWhatItDescribes(t *testing.T) {
	c := Config{Local: "memory"}
	must.Succeed(t, c.complete())
	all := first(1000, c.planSticky(0, 2, 1, &driver.Guarantees{MaxTTL: time.Hour, Shared: true}))
	own := func(s plannedLock) bool { return s.Names[0] == "sticky-2" }
	if n := count(all, own); n < 700 || n > 950 {
		t.Errorf("%d of 1000 locks have the worker's own name", n)
	}
	for what, is := range map[string]func(plannedLock) bool{
		"is kept for a short time":         func(s plannedLock) bool { return s.Sticky > 0 && s.Sticky < DefaultTTL },
		"is kept for longer than a round":  func(s plannedLock) bool { return s.Sticky > 30*time.Second },
		"is not kept":                      func(s plannedLock) bool { return s.Sticky == 0 },
		"follows longer than the TTL":      func(s plannedLock) bool { return own(s) && s.Delay > 2*DefaultTTL },
		"tries the own name":               func(s plannedLock) bool { return own(s) && s.Try },
		"tries the name of another worker": func(s plannedLock) bool { return !own(s) && s.Try },
		"waits for another worker":         func(s plannedLock) bool { return !own(s) && !s.Try },
		"has another TTL":                  func(s plannedLock) bool { return s.TTL > DefaultTTL },
		"is shared":                        func(s plannedLock) bool { return s.Limit == driver.Unlimited },
		"has a MinHold":                    func(s plannedLock) bool { return s.MinHold > 0 && s.Sticky > 0 },
	} {
		if count(all, is) == 0 {
			t.Errorf("no lock %s", what)
		}
	}
}

// TestStoreRestsInEachRound requires that a round of ten seconds or more has parts of five seconds without
// a fault of the store, in which faults of workers continue.
func TestStoreRestsInEachRound(t *testing.T) {
	c := Config{Local: "memory"}
	must.Succeed(t, c.complete())
	for _, length := range []time.Duration{10 * time.Second, 30 * time.Second} {
		seen := map[string]int{}
		for _, f := range c.faults(0, []string{faultKill, faultCut, faultPauseServer, faultKillServer}, length) {
			seen[f.Kind]++
			cycle := min(length, 12*time.Second)
			if rests := f.At%cycle > cycle-5*time.Second || (f.At+f.For)%cycle > cycle-5*time.Second; rests && strings.HasSuffix(f.Kind, "-server") {
				t.Errorf("%s: %s from %s to %s", length, f.Kind, f.At, f.At+f.For)
			} else if rests {
				seen["in a rest"]++
			}
		}
		if len(seen) != 5 {
			t.Errorf("%s: the faults are %v", length, seen)
		}
	}
}

// TestFirstRoundsAreShort requires short first rounds, because gross mistakes show within
// seconds.
func TestFirstRoundsAreShort(t *testing.T) {
	for _, c := range []struct {
		round time.Duration
		want  [3]time.Duration
	}{
		{30 * time.Second, [3]time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second}},
		{7 * time.Second, [3]time.Duration{5 * time.Second, 7 * time.Second, 7 * time.Second}},
		{time.Second, [3]time.Duration{time.Second, time.Second, time.Second}},
	} {
		config := Config{Round: c.round}
		for round, want := range c.want {
			if got := config.length(round); got != want {
				t.Errorf("rounds of %s: round %d takes %s, want %s", c.round, round, got, want)
			}
		}
	}
}
