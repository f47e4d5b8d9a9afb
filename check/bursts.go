//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// The paths by which the library is fast, as the probe of a store sees them.
const (
	// pathSwap: a release and a request in one call.
	pathSwap = "swap"
	// pathCrowd: a request beside at least crowd others of the same client, which a store may
	// send together.
	pathCrowd = "crowd"
	// pathBatch: a renewal of several grants in one call.
	pathBatch = "batch"
	// pathReserved: a grant with several tokens. pathProvisional: a grant that a renewal has to
	// confirm.
	pathReserved    = "reserved"
	pathProvisional = "provisional"
	// pathSticky: a lock that took what its Locker had kept, without a request.
	pathSticky = "sticky"
)

// crowd is more than the number of requests that a client of a store sends one by one.
const crowd = 6

// Bursts have names of their own.
const (
	rushNames  = 2
	crowdNames = 48
)

// burst makes the worker use the fast paths: its goroutines compete for one name with those of the
// other workers, or try different names at once, and hold them until renewals are due together.
func (w *worker) burst(_ jobClient, r *rand.Rand) {
	// A lease is handed off for at most driver.HandoffTime. Together the locks take longer.
	s := plannedLock{Limit: driver.Exclusive, TTL: w.cfg.TTL, Wait: w.cfg.TTL, Hold: between(r, time.Millisecond, 2*time.Millisecond)}
	goroutines, each := 3, 8
	if r.IntN(3) == 0 {
		goroutines, each = crowd+4, 1
		s.Try, s.Hold = true, upTo(r, w.cfg.TTL)
	}
	s.Names = []string{fmt.Sprintf("rush-%d", r.IntN(rushNames))}
	var all sync.WaitGroup
	for range goroutines {
		s := s
		if s.Try {
			s.Names = []string{fmt.Sprintf("crowd-%d", r.IntN(crowdNames))}
		}
		all.Go(func() {
			for range each {
				if w.working.Err() == nil {
					w.take(s)
				}
			}
		})
	}
	all.Wait()
}

// Path counts how often a fast path occurred, and in how many seconds of the run.
type Path struct{ Times, Seconds int }

// countPaths counts the fast paths of a history.
func (c *collected) countPaths(r *Report, events []Event) {
	type second struct {
		path string
		at   int64
	}
	seen := map[second]bool{}
	r.Stats.Paths = map[string]Path{}
	count := func(path string, t int64) {
		p := r.Stats.Paths[path]
		p.Times++
		if s := (second{path, (t - c.start) / int64(time.Second)}); !seen[s] {
			seen[s] = true
			p.Seconds++
		}
		r.Stats.Paths[path] = p
	}
	for i := range events {
		if e := &events[i]; e.Path != "" {
			count(e.Path, e.T)
		}
		if events[i].Tokens > 1 {
			count(pathReserved, events[i].T)
		}
	}
	for _, h := range c.names {
		for _, s := range h.sections {
			if s.takesKept() {
				count(pathSticky, s.granted)
			}
		}
	}
	r.Stats.Seconds = int(time.Duration(cmp.Or(c.drain, c.last)-c.start).Round(time.Second) / time.Second)
}

// pathWords describes the counts of the fast paths.
func (s *Stats) pathWords() string {
	words := func(p Path) string { return fmt.Sprintf("%d (in %d s)", p.Times, p.Seconds) }
	return fmt.Sprintf("of %d s: %s", s.Seconds, listed(s.Paths, words))
}
