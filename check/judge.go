//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Judge decides whether a history keeps the rules that its store declares. The events are
// in order of time, as ReadFiles returns them. The first kindRun event contains the store's
// guarantees. For n events the time grows with n log n. Beside the events, Judge needs
// about 700 bytes of memory for each grant.
func Judge(events []Event) (*Report, error) {
	r, _, err := judge(events, Slack)
	return r, err
}

// judge is Judge for a machine on which a goroutine that can run does so within slack. It also returns what it
// has collected.
func judge(events []Event, slack time.Duration) (*Report, *collected, error) {
	began := time.Now()
	c, err := collect(events)
	if err != nil {
		return nil, nil, err
	}
	c.slack = slack
	r := &Report{Start: c.start, Stats: Stats{Events: c.events, Faults: c.kinds}}
	var handoffs []time.Duration
	for _, name := range slices.Sorted(maps.Keys(c.names)) {
		h := c.names[name]
		c.count(r, h)
		c.judgeExclusion(r, h)
		c.judgeValidity(r, h)
		c.judgeTokens(r, h)
		c.judgeKept(r, h)
		c.judgeOrder(r, h)
		c.judgeWaiting(r, h)
		handoffs = append(handoffs, c.judgeLate(r, h)...)
		c.judgeLockModel(r, h)
		c.judgeUndone(r, h)
	}
	c.judgeWaking(r, handoffs)
	for _, res := range slices.Sorted(maps.Keys(c.registers)) {
		judgeRegister(r, res, c.registers[res])
	}
	c.judgeJobs(r)
	c.countPaths(r, events)
	for _, e := range c.left {
		if c.excused(&e) {
			continue
		}
		r.add(Violation{Rule: RuleLeftovers, Name: e.Name, Text: "something was left behind: " + e.Note, Excerpt: c.leftBy(&e)})
	}
	r.Stats.Took = time.Since(began)
	return r, c, nil
}

// judgeJobs judges what jobs.go records.
func (c *collected) judgeJobs(r *Report) {
	for _, name := range slices.Sorted(maps.Keys(c.schedules)) {
		c.judgeEvery(r, name, c.schedules[name])
	}
	for _, key := range slices.Sorted(maps.Keys(c.onces)) {
		c.judgeOnce(r, key, c.onces[key])
	}
	for _, name := range slices.Sorted(maps.Keys(c.ids)) {
		c.judgeIDs(r, name, c.ids[name])
	}
	for _, key := range slices.Sorted(maps.Keys(c.values)) {
		c.judgeValue(r, key, c.values[key])
	}
}

// count adds a name's events to the counts of the report.
func (c *collected) count(r *Report, h *nameHistory) {
	for _, s := range h.sections {
		if s.granted != 0 {
			r.Stats.Grants++
		}
		if s.failed != 0 {
			r.Stats.Failures++
		}
		if s.lost != 0 {
			r.Stats.Losses++
		}
	}
	for _, q := range h.granted {
		if q.placed != 0 {
			r.Stats.Queued++
		}
	}
	// Each grant and each renewal has a bound.
	r.Stats.Renewals += max(0, len(h.bounds)-len(h.granted))
}

// judgeExclusion finds grants beside more live grants than their limits allow. It goes through the
// grants in order of time and keeps the set of live ones. A grant that the store may have taken away
// early is left out and counted as allowed.
func (c *collected) judgeExclusion(r *Report, h *nameHistory) {
	all := held(h.sections)
	slices.SortStableFunc(all, func(a, b *section) int { return cmp.Compare(a.granted, b.granted) })
	var live []*section
	for _, b := range all {
		live = slices.DeleteFunc(live, func(a *section) bool { return a.end() <= b.granted })
		var taken []*section
		others := slices.DeleteFunc(slices.Clone(live), func(a *section) bool {
			if c.takenEarly(a, b) && len(live)+1 > strictest(append(live, b)) {
				taken = append(taken, a)
				return true
			}
			return false
		})
		r.Stats.Allowed += len(taken)
		if most := strictest(append(others, b)); len(others)+1 > most && b.end() > b.granted {
			r.add(c.tooMany(h.name, others, b, most))
		}
		if b.end() > b.granted {
			live = append(live, b)
		}
	}
}

// strictest returns the smallest limit of the sections.
func strictest(all []*section) int {
	return slices.MinFunc(all, func(a, b *section) int { return cmp.Compare(a.limit, b.limit) }).limit
}

// held returns the sections that have a grant.
func held(all []*section) []*section {
	return slices.DeleteFunc(slices.Clone(all), func(s *section) bool { return s.granted == 0 })
}

// takenEarly reports whether a fault may have taken away the first of two grants before the
// store made the second, and the first holder noticed that within the declared time. That time
// begins anew after each fault in which the holder hears nothing of its server, because the
// store declares it for a holder that reaches its server. The end of the holder's validity
// remains the limit, see section.end. The token decides which grant is the first, because
// answers may arrive in the opposite order.
func (c *collected) takenEarly(a, b *section) bool {
	if b.token < a.token && !c.rewound(b.requested, b.granted) {
		a, b = b, a
	}
	for i := range c.disturbances {
		d := &c.disturbances[i]
		if d.from > b.granted {
			break
		}
		if d.early && d.on(a.name) && a.since() <= d.lastTaken() && a.end() <= c.latestNotice(d, a.worker) {
			return true
		}
	}
	return false
}

// latestNotice returns the latest moment at which a holder may notice that the fault took its
// grant away.
func (c *collected) latestNotice(d *disturbance, worker string) int64 {
	reached := d.to
	for i := range c.disturbances {
		u := &c.disturbances[i]
		if u.from >= reached+int64(c.guarantees.Notice) {
			break
		}
		if slices.Contains(unreachable, u.kind) && (u.worker == "" || u.worker == worker) {
			reached = max(reached, u.to)
		}
	}
	return reached + c.notice()
}

// maxExcerpt is the length of an excerpt at which tooMany adds no more faults.
const maxExcerpt = 14

// tooMany returns the violation of a grant b that began beside the live grants of others. Its text
// names the first of them.
func (c *collected) tooMany(name string, others []*section, b *section, most int) Violation {
	v := Violation{Rule: RuleExclusion, Name: name, From: b.granted}
	end := b.end()
	for _, a := range others {
		end = min(end, a.end())
		v.Excerpt = append(v.Excerpt, a.story()...)
	}
	v.To = min(end, c.last)
	v.Excerpt = append(v.Excerpt, b.story()...)
	first := others[0]
	for i := range c.disturbances {
		d := &c.disturbances[i]
		between := d.from > first.granted && d.from < b.granted
		affects := d.on(name) && (d.worker == b.worker || d.worker == first.worker)
		if between && affects && len(v.Excerpt) < maxExcerpt {
			v.Excerpt = append(v.Excerpt, *d.begin)
		}
	}
	v.Cause = c.causes(name, first, b)
	v.Text = fmt.Sprintf("%q was held by %d at once where at most %d may be: %s got it with token %d while %s still held it with token %d, %s",
		name, len(others)+1, most, b.holder(), b.token, first.holder(), first.token, overlapWords(b.granted, v.To))
	return v
}

// causes describes what preceded the grant of b while a still counted as live: the last
// renewal of a, its validity, and the faults since then.
func (c *collected) causes(name string, a, b *section) (causes []string) {
	ago := func(t int64) string { return time.Duration(b.granted - t).Round(10 * time.Microsecond).String() }
	last := renewal{a.granted, a.firstUntil}
	was := "not renewed since it was granted"
	for _, n := range a.renewals {
		if n.at <= b.granted && n.at > last.at {
			last, was = n, "last renewed"
		}
	}
	left := "and valid without an end"
	if last.until < forever {
		left = fmt.Sprintf("and was valid for %s from then", time.Duration(last.until-last.at).Round(10*time.Microsecond))
	}
	causes = append(causes, fmt.Sprintf("token %d of %s was %s, %s earlier, %s", a.token, a.holder(), was, ago(last.at), left))
	// The latest faults are the likeliest causes.
	for i := len(c.disturbances) - 1; i >= 0 && len(causes) < 5; i-- {
		d := &c.disturbances[i]
		if d.from > b.granted || d.to < last.at || !d.affects(name, a.worker, b.worker) {
			continue
		}
		text := "fault " + d.kind
		if d.note != "" {
			text += " (" + d.note + ")"
		}
		if d.worker != "" {
			text += " of " + d.worker
		}
		text += fmt.Sprintf(", begun %s earlier", ago(d.from))
		if d.to < b.granted {
			text += fmt.Sprintf(" and over %s earlier", ago(d.to))
		} else {
			text += " and under way"
		}
		causes = append(causes, text)
	}
	return causes
}

func overlapWords(from, to int64) string {
	return fmt.Sprintf("for at least %s", time.Duration(to-from).Round(10*time.Microsecond))
}

// judgeValidity finds contexts that continued after the validity had ended, and validity beyond
// the store's deadline.
func (c *collected) judgeValidity(r *Report, h *nameHistory) {
	grantOf := h.grantOf()
	for _, s := range held(h.sections) {
		if s.alive > s.until {
			alive := Event{T: s.alive, W: s.worker, K: kindAlive, Name: h.name, Token: s.token}
			r.add(Violation{Rule: RuleValidity, Name: h.name, Excerpt: append(s.story(), alive),
				Text: fmt.Sprintf("the context of %s under token %d of %q went on for %s after its lease had ceased to be valid",
					s.holder(), s.token, h.name, time.Duration(s.alive-s.until))})
		}
		granted := grantOf(s)
		// If a lease ended before its holder read the validity, the history has the moment
		// of the grant as its end.
		if d, known := h.deadlines[granted]; known && s.until > d && s.until > s.granted {
			v := Violation{Rule: RuleValidity, Name: h.name, Excerpt: s.story(),
				Text: fmt.Sprintf("%s took token %d of %q for valid %s beyond the last deadline that the store can have set: validity must count from before the request was sent",
					s.holder(), s.token, h.name, time.Duration(min(s.until, c.last+int64(time.Hour))-d))}
			for _, b := range h.bounds {
				if b.token == granted && b.at+b.ttl == d {
					v.Excerpt = append(v.Excerpt, Event{T: b.at, W: s.worker, K: kindKept, Name: h.name, Token: granted, TTL: b.ttl})
				}
			}
			r.add(v)
		}
	}
}

// grantOf returns a function that returns the token with which the store granted a
// section's lease. After local handoffs each later holder has a larger token.
func (h *nameHistory) grantOf() func(*section) uint64 {
	return func(s *section) uint64 {
		i := sort.Search(len(h.granted), func(i int) bool { return h.granted[i].token > s.token })
		if i > 0 && s.limit == driver.Exclusive && h.granted[i-1].worker == s.worker {
			return h.granted[i-1].token
		}
		return s.token
	}
}

// grant is a token with the interval in which it was granted.
type grant struct {
	from, to int64
	token    uint64
	worker   string
	events   []Event
}

// grants returns the grants of the requests at the store. If the history has no such requests, it
// returns those of the locks.
func (h *nameHistory) grants() []grant {
	var all []grant
	for _, q := range h.granted {
		all = append(all, grant{q.sent, q.answer, q.token, q.worker, q.story()})
	}
	if len(h.requests) == 0 {
		for _, s := range held(h.sections) {
			all = append(all, grant{s.requested, s.granted, s.token, s.worker, s.story()})
		}
	}
	return all
}

// judgeTokens finds two grants with the same token, and a token that is not larger than that of a
// grant that was answered before the request was sent. The tokens of a store that went back to an
// earlier state may repeat.
func (c *collected) judgeTokens(r *Report, h *nameHistory) {
	bySent := h.grants()
	byAnswer := slices.Clone(bySent)
	slices.SortFunc(bySent, func(a, b grant) int { return cmp.Compare(a.from, b.from) })
	slices.SortFunc(byAnswer, func(a, b grant) int { return cmp.Compare(a.to, b.to) })
	var newest *grant // of the grants answered before g was sent, that with the largest token
	next := 0
	seen := map[uint64]*grant{}
	for i := range bySent {
		g := &bySent[i]
		for next < len(byAnswer) && byAnswer[next].to < g.from {
			if newest == nil || byAnswer[next].token > newest.token {
				newest = &byAnswer[next]
			}
			next++
		}
		twin := seen[g.token]
		if c.rewound(g.from, g.to) && (twin != nil || newest != nil && newest.token >= g.token) {
			continue
		}
		switch {
		case twin != nil:
			r.add(Violation{Rule: RuleTokens, Name: h.name, Excerpt: append(slices.Clone(twin.events), g.events...),
				Text: fmt.Sprintf("two grants of %q carry the same token %d: %s's and %s's", h.name, g.token, twin.worker, g.worker)})
		case newest != nil && newest.token >= g.token:
			r.add(Violation{Rule: RuleTokens, Name: h.name, Excerpt: append(slices.Clone(newest.events), g.events...),
				Text: fmt.Sprintf("tokens of %q do not rise: %s got %d after %s had got %d", h.name, g.worker, g.token, newest.worker, newest.token)})
		}
		seen[g.token] = g
	}
}

// judgeUndone finds requests of unknown outcome that were never undone. Such a request may
// have left a queue entry or a grant, so the client must undo it before its Locker's Close
// returns, unless it has outlived the request. A client that vanished, or whose worker did not stop by
// itself, could not undo it.
func (c *collected) judgeUndone(r *Report, h *nameHistory) {
	for _, q := range h.requests {
		if q.unknown != 0 && q.undone == 0 && !c.outlived(q) && c.stopped[q.worker] && c.vanished[opKey{q.worker, q.gen}] == 0 {
			r.add(Violation{Rule: RuleLeftovers, Name: h.name, Excerpt: q.story(),
				Text: fmt.Sprintf("%s got no answer to a request for %q, and has not undone it", q.worker, h.name)})
		}
	}
}
