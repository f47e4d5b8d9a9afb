//go:build linux || darwin

package check

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestSameSeedGivesSameSchedule: the plan of work and of faults depends on the seed and the
// configuration alone.
func TestSameSeedGivesSameSchedule(t *testing.T) {
	g := driver.Guarantees{Shared: true, Semaphore: true, Mixed: true}
	kinds := []string{faultKill, faultPause, faultCut}
	type plan struct {
		steps  [][]Step
		faults []Fault
	}
	make := func(seed uint64, round int) (p plan) {
		c := Config{Local: "memory", Seed: seed}
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		for worker := range c.Workers {
			for life := range 2 {
				for lane := range c.Lanes {
					var steps []Step
					for s := range c.Steps(round, worker, life, lane, &g) {
						if steps = append(steps, s); len(steps) == 500 {
							break
						}
					}
					p.steps = append(p.steps, steps)
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
		if f.At+f.For > 10*time.Second-settle(DefaultTTL, 10*time.Second) {
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
