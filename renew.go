package holdfast

import (
	"cmp"
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// schedule orders a Locker's leases by their next due time: a renewal every third of the TTL, or the end of
// a lease that could not be renewed. It is one timer, and a goroutine only while it handles a firing of the
// timer. The Locker's mutex guards it.
type schedule struct {
	leases dueHeap
	timer  *time.Timer
	armed  time.Duration // when the timer fires, 0 if it does not
	// checked is the last reading of the clock. If its suspended part has jumped, the
	// machine slept, and every lease is due.
	checked driver.Instant
}

const (
	// suspendCheck is the longest time between two readings of the clock while a
	// lease is scheduled. A timer does not detect a suspend; two readings do.
	suspendCheck = time.Second
	// minSuspend is the shortest jump of the suspended time that counts as a suspend.
	minSuspend = 10 * time.Millisecond
)

// put schedules a lease, or changes when it is due.
func (s *schedule) put(x *lease, due time.Duration) {
	x.due = due
	if x.index > 0 {
		heap.Fix(&s.leases, int(x.index)-1)
	} else {
		heap.Push(&s.leases, x)
	}
}

// remove removes a lease from the schedule, if it is there.
func (s *schedule) remove(x *lease) {
	if x.index > 0 {
		heap.Remove(&s.leases, int(x.index)-1)
	}
}

// rest stops the timer if no lease needs it. It would wake a process that only waits.
func (s *schedule) rest() {
	if len(s.leases) == 0 && s.armed != 0 {
		s.timer.Stop()
		s.armed = 0
	}
}

// take removes and returns the leases that are due now or shortly after (see renewTogether), or
// all leases after a suspend. kind is the event that the caller applies to them.
func (s *schedule) take(now time.Duration) (due []*lease, kind eventKind) {
	_, slept := s.checked.Elapsed()
	s.checked = driver.Now()
	if slept > minSuspend {
		due = s.leases
		for _, x := range due {
			x.index = 0
		}
		s.leases = nil
		return due, resumed
	}
	for len(s.leases) > 0 {
		first := s.leases[0]
		if first.due > now+first.req.TTL/3/renewTogether {
			break
		}
		due = append(due, heap.Pop(&s.leases).(*lease))
	}
	return due, ticked
}

// arm sets the timer for the lease that is due first. The caller holds the Locker's mutex. A timer
// that fires earlier stays as it is: one needless firing costs less than setting the timer for
// every lock.
func (l *Locker) arm() {
	s := &l.schedule
	if len(s.leases) == 0 {
		return
	}
	at := s.leases[0].due
	if s.armed != 0 && s.armed <= at {
		return
	}
	now := l.now()
	s.armed = max(min(at, now+suspendCheck), 1)
	if s.timer == nil {
		s.checked = driver.Now()
		s.timer = time.AfterFunc(s.armed-now, l.tick)
		return
	}
	s.timer.Reset(s.armed - now)
}

// disarm stops the timer forever.
func (l *Locker) disarm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.schedule.timer != nil {
		l.schedule.timer.Stop()
		l.schedule.armed = 0
	}
}

// tick handles a firing of the timer, on a goroutine of its own: it ends the leases
// that have expired and renews those that are due.
func (l *Locker) tick() {
	l.background.begin()
	defer l.background.end()
	var renewals []*lease
	var others []outcome
	l.mu.Lock()
	due, kind := l.schedule.take(l.now())
	for _, x := range due {
		var o outcome
		l.step(x, &event{kind: kind}, &o)
		switch {
		case o.do&renew != 0:
			renewals = append(renewals, x)
		case o.do != 0:
			others = append(others, o)
		}
	}
	l.schedule.armed = 0
	l.arm()
	l.mu.Unlock()
	for i := range others {
		_ = l.perform(&others[i])
	}
	l.renewAll(renewals)
}

// renewAll renews leases in batches of similar request timeouts. So a lease that must be renewed soon
// does not shorten the time for the renewal of the others.
func (l *Locker) renewAll(leases []*lease) {
	timeout := func(x *lease) time.Duration {
		ttl := x.req.TTL
		if st := x.valid.Load(); st != nil {
			ttl = min(ttl, st.grant.TTL) // a provisional grant has a shorter TTL
		}
		return l.requestTimeout(ttl)
	}
	for len(leases) > 0 {
		least := timeout(slices.MinFunc(leases, func(a, b *lease) int { return cmp.Compare(timeout(a), timeout(b)) }))
		var batch, rest []*lease
		for _, x := range leases {
			if timeout(x) <= 2*least {
				batch = append(batch, x)
			} else {
				rest = append(rest, x)
			}
		}
		if len(rest) == 0 {
			l.renew(batch, least)
			return
		}
		l.background.run(func() { l.renew(batch, least) })
		leases = rest
	}
}

// renew sends one renewal of several leases, and applies the answers.
func (l *Locker) renew(leases []*lease, timeout time.Duration) {
	grants := make([]driver.Grant, len(leases))
	l.mu.Lock()
	for i, x := range leases {
		grants[i] = x.standing.grant
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	answers := l.store.Renew(ctx, grants)
	cancel()
	early := rand.Float64()
	for i, x := range leases {
		a := driver.Renewal{Err: context.DeadlineExceeded}
		if i < len(answers) {
			a = answers[i]
		}
		l.renewed(x, a, early)
	}
}

// renewAgain returns the delay after a renewal that failed. It is random, but does not grow.
func renewAgain(ttl time.Duration) time.Duration {
	b := backoff.Backoff{First: ttl / 20, Max: time.Second}
	return b.Next()
}

// renewed applies the answer to one renewal. early is the same for all leases of a call.
func (l *Locker) renewed(x *lease, a driver.Renewal, early float64) {
	var o outcome
	e := event{kind: renewed}
	switch {
	case a.Err == nil:
	case l.store.Classify(a.Err) == driver.CodeNotHeld:
		e = event{kind: revoke, cause: cmp.Or(a.Cause, CauseGone), err: a.Err}
	default:
		e = event{kind: renewalFailed, err: a.Err}
	}
	l.mu.Lock()
	switch {
	case e.kind == renewalFailed:
		e.keep = renewAgain(x.state.ttl)
	case e.kind == renewed && x.state.alive():
		g := x.standing.grant
		g.SentAt, g.TTL, g.Provisional = a.SentAt, a.TTL, false // mutation: renewed
		x.standing = &standing{grant: g}
		e = x.validity(renewed)
		e.early = early
	}
	l.step(x, &e, &o)
	l.mu.Unlock()
	_ = l.perform(&o)
}

// dueHeap orders leases by when they are due.
type dueHeap []*lease

func (d dueHeap) Len() int           { return len(d) }
func (d dueHeap) Less(i, j int) bool { return d[i].due < d[j].due }
func (d dueHeap) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = int32(i+1), int32(j+1)
}

func (d *dueHeap) Push(v any) {
	x := v.(*lease)
	*d = append(*d, x)
	x.index = int32(len(*d))
}

func (d *dueHeap) Pop() any {
	old := *d
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	x.index = 0
	return x
}
