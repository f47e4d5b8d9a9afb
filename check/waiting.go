//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// judgeOrder finds requests that were granted before an earlier one, if the store declares
// the order FIFO. A request is earlier if it had its queue entry before the other was sent.
// Only queue entries at the store count, not the local queue of a Locker. A waiter that a
// fault disturbed may have lost its entry and made a new one, so judgeOrder ignores that
// entry. In a fault that keeps the order, this is true only of the first waiters.
func (c *collected) judgeOrder(r *Report, h *nameHistory) {
	if c.guarantees.Order != driver.OrderFIFO {
		return
	}
	var queued, all []*request
	for _, q := range h.requests {
		if q.token == 0 {
			continue
		}
		all = append(all, q)
		if q.placed != 0 && c.undisturbedBy(disturbsOrder, q.sent, q.answer, h.name, q.worker) && !c.firstInStall(h, q) {
			queued = append(queued, q)
		}
	}
	slices.SortFunc(queued, func(a, b *request) int { return cmp.Compare(a.placed, b.placed) })
	slices.SortFunc(all, func(a, b *request) int { return cmp.Compare(a.sent, b.sent) })
	var last *request // the queue entry so far with the largest token
	next := 0
	for _, b := range all {
		for next < len(queued) && queued[next].placed < b.sent {
			if last == nil || queued[next].token > last.token {
				last = queued[next]
			}
			next++
		}
		if last != nil && last.token > b.token && last.answer > b.sent && !h.grantedTogether(last, b) {
			r.add(Violation{Rule: RuleOrder, Name: h.name, Excerpt: append(last.story(), b.story()...),
				Text: fmt.Sprintf("%s had a queue entry for %q before %s sent its request, and was served after it (tokens %d and %d)",
					last.worker, h.name, b.worker, last.token, b.token)})
		}
	}
}

func disturbsOrder(d *disturbance) bool { return !d.keepsOrder }

// firstInStall reports whether a request was the first waiter when a server that keeps its queue
// stopped, or could be granted together with the first one. If the server had just granted to it, the
// grant may have ended before its client noticed it. Then it makes a new entry behind the others.
func (c *collected) firstInStall(h *nameHistory, q *request) bool {
	return !c.undisturbedBy(func(d *disturbance) bool {
		// The stall lasts for longer than Slack. So a request that is answered later waited in it.
		stopped := d.from + int64(Slack)
		return d.keepsOrder && q.placed < stopped && q.answer > stopped &&
			!slices.ContainsFunc(h.requests, func(p *request) bool {
				exclusive := p.limit == driver.Exclusive || q.limit == driver.Exclusive
				return exclusive && p.token != 0 && p.placed != 0 && p.placed < q.sent && p.answer > stopped
			})
	}, q.sent, q.answer, h.name, q.worker)
}

// grantedTogether reports whether the store may have made two non-exclusive grants in one step:
// they were answered at about the same time, and both had room beside the other holders. The
// order of their tokens then proves nothing. When a client confirms its grant, the store may
// raise that token above those that the client has seen.
func (h *nameHistory) grantedTogether(a, b *request) bool {
	if a.limit == driver.Exclusive || b.limit == driver.Exclusive || a.answer-b.answer > int64(Slack) {
		return false
	}
	holders, least := 2, min(a.limit, b.limit)
	for _, s := range h.sections {
		if s.granted != 0 && s.granted <= b.answer && b.answer < s.end() && s.token != a.token && s.token != b.token {
			holders, least = holders+1, min(least, s.limit)
		}
	}
	return holders <= least
}

// judgeWaiting finds waiters that were not served, and Unlocks that did not return.
func (c *collected) judgeWaiting(r *Report, h *nameHistory) {
	for _, s := range h.sections {
		if c.killed[s.worker] != 0 {
			continue
		}
		answered := s.granted != 0 || s.failed != 0
		switch {
		case s.stuck != 0 && s.granted == 0, !answered && c.drain != 0:
			r.add(c.notServed(h, s))
		case s.unlock != 0 && s.unlocked == 0 && c.drain != 0:
			r.add(Violation{Rule: RuleWaiting, Name: h.name, Excerpt: s.story(),
				Text: fmt.Sprintf("%s's Unlock of %q did not return", s.holder(), h.name)})
		}
	}
}

// notServed returns the violation of a waiter that was not served. Its text names the last known
// holder.
func (c *collected) notServed(h *nameHistory, s *section) Violation {
	end := cmp.Or(s.stuck, c.last)
	held := "and no client has held it yet"
	var before []Event
	if last := h.lastHolder(); last != nil {
		before = last.story()
		held = fmt.Sprintf("and the last known holder, %s with token %d, ended %s before", last.holder(), last.token, time.Duration(max(end-last.end(), 0)).Round(time.Millisecond))
		if last.end() > end {
			held = fmt.Sprintf("and %s still holds it, with token %d", last.holder(), last.token)
		}
	}
	return Violation{Rule: RuleWaiting, Name: h.name, Excerpt: append(before, s.story()...), From: s.requested, To: end,
		Text: fmt.Sprintf("%s never got %q: it gave up after %s, %s", s.holder(), h.name,
			time.Duration(end-s.requested).Round(time.Millisecond), held)}
}

// lastHolder returns the last holder of the name.
func (h *nameHistory) lastHolder() *section {
	var last *section
	for _, o := range h.sections {
		if o.granted != 0 && (last == nil || o.granted > last.granted) {
			last = o
		}
	}
	return last
}

// judgeWaking checks that a store that notifies waiters hands locks off faster than polling
// would. It uses the median, because single handoffs may be slow on a busy machine.
func (c *collected) judgeWaking(r *Report, took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	median := took[len(took)/2]
	r.Stats.Handoff = median
	if limit := max(c.guarantees.Fallback/4, 150*time.Millisecond); len(took) >= 8 && median > limit {
		r.add(Violation{Rule: RuleWaiting, From: c.start, To: c.last,
			Text: fmt.Sprintf("waiters are not woken: the median of %d handoffs after an unlock took %s, while the store declares %q",
				len(took), median.Round(time.Millisecond), c.guarantees.Wake)})
	}
}

// leftBy returns the events of the request that left something behind.
func (c *collected) leftBy(e *Event) []Event {
	if h := c.names[e.Name]; h != nil {
		for _, q := range h.requests {
			if q.id == e.ID {
				return append(q.story(), *e)
			}
		}
	}
	return []Event{*e}
}
