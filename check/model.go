//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// judgeLockModel requires that the grants and ends of a name have an order that a sequential lock allows: tokens
// rise, and a grant of limit n stands beside at most n-1 others.
//
// Each grant is made between the request and the moment when its holder received it. The tokens give the order, so a
// grant is made before any with a larger token was received. The latest moment that this leaves is the best one: what may
// have ended before an earlier one may have ended before it. For the same reason each grant ends as early as it may. So
// these moments show an order, or there is none.
func (c *collected) judgeLockModel(r *Report, h *nameHistory) {
	all := held(h.sections)
	// The tokens of a rewound store do not show the order of its grants.
	all = slices.DeleteFunc(all, func(s *section) bool { return c.rewound(s.requested, s.granted) })
	c.setAsked(h, all)
	slices.SortStableFunc(all, func(a, b *section) int { return cmp.Compare(a.token, b.token) })
	before := make([]*section, len(all)) // of this grant and those with larger tokens, the one that was received first
	for i, s := range slices.Backward(all) {
		if before[i] = s; i < len(all)-1 && before[i+1].granted < s.granted {
			before[i] = before[i+1]
		}
	}
	var live []*section
	for i, s := range all {
		made := before[i].granted
		live = slices.DeleteFunc(live, func(a *section) bool { return a.mayEnd <= made })
		var stretch []*section
		switch with := append(slices.Clone(live), s); {
		case i > 0 && all[i-1].token == s.token:
			stretch = all[i-1 : i+1]
		case s.token == 0, made < s.asked:
			stretch = []*section{s}
		case len(with) > strictest(with):
			stretch = with
		default:
			s.mayEnd = c.earliestEnd(s)
			live = with
			continue
		}
		if !slices.Contains(stretch, before[i]) {
			stretch = append(slices.Clone(stretch), before[i])
		}
		r.add(noOrder(h.name, s, stretch))
		return
	}
}

// noOrder returns the violation of grants that no order explains. one is the first that breaks the rule.
func noOrder(name string, one *section, stretch []*section) Violation {
	first, last := stretch[0], stretch[len(stretch)-1]
	v := Violation{Rule: RuleModel, Name: name, From: first.requested, To: last.granted,
		Text: fmt.Sprintf("no order of the grants of %q keeps the rule that a grant of limit n stands beside at most n-1 others, with rising tokens"+
			"; a stretch in which it fails is that of %d grants, tokens %d to %d", name, len(stretch), first.token, last.token)}
	if len(stretch) > mostShown {
		stretch = slices.Compact([]*section{first, one, last})
	}
	for _, s := range stretch {
		v.Excerpt = append(v.Excerpt, s.story()...)
	}
	return v
}

// mostShown limits the number of grants that a violation shows.
const mostShown = 3

// setAsked sets asked of the sections: the earliest moment at which the store may have made the grant. A former
// primary may grant beside the new one, with an older token. If that grant brings tokens for further holders of
// its process, they may have requested the lock after the grant was made.
func (c *collected) setAsked(h *nameHistory, all []*section) {
	for _, s := range all {
		s.asked = s.requested
		i := sort.Search(len(h.granted), func(i int) bool { return h.granted[i].token > s.token }) - 1
		later := s.grant != nil && s.token > s.grant.token // it may have begun before its Locker noticed the end of the grant
		if i >= 0 && h.granted[i].worker == s.worker && slices.ContainsFunc(c.disturbances, func(d disturbance) bool {
			return d.early && (d.loses || later && d.on(h.name)) && d.from <= s.granted && s.requested <= d.to+c.notice()
		}) {
			s.asked = min(s.asked, h.granted[i].sent)
		}
	}
}

// earliestEnd returns the earliest moment at which a grant may have ended.
func (c *collected) earliestEnd(s *section) int64 {
	end := s.end()
	if end == forever {
		return end
	}
	earliest := end
	if end == s.granted {
		// The grant had ended when its holder received it: its Locker was closed, or its
		// validity had ended. So it may have ended at any time since the request.
		earliest = s.asked
	}
	// If a fault may have taken the grant away, the grant may have ended at any time since
	// the fault began.
	for j := range c.disturbances {
		if d := &c.disturbances[j]; d.early && d.on(s.name) && s.since() <= d.to && d.from <= end {
			earliest = min(earliest, d.from)
		}
	}
	return earliest
}

// judgeRegister requires that each accepted update is one atomic step from the value that
// it read to the next. It only counts lost updates of the unguarded register. There, a
// holder may lose an update if it is stopped between its last check of its context and its
// write. Tokens prevent that.
func judgeRegister(r *Report, res string, all []*work) {
	var wrote []*work // includes the pending updates, which may have written
	guarded := false
	for _, w := range all {
		guarded = guarded || w.guarded
		switch {
		case w.outcome == kindWrote:
			wrote = append(wrote, w)
			if w.guarded {
				r.Stats.Writes++
			}
		case w.outcome == kindStale:
			r.Stats.Refused++
		case w.pending() && w.read != 0:
			wrote = append(wrote, w)
		}
	}
	slices.SortStableFunc(wrote, func(a, b *work) int {
		return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.written(), b.written()))
	})
	if guarded {
		judgeUpdates(r, res, wrote)
		return
	}
	for i := 1; i < len(wrote); i++ {
		if wrote[i].value == wrote[i-1].value && !wrote[i].pending() {
			r.Stats.LostUpdates++
		}
	}
}

// written returns the latest moment at which an update can have been written.
func (w *work) written() int64 {
	if w.pending() {
		return forever
	}
	return w.end
}

// judgeUpdates finds two updates of a guarded register that read the same value, a value that no update wrote, and an
// update that was written before one with a smaller value began. The updates are in the order of their values,
// and those of one value in the order in which they were written, so that the pending ones are the last.
func judgeUpdates(r *Report, res string, updates []*work) {
	var last, latest *work // latest: of all updates with smaller values, the one that began last
	for _, w := range updates {
		switch {
		case last == nil || w.value == last.value+1:
		case w.pending():
			continue // it has not written
		case w.value == last.value:
			r.add(Violation{Rule: RuleRegister, Name: res, Excerpt: append(last.story(), w.story()...),
				Text: fmt.Sprintf("an update of register %s is lost: %s (token %d) and %s (token %d) both read %d and both wrote %d, and the guard let both pass",
					res, last.worker, last.token, w.worker, w.token, w.value, w.value+1)})
		default:
			r.add(Violation{Rule: RuleRegister, Name: res, Excerpt: append(last.story(), w.story()...),
				Text: fmt.Sprintf("%s (token %d) read %d from register %s, and no update has written that", w.worker, w.token, w.value, res)})
		}
		if latest != nil && latest.begin > w.written() {
			r.add(Violation{Rule: RuleRegister, Name: res, Excerpt: append(latest.story(), w.story()...),
				Text: fmt.Sprintf("register %s went back: %s began after %s had finished and found an older value", res, latest.worker, w.worker)})
		}
		last = w
		if latest == nil || w.begin > latest.begin {
			latest = w
		}
	}
}
