//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// longestWait returns how long a waiter may wait for a free place. longestExpiry returns how long
// after the end of a grant the store may still refuse a request that does not wait.
func (c *collected) longestWait() int64   { return int64(c.guarantees.Fallback + 4*c.slack) }
func (c *collected) longestExpiry() int64 { return int64(c.guarantees.Granularity + 2*c.slack) }

// setEnds sets until of the requests of a name: the latest moment at which the request may have a
// grant or a queue entry at the store. It needs an answer of the store, or what the store declares
// about grants that are not renewed.
func (c *collected) setEnds(h *nameHistory) {
	for _, q := range h.requests {
		q.until = c.endOf(q, h.deadlines[q.token])
	}
}

// redisEntryLife limits how long the queue entry of a dead client keeps others out on Redis: it outlives a
// stall of the server of 4 s, and then it may get a provisional grant.
const redisEntryLife = int64(8 * time.Second)

func (c *collected) endOf(q *request, deadline int64) int64 {
	client := opKey{q.worker, q.gen}
	ttl := q.ttl
	if !c.guarantees.LeftoversExpire {
		ttl = c.longestTTL[client] // that of the session
	}
	ttl += int64(c.guarantees.Granularity)
	dead := c.death(q)
	alone := 2 * ttl // for how long an entry that is not refreshed, and a grant to it, may stand
	if strings.HasPrefix(c.guarantees.Kind, "redis") {
		alone = max(alone, redisEntryLife)
	}
	alone = max(alone, c.position(q))
	end := min(dead, forever-alone) + alone
	switch {
	case q.freed != 0 && q.left != 0 && c.ended(client) < q.freed:
		return c.recounted(q)
	case q.freed != 0:
		return q.freed
	case q.undone != 0:
		return q.undone
	case q.token == 0 && q.unknown == 0 && q.answer != 0:
		if q.next != nil && q.next.answer != 0 && c.position(q) > 0 {
			return q.next.answer
		}
		return q.answer + c.position(q)
	case c.guarantees.LeftoversExpire && q.unknown != 0:
		end = min(end, q.unknown+alone)
	case c.guarantees.LeftoversExpire && q.token != 0:
		end = max(deadline, q.unsure)
		if dead < end { // a last renewal may not be in the history
			end = max(end, dead+ttl)
		}
	}
	if end >= forever-alone {
		return forever
	}
	// A server that starts or leads again may count the time of grants anew.
	for i := range c.disturbances {
		if d := &c.disturbances[i]; d.all() && q.sent <= d.to && d.from < end {
			end = max(end, d.to+ttl)
		}
	}
	return end
}

// death returns when the client of a request was killed, or forever.
func (c *collected) death(q *request) int64 {
	dead := forever
	for _, t := range []int64{c.killed[q.worker], c.vanished[opKey{q.worker, q.gen}]} {
		if t != 0 {
			dead = min(dead, t)
		}
	}
	return dead
}

// fairWait is the fair wait of Redisson's fair lock in the check.
const fairWait = time.Second

// deadWaiters returns how many queue entries of dead clients may stand before q in Redisson's fair lock. Each of them keeps the
// name for a fair wait, which begins with the first request that finds the name free and this entry at the head. A grant
// to a request that was sent after the death of a client shows that its entry is gone.
func (c *collected) deadWaiters(h *nameHistory, q *request) (n int64) {
	if c.guarantees.Kind != "redis-redisson-fair" {
		return 0
	}
	for _, u := range h.requests {
		if u == q || !u.wait || u.answer != 0 || u.undone != 0 || u.sent >= cmp.Or(q.placed, q.answer) {
			continue
		}
		dead := c.death(u)
		if u.unknown != 0 {
			dead = min(dead, u.unknown)
		}
		if dead < q.answer && !slices.ContainsFunc(h.granted, func(v *request) bool { return v != q && v.sent > dead && v.answer < q.answer }) {
			n++
		}
	}
	return n
}

// position returns for how long after its answer a request that was not granted may keep its position before the others. It
// may not have given it up.
func (c *collected) position(q *request) int64 {
	if c.guarantees.Order != driver.OrderLongest || !q.repeats && (!q.wait || q.err == driver.CodeWithdrawn.String()) {
		return 0
	}
	return int64(driver.PositionTime(time.Duration(q.ttl)))
}

// recounts reports whether a store that leads again after the fault may count the time of a kept lock
// anew, if the client of that lock has ended. An etcd declares that.
func (c *collected) recounts(d *disturbance) bool {
	return c.guarantees.Kind == "etcd" && d.all()
}

// recounted returns the latest end of a kept lock whose client has ended.
func (c *collected) recounted(q *request) int64 {
	end := q.freed
	for i := range c.disturbances {
		if d := &c.disturbances[i]; c.recounts(d) && q.left <= d.to && d.from < end {
			end = max(end, d.to+q.freed-q.left)
		}
	}
	return end
}

// judgeLate finds waiters that waited too long for a place that was free, and requests without
// waiting that were refused although it was. It returns the times from a release to the grant of the next
// waiter, where no fault disturbed them.
func (c *collected) judgeLate(r *Report, h *nameHistory) (took []time.Duration) {
	c.setEnds(h)
	for _, q := range h.requests {
		switch {
		case q.answer == 0:
		case q.wait && q.placed != 0 && q.answer-q.placed > c.longestWait():
			since, keeper, certain := c.freeSince(h, q, q.placed)
			since += c.deadWaiters(h, q) * int64(fairWait)
			if d := time.Duration(q.answer - since); certain && int64(d) > c.longestWait() {
				r.add(Violation{Rule: RuleLate, Name: h.name, Excerpt: append(h.before(q, since, keeper), q.story()...),
					Text: fmt.Sprintf("%s waited %s for %q, which was free%s", q.worker, d.Round(time.Millisecond), h.name, keeper.words())})
			}
		case !q.wait && q.err == driver.CodeBusy.String():
			r.Stats.Refusals++
			from := q.sent - c.longestExpiry()
			since, keeper, certain := c.freeSince(h, q, from)
			// The wait of a dead waiter may begin with the request itself.
			if certain && since <= from && !h.awaited(q, from) && c.deadWaiters(h, q) == 0 {
				r.add(Violation{Rule: RuleLate, Name: h.name, Excerpt: append(h.before(q, from, keeper), q.story()...),
					Text: fmt.Sprintf("%s was refused %q, which had been free for more than %s%s", q.worker, h.name, time.Duration(c.longestExpiry()), keeper.words())})
			}
		}
	}
	return c.handoffs(h)
}

// other is a request that may have kept another one out until that moment.
type other struct {
	*request
	until int64
}

// freeSince returns the moment since which the store had a place for q, at the earliest from. It is
// not certain if other waiters with another limit may have been before q. keeper, if not nil, is the last grant that should
// have been released then, although the store had it for longer.
func (c *collected) freeSince(h *nameHistory, q *request, from int64) (since int64, keeper *request, certain bool) {
	var others []other
	mixed := false
	for _, u := range h.requests {
		if u.sent >= q.answer {
			break
		}
		if u == q || u.until <= from {
			continue
		}
		if c.heldNothing(u, q) {
			mixed = mixed || u.wait && u.limit != q.limit
			continue
		}
		until := c.keptUntil(h, u, q)
		if until < u.until && (keeper == nil || u.until > keeper.until) {
			keeper = u
		}
		if until > from {
			others = append(others, other{u, until})
		}
	}
	slices.SortFunc(others, func(a, b other) int { return cmp.Compare(b.until, a.until) })
	since, least := from, q.limit
	for i, u := range others {
		apart := u.limit != q.limit && !c.guarantees.Mixed
		if least = min(least, u.limit); i+2 > least || apart {
			since = u.until
			others = others[:i]
			break
		}
	}
	if len(others) > 0 && mixed {
		return since, keeper, false
	}
	for i := range c.disturbances {
		d := &c.disturbances[i]
		if d.from < q.answer && d.affects(h.name, q.worker) {
			since = max(since, d.to+2*int64(c.slack)+c.withheld(d))
			if d.loses {
				since = max(since, c.regained(h, d))
			}
		}
	}
	return max(since, c.prepared(h, q)), keeper, true
}

// prepared returns when the latest grant before the answer of q was made that the store had to prepare the name
// for. Where limits do not mix, the first grant of a limit sets the record of the name, which others find
// locked meanwhile.
func (c *collected) prepared(h *nameHistory, q *request) (at int64) {
	if c.guarantees.Mixed {
		return 0
	}
	limit := 0
	for _, u := range h.requests {
		if u != q && u.token != 0 && u.sent < q.answer && u.limit != limit {
			limit, at = u.limit, u.answer
		}
	}
	return at
}

// regained returns until when a name may have a grant whose end the store has lost in a fault. A store that
// goes back to an earlier state may even have grants of an earlier round. The first exclusive grant
// after the fault shows that none of them stands.
func (c *collected) regained(h *nameHistory, d *disturbance) int64 {
	end := d.to + c.longestStand + int64(c.guarantees.Granularity)
	for _, q := range h.requests {
		if q.token != 0 && q.limit == driver.Exclusive && q.sent > d.to {
			end = min(end, q.answer)
		}
	}
	return end
}

// withheld returns for how long after a fault the store grants nothing, as it declares: a restarted
// server of a quorum has no vote for the longest TTL.
func (c *collected) withheld(d *disturbance) int64 {
	if c.guarantees.Kind == "redlock" && d.worker == "" {
		return int64(c.guarantees.MaxTTL)
	}
	return 0
}

// heldNothing reports whether u certainly kept no other request out until the answer of q: it was granted
// after q, its queue entry was behind that of q, it still waited while no fault affected its worker,
// or it was refused before q was sent. A request that does not wait may stand at the store until
// its answer.
func (c *collected) heldNothing(u, q *request) bool {
	first := c.guarantees.Order == driver.OrderFIFO && q.placed != 0 && q.placed < u.sent
	switch {
	case u.token == 0 && first && c.undisturbed(q.sent, q.answer, q.name, q.worker):
		return true
	case u.token != 0 && q.token != 0:
		return u.token > q.token
	case u.token != 0 || u.unknown != 0 || u.answer == 0, !u.wait && u.answer > q.sent, u.until > max(u.answer, q.sent):
		return false
	}
	return c.undisturbed(u.sent, min(u.answer, q.answer), u.name, u.worker)
}

// awaited reports whether another request with a queue entry may have been before q.
func (h *nameHistory) awaited(q *request, from int64) bool {
	return slices.ContainsFunc(h.requests, func(u *request) bool {
		return u != q && u.wait && u.sent < q.answer && u.until > from && (u.answer == 0 || u.answer > from)
	})
}

// before returns the events of the request that had the position of q last, or of its keeper.
func (h *nameHistory) before(q *request, since int64, keeper *request) []Event {
	if keeper != nil {
		return append(keeper.story(), keeper.holds[len(keeper.holds)-1].story()...)
	}
	var last *request
	for _, u := range h.requests {
		if u != q && u.token != 0 && u.until <= since && (last == nil || u.until > last.until) {
			last = u
		}
	}
	if last == nil {
		return nil
	}
	events := last.story()
	e := events[0]
	e.K, e.T, e.Token = kindFreed, last.until, last.token
	return append(events, e)
}

// handoffs returns the times from a release to the grant of the next waiter.
func (c *collected) handoffs(h *nameHistory) (took []time.Duration) {
	free := int64(math.MaxInt64)
	var last *request // of the earlier grants, that with the latest end
	for _, q := range h.granted {
		if since := max(free, q.placed); q.placed != 0 && since < q.answer && c.undisturbed(since, q.answer, h.name, q.worker, last.worker) {
			took = append(took, time.Duration(q.answer-since))
		}
		if last == nil || q.until >= last.until {
			last, free = q, q.until
		}
	}
	return took
}
