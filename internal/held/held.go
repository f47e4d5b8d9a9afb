// Package held keeps the grants that a client of a store holds, and finds the lost ones. The store checks the
// grants at an interval, and sooner if there is a reason. Each loss is reported once. A loss that is found
// after the release of its grant has begun is not reported.
package held

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Grant is a grant that a client holds.
type Grant struct {
	driver.Grant
	From driver.Requester // is notified of the loss

	// The mutex of Grants guards the rest.
	proven  time.Time // when the grant certainly existed
	suspect bool      // the next check includes it
}

// Grants are the grants that a client holds, by the IDs of their requests.
type Grants struct {
	interval, provenFor time.Duration
	check               func(due []*Grant)

	mu       sync.Mutex
	all      map[string]*Grant
	timer    *time.Timer // calls run
	armed    bool        // the timer runs, or run does
	checking bool        // run calls check
	stopped  bool
	every    bool // the next check includes all grants
	now      bool // the next check follows the present one at once
}

// New returns Grants that call check at an interval while there are grants. check gets the grants that
// were not proven for provenFor, which may be none. It calls Prove or Lose. It does not run twice at once.
func New(interval, provenFor time.Duration, check func(due []*Grant)) *Grants {
	return &Grants{interval: interval, provenFor: provenFor, check: check, all: map[string]*Grant{}}
}

// Hold adds a grant. It was proven at its SentAt.
func (g *Grants) Hold(h *Grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.proven = h.SentAt.Time()
	g.all[h.ID] = h
	if g.armed || g.stopped {
		return
	}
	g.armed = true
	if g.timer == nil {
		g.timer = time.AfterFunc(g.interval, g.run)
	} else {
		g.timer.Reset(g.interval)
	}
}

// Forget removes the grant of a request, if there is one. Its loss is not reported any more, unless the
// report has begun.
func (g *Grants) Forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, id)
}

// Get returns the grant of a request, nil if there is none.
func (g *Grants) Get(id string) *Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all[id]
}

// All returns the grants.
func (g *Grants) All() []*Grant {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Values(g.all))
}

// Prove records that the grant of a request existed at a time.
func (g *Grants) Prove(id string, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.all[id]; h != nil && at.After(h.proven) {
		h.proven = at
	}
}

// Lose removes a grant and notifies its holder, unless it was removed before.
func (g *Grants) Lose(h *Grant, cause driver.Cause, err error) {
	g.mu.Lock()
	held := g.all[h.ID] == h
	if held {
		delete(g.all, h.ID)
	}
	g.mu.Unlock()
	if held {
		h.From.Lost(cause, err)
	}
}

// Suspect has the grant of a request checked now, if there is one.
func (g *Grants) Suspect(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.all[id]; h != nil {
		h.suspect = true
		g.soon()
	}
}

// SuspectAll has all grants checked now.
func (g *Grants) SuspectAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.all) > 0 {
		g.every = true
		g.soon()
	}
}

// soon starts a check now, or after the present one. The caller holds the mutex.
func (g *Grants) soon() {
	switch {
	case g.stopped:
	case g.checking:
		g.now = true
	default:
		g.timer.Reset(0)
	}
}

// Stop ends the checks. It does not wait for the present one.
func (g *Grants) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	if g.timer != nil {
		g.timer.Stop()
	}
}

// run checks the grants, and sets the timer for the next check.
func (g *Grants) run() {
	began := time.Now()
	g.mu.Lock()
	if g.checking || g.stopped { // a check that runs sets the timer when it ends
		g.mu.Unlock()
		return
	}
	g.checking = true
	var due []*Grant
	for _, h := range g.all {
		if g.every || h.suspect || began.Sub(h.proven) >= g.provenFor {
			h.suspect = false
			due = append(due, h)
		}
	}
	every := g.every
	g.every, g.now = false, false
	g.mu.Unlock()
	g.check(due)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.checking = false
	if len(g.all) == 0 || g.stopped {
		g.armed = false
		return
	}
	next := max(g.interval-time.Since(began), g.interval/8)
	if every {
		// The reason may have reached other clients at the same moment. They would check in step from now on.
		next -= rand.N(next * 7 / 8)
	}
	if g.now {
		next = 0
	}
	g.timer.Reset(next)
}
