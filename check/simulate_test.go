//go:build linux || darwin

package check

import (
	"context"
	"flag"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

var (
	simulateSeed = flag.Uint64("seed", 0, "simulate this seed alone")
	simulateFor  = flag.Duration("simulate", 5*time.Second, "simulate seeds for this time")
)

// simulatedStore is a client of a memory store that declares other guarantees.
type simulatedStore struct {
	*memstore.Store
	change func(*driver.Guarantees)
}

func (s simulatedStore) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	g, err := s.Store.Guarantees(ctx)
	s.change(&g)
	return g, err
}

// Release reports a call that the guarantees rule out.
func (s simulatedStore) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if declared, _ := s.Guarantees(ctx); keep > 0 && !declared.Linger {
		panic("a release with a MinHold, and the store keeps none")
	}
	return s.Store.Release(ctx, g, keep)
}

// swappingStore releases and requests in one call.
type swappingStore struct{ simulatedStore }

func (s swappingStore) Swap(
	ctx context.Context, old driver.Grant, r driver.Request, released func(error),
) (driver.Grant, error) {
	released(s.Release(ctx, old, 0))
	return s.Acquire(ctx, r)
}

// simulatedStores are the stores of the seeds, in turn.
var simulatedStores = []func(simulatedStore) driver.Store{
	func(s simulatedStore) driver.Store { return s },
	func(s simulatedStore) driver.Store { return swappingStore{s} },
	func(s simulatedStore) driver.Store {
		s.change = func(g *driver.Guarantees) { g.Linger, g.Reserves = false, false }
		return swappingStore{s}
	},
	func(s simulatedStore) driver.Store {
		s.change = func(g *driver.Guarantees) { g.Linger, g.Wake, g.Order = false, driver.WakePoll, driver.OrderNone }
		return s
	},
}

// simulation is a check in a bubble of fake time: Lockers in the goroutines of this process, on a memory store. The
// seed decides the store, the work and the faults, each at its time. It does not decide the order of goroutines and
// timers of one moment, nor the jitter of the library, so two simulations of a seed are not equal.
type simulation struct {
	mu     sync.Mutex
	last   int64 // the time of the last event
	events []Event
	values map[string]*[2]uint64 // the registers
}

// now returns the fake time. No two events have the same time, so that the order of events in one moment
// is not lost.
func (s *simulation) now() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last+1, time.Now().UnixNano())
	return s.last
}

// ahead is more than now is ahead of the fake time.
const ahead = 10 * time.Microsecond

// longestRun is more than the time between an event and one that follows without a pause: fake time stands meanwhile.
const longestRun = 5 * time.Millisecond

func (s *simulation) log(worker string) *historyLog {
	return &historyLog{worker: worker, now: s.now, keep: func(e Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.K == kindLeave || e.K == kindUnlock {
			e.For = max(0, e.For-int64(ahead)) // T may be that much late
		}
		s.events = append(s.events, e)
	}}
}

func (s *simulation) register(res string, f func(uint64, int64) (uint64, int64)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.values[res]
	if r == nil {
		r = &[2]uint64{}
		s.values[res] = r
	}
	token, value := f(r[0], int64(r[1]))
	*r = [2]uint64{token, uint64(value)}
	return nil
}

// simulateCheck runs a check of a second. The seed decides the store, the work and the faults.
func simulateCheck(t *testing.T, seed uint64) *Report {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	ctx := t.Context()
	cfg := Config{
		Local: "memory", Seed: seed, TTL: 200 * time.Millisecond, Duration: time.Second,
		Workers: 2, Lanes: 2, Names: 2, Long: 10,
	}
	must(cfg.complete())
	target, err := StartLocal(ctx, cfg.Local, "")
	must(err)
	defer target.close()
	open := target.Open
	target.Open = func(ctx context.Context) (driver.Store, error) {
		s, err := open(ctx)
		store := simulatedStore{s.(*memstore.Store), func(*driver.Guarantees) {}}
		return simulatedStores[seed%uint64(len(simulatedStores))](store), err
	}
	r := &run{cfg: &cfg, target: target, open: target.Open, began: time.Now()}
	s, g, err := r.openStore(ctx)
	must(err)
	defer s.Close(ctx)
	sim := &simulation{values: map[string]*[2]uint64{}, events: make([]Event, 0, 4096)}
	c := &crew{cfg: &cfg, target: target, open: r.open, waitTimeout: cfg.waitTimeout(&g), log: sim.log("")}
	c.log.Add(Event{K: kindRun, Store: &g})
	for i := range cfg.Workers {
		log := sim.log(workerName(i, 1))
		m := &member{index: i, life: 1, log: log, worker: cfg.newWorker(0, i, 1, log, sim.register, r.open)}
		c.members = append(c.members, m)
		must(m.worker.start(ctx))
	}
	must(r.runFaults(ctx, c, 0, cfg.Duration, r.kinds(s, &g)))
	c.log.Add(Event{K: kindDrain})
	for _, m := range c.members {
		m.worker.finish()
	}
	time.Sleep(cfg.longest(&g))
	for _, e := range listLeftovers(ctx, s.(driver.Inspector)) {
		c.log.Add(e)
	}
	sortEvents(sim.events)
	report, _, err := judge(sim.events, longestRun)
	must(err)
	return report
}

// TestSimulationKeepsEveryRule simulates one seed after another. A failure names the line that repeats its seed.
func TestSimulationKeepsEveryRule(t *testing.T) {
	var stats Stats
	var mu sync.Mutex
	var seeds atomic.Uint64
	var failed atomic.Bool
	one := func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) {
			r := simulateCheck(t, seed)
			if !r.OK() {
				failed.Store(true)
				t.Errorf("go test ./check -run TestSimulationKeepsEveryRule -seed %d -count 10:%s", seed, explain(r))
			}
			mu.Lock()
			defer mu.Unlock()
			stats.add(r.Stats)
		})
	}
	if *simulateSeed != 0 {
		one(t, *simulateSeed)
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // more seeds in the time
	end := time.Now().Add(*simulateFor)
	t.Run("", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for !failed.Load() && time.Now().Before(end) {
					one(t, seeds.Add(1))
				}
			})
		}
	})
	t.Logf("%d seeds: %d grants, %d renewals, %d losses, %d failures, %d MinHolds, %v, %s", seeds.Load(),
		stats.Grants, stats.Renewals, stats.Losses, stats.Failures, stats.Kept, stats.Faults, stats.pathWords())
	if stats.Grants == 0 {
		t.Error("no lock was granted")
	}
}
