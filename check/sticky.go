//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// keeps reports whether a store can do what Sticky needs: it reserves tokens, and shows waiters that have queue
// entries.
func keeps(g *driver.Guarantees) bool {
	return g.Reserves && g.Visible == driver.VisibleAll && g.Wake != driver.WakePoll
}

// stickyNames is the number of names of which each worker locks one again and again.
const stickyNames = 6

// planSticky yields an endless sequence of locks, most of which the Locker may keep after their Unlock. They have names of their
// own. A worker mostly locks one of them, so that it keeps it at most times, also when a fault begins. The other workers
// sometimes want that name: they wait, which recalls the lock, or they try.
func (c *Config) planSticky(round, worker, life int, g *driver.Guarantees) iter.Seq[plannedLock] {
	r := c.source(round, streamSteps, worker, life, c.Lanes+stickyLane)
	return endless(func() plannedLock {
		s := plannedLock{Delay: between(r, 0, 20*time.Millisecond), Limit: driver.Exclusive, TTL: c.TTL, Hold: between(r, 0, time.Millisecond)}
		name := worker
		switch kind := r.IntN(24); {
		case kind < 4:
			name, s.Try = r.IntN(stickyNames), kind%2 == 0
		case kind < 6: // the Locker renews what it keeps
			s.Delay = between(r, c.TTL/2, 3*c.TTL)
			if r.IntN(8) == 0 {
				s.Delay = between(r, 2*time.Second, 5*time.Second) // longer than it keeps some of them
			}
		case kind == 6:
			s.Hold = between(r, 0, c.TTL)
		case kind == 7:
			s.TTL = min(4*c.TTL, c.longest(g))
		case kind == 8 && g.Shared:
			s.Limit = driver.Unlimited
		case kind == 9:
			s.MinHold = between(r, 0, c.TTL)
		case kind < 16:
			s.Try = true
		}
		s.Names = []string{fmt.Sprintf("sticky-%d", name%stickyNames)}
		if s.Limit == driver.Exclusive && r.IntN(4) != 0 {
			if s.Sticky = shortSticky(r); r.IntN(2) == 0 {
				s.Sticky = between(r, 5*time.Second, time.Minute)
			}
		}
		return s
	})
}

func shortSticky(r *rand.Rand) time.Duration {
	return between(r, 50*time.Millisecond, 500*time.Millisecond)
}

// sometimesSticky lets the Locker keep some exclusive locks of a plan for a short time.
func (c *Config) sometimesSticky(plan iter.Seq[plannedLock], round, worker, life, lane int) iter.Seq[plannedLock] {
	r := c.source(round, streamSticky, worker, life, lane)
	return func(yield func(plannedLock) bool) {
		for s := range plan {
			if s.Limit == driver.Exclusive && r.IntN(8) == 0 {
				s.Sticky = shortSticky(r)
			}
			if !yield(s) {
				return
			}
		}
	}
}

// setHolds sets grant of the sections and holds of the requests: a grant may serve several exclusive locks of its
// worker, one after another, each with a token of its own.
func (h *nameHistory) setHolds() {
	for _, s := range held(h.sections) {
		i := sort.Search(len(h.granted), func(i int) bool { return h.granted[i].token > s.token }) - 1
		if i < 0 || s.limit != driver.Exclusive {
			continue
		}
		if q := h.granted[i]; q.worker == s.worker && q.sent < s.granted && s.token-q.token < uint64(max(q.tokens, 1)) {
			s.grant = q
			q.holds = append(q.holds, s)
		}
	}
	for _, q := range h.granted {
		slices.SortFunc(q.holds, func(a, b *section) int { return cmp.Compare(a.granted, b.granted) })
	}
}

// since returns the earliest moment from which a fault may have ended the grant of the section: the grant may be
// older than the lock.
func (s *section) since() int64 {
	if s.grant != nil {
		return min(s.requested, s.grant.sent)
	}
	return s.requested
}

// takesKept reports whether the section took a grant that its Locker had kept: it was requested when no other
// section had the grant.
func (s *section) takesKept() bool {
	if s.grant == nil || s.token == s.grant.token {
		return false
	}
	return !slices.ContainsFunc(s.grant.holds, func(b *section) bool {
		return b.token < s.token && (b.unlocked == 0 || b.unlocked >= s.requested)
	})
}

// recoverTime is how long after a fault the Locker may still wait for an answer, and then for its next attempt.
const recoverTime = 7 * time.Second

// recallTime returns how long a Locker may keep a grant when a request with a queue entry waits for it: with Slack it is a
// second, at which the watch reads the state. In a simulation no notification is lost.
func (c *collected) recallTime() int64 { return 2 * int64(c.slack) }

// keptUntil returns the moment from which the worker of a grant must have released it, if it has kept it after an Unlock:
// a queue entry of q recalls it, and its time ends. The store may say that the grant ended before. Of a grant that was not kept,
// it returns what the store says.
func (c *collected) keptUntil(h *nameHistory, u, q *request) int64 {
	first := slices.IndexFunc(u.holds, func(s *section) bool { return s.sticky > 0 })
	if first < 0 {
		return u.until
	}
	client := opKey{u.worker, u.gen}
	for _, end := range []int64{c.killed[u.worker], c.vanished[client], c.closing[client]} {
		if end != 0 && end < q.answer {
			return u.until // no client keeps it: the store does
		}
	}
	for _, s := range h.sections {
		end := cmp.Or(s.failed, s.stuck, forever)
		if s.worker == u.worker && s.granted == 0 && s.requested < q.answer && end > u.holds[first].unlock && end-s.requested > int64(c.slack) {
			return u.until // a LockAll that fails may have taken it, and waited for its other names
		}
	}
	settled := u.answer // nothing has disturbed the worker since
	for i := range c.disturbances {
		if d := &c.disturbances[i]; d.from < q.answer && d.to > u.sent && d.affects(h.name, u.worker) {
			settled = max(settled, d.to+int64(recoverTime))
		}
	}
	recalled := forever
	if q.placed != 0 {
		recalled = max(q.placed, settled, u.holds[first].unlock) + c.recallTime()
	}
	for i, s := range u.holds {
		if s.unlock == 0 || s.lost != 0 {
			return u.until
		}
		free := max(s.unlock+s.keep, settled)
		next := free // until when a later lock may begin: a LockAll may have it long before it has its other names
		if s.sticky > 0 {
			next = min(free+s.sticky, recalled)
			free = max(free, next)
		}
		slack := 2 * int64(c.slack)
		if i+1 == len(u.holds) || u.holds[i+1].requested > next+slack {
			return min(u.until, free+slack)
		}
	}
	return u.until
}

// words states that the worker of a grant has kept it, if q is not nil.
func (q *request) words() string {
	if q == nil {
		return ""
	}
	return fmt.Sprintf(" but for the grant that %s kept after its Unlock", q.worker)
}
