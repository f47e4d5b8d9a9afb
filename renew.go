package holdfast

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// scheduler renews what a Locker holds, every third of the TTL, and ends what
// could not be renewed in time. It is one timer, and a goroutine only while the
// timer's work is being done.
type scheduler struct {
	l *Locker

	mu    sync.Mutex
	holds dueHeap
	timer *time.Timer
	armed time.Time // when the timer fires, zero if it does not
	// woke is the last reading; a jump of its suspended part means that the
	// machine slept and every lease must be looked at.
	woke driver.Instant
}

const (
	// nap is the longest the scheduler sleeps while anything is held, so that a
	// suspend, which no timer notices, is found soon after it.
	nap = time.Second
	// together is the share of the TTL within which renewals go in one batch.
	together = 16
)

// add takes a hold into care. One that does not run out needs none.
func (s *scheduler) add(h *hold) {
	if h.forever {
		return
	}
	s.mu.Lock()
	s.put(h, h.renewAt) // which nobody changes before this
	s.arm()
	s.mu.Unlock()
}

// look sees to a hold at another time than was planned.
func (s *scheduler) look(h *hold, due time.Time) {
	if h.forever {
		return
	}
	s.mu.Lock()
	s.put(h, due)
	s.arm()
	s.mu.Unlock()
	s.dropEnded(h)
}

// remove takes a hold out of care, if it is in it.
func (s *scheduler) remove(h *hold) {
	if h.forever {
		return
	}
	s.mu.Lock()
	if h.index > 0 {
		heap.Remove(&s.holds, h.index-1)
	}
	s.mu.Unlock()
}

func (s *scheduler) put(h *hold, due time.Time) {
	h.due = due
	if h.index > 0 {
		heap.Fix(&s.holds, h.index-1)
	} else {
		heap.Push(&s.holds, h)
	}
}

// arm sets the timer for the next hold. A timer that is set early is left: it
// costs one idle wake-up, and setting it for every lock would cost more.
func (s *scheduler) arm() {
	if len(s.holds) == 0 {
		return
	}
	at := s.holds[0].due
	if !s.armed.IsZero() && !s.armed.After(at) {
		return
	}
	if most := time.Now().Add(nap); at.After(most) {
		at = most
	}
	s.armed = at
	if s.timer == nil {
		s.woke = driver.Now()
		s.timer = time.AfterFunc(time.Until(at), s.fire)
		return
	}
	s.timer.Reset(time.Until(at))
}

func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.armed = time.Time{}
	}
}

// fire runs on the timer's goroutine.
func (s *scheduler) fire() {
	s.l.work.begin()
	defer s.l.work.end()
	s.mu.Lock()
	s.armed = time.Time{}
	if len(s.holds) == 0 {
		s.mu.Unlock()
		return
	}
	due, slept := s.takeDue(time.Now())
	s.mu.Unlock()

	var batch []*hold
	for _, h := range due {
		h.checkTrust()
		renew, next, ok := h.plan(time.Now(), slept)
		if renew {
			batch = append(batch, h)
		}
		if ok {
			s.mu.Lock()
			s.put(h, next)
			s.mu.Unlock()
			s.dropEnded(h)
		}
	}
	s.mu.Lock()
	s.arm()
	s.mu.Unlock()
	// One that must be answered soon does not cut short the others' time.
	for len(batch) > 0 {
		most := 2 * s.l.requestTimeout(slices.MinFunc(batch, func(a, b *hold) int { return cmp.Compare(a.req.TTL, b.req.TTL) }).req.TTL)
		rest := batch[:0:0]
		var now []*hold
		for _, h := range batch {
			if s.l.requestTimeout(h.req.TTL) <= most {
				now = append(now, h)
			} else {
				rest = append(rest, h)
			}
		}
		if len(rest) == 0 {
			s.renew(now)
			return
		}
		s.l.work.run(func() { s.renew(now) })
		batch = rest
	}
}

// takeDue takes out the holds whose time has come, or all after a suspend.
func (s *scheduler) takeDue(now time.Time) (due []*hold, resumed bool) {
	_, slept := s.woke.Elapsed()
	s.woke = driver.Now()
	if slept > 10*time.Millisecond {
		all := append([]*hold(nil), s.holds...)
		for _, h := range all {
			h.index = 0
		}
		s.holds = nil
		return all, true
	}
	for len(s.holds) > 0 && !s.holds[0].due.After(now.Add(s.holds[0].req.TTL/3/together)) {
		due = append(due, heap.Pop(&s.holds).(*hold))
	}
	return due, false
}

// dropEnded takes a hold out again that ended while it was being put in.
func (s *scheduler) dropEnded(h *hold) {
	h.mu.Lock()
	ended := h.state != held && h.state != lingering
	h.mu.Unlock()
	if ended {
		s.remove(h)
	}
}

// plan says whether the hold is to be renewed now and when to look at it next.
// After a suspend every lease is renewed at once.
func (h *hold) plan(now time.Time, resumed bool) (renew bool, next time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != held && h.state != lingering {
		return false, time.Time{}, false
	}
	if resumed && h.renewAt.After(now) {
		h.renewAt = now
	}
	soon := now.Add(h.req.TTL / 3 / together)
	if !h.renewing && !h.renewAt.After(soon) && h.wanted() {
		h.renewing, renew = true, true
	}
	return renew, h.nextDue(), true
}

// nextDue is the next renewal or the end of trust; mu is held.
func (h *hold) nextDue() time.Time {
	_, slept := h.grant.SentAt.Elapsed()
	end := h.grant.SentAt.Time().Add(h.trust - slept)
	if !h.renewing && h.wanted() && h.renewAt.Before(end) {
		return h.renewAt
	}
	return end
}

// renew asks the store to prolong a batch, and takes in its answers.
func (s *scheduler) renew(batch []*hold) {
	if len(batch) == 0 {
		return
	}
	grants := make([]driver.Grant, len(batch))
	within := s.l.cfg.requestTimeout
	for i, h := range batch {
		h.mu.Lock()
		grants[i] = h.grant
		h.mu.Unlock()
		within = min(within, s.l.requestTimeout(h.req.TTL))
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	answers := s.l.store.Renew(ctx, grants)
	cancel()
	for i, h := range batch {
		a := driver.Renewal{Err: context.DeadlineExceeded}
		if i < len(answers) {
			a = answers[i]
		}
		s.renewed(h, a)
	}
	s.mu.Lock()
	s.arm()
	s.mu.Unlock()
}

// renewed takes in one answer. A failure is neither loss nor reset: it is tried
// again until trust runs out.
func (s *scheduler) renewed(h *hold, a driver.Renewal) {
	if a.Err != nil && s.l.store.Classify(a.Err) == driver.NotHeld {
		cause := a.Cause
		if cause == "" {
			cause = Gone
		}
		h.lose(cause, a.Err)
		return
	}
	h.mu.Lock()
	h.renewing = false
	if h.state != held && h.state != lingering {
		h.mu.Unlock()
		return
	}
	if a.Err == nil {
		h.grant.SentAt, h.grant.TTL = a.SentAt, a.TTL
		h.setTrust()
		// The instant may be that of an earlier request: not at once again.
		if soonest := time.Now().Add(h.grant.TTL / 20); h.renewAt.Before(soonest) {
			h.renewAt = soonest
		}
	} else {
		h.renewAt = time.Now().Add(backoff(0, h.grant.TTL/20, time.Second))
	}
	due := h.nextDue()
	h.mu.Unlock()
	s.mu.Lock()
	s.put(h, due)
	s.mu.Unlock()
	s.dropEnded(h)
	if a.Err != nil {
		h.report(EventRenewFailed, a.Err, h.since)
	} else {
		h.report(EventRenewed, nil, h.since)
	}
}

// dueHeap orders holds by when they are due.
type dueHeap []*hold

func (d dueHeap) Len() int           { return len(d) }
func (d dueHeap) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d dueHeap) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i+1, j+1
}

func (d *dueHeap) Push(x any) {
	h := x.(*hold)
	*d = append(*d, h)
	h.index = len(*d)
}

func (d *dueHeap) Pop() any {
	old := *d
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	h.index = 0
	return h
}
