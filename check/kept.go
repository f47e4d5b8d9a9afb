//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// stand is the time for which a grant must stand after its release.
type stand struct {
	token       uint64
	limit       int
	worker      string
	requested   int64
	from, until int64
	events      []Event
}

// stands returns the grants of a name that had to stand after their release, with lower limits of
// their ends. There are two of them. The Locker must keep a lock for its MinHold, counted
// at the earliest from the request. And the store must keep a grant for the time in the release,
// counted at the earliest from the send of its first attempt. The first fails if the Locker sends the wrong
// time, the second if the store does not keep it. The claims of Every have only the second.
//
// A release that was not confirmed proves nothing, nor does that of a Locker that was being
// closed. A store that cannot keep a grant leaves that to the Locker, which loses it like
// any other one: only its last recorded validity counts.
func (c *collected) stands(h *nameHistory) (all []stand) {
	grantOf := h.grantOf()
	for _, s := range h.sections {
		closing := c.closing[opKey{s.worker, s.gen}]
		if s.keep == 0 || s.unlocked == 0 || s.err != "" || s.lost != 0 || closing != 0 && closing < s.unlocked {
			continue
		}
		until := s.requested + s.keep
		if !c.guarantees.Linger {
			until = min(until, s.until)
		}
		all = append(all, stand{grantOf(s), s.limit, s.worker, s.since(), s.unlock, until, s.story()})
	}
	sent := map[string]*request{}
	for _, q := range h.requests {
		sent[q.id] = q
	}
	for i := range h.leaves {
		e := &h.leaves[i]
		if q := sent[e.ID]; q != nil {
			all = append(all, stand{e.Token, e.Limit, e.W, q.sent, e.T, q.left + e.For, append(q.story(), *e)})
		}
	}
	return all
}

// judgeKept finds grants that conflict with an earlier grant which had to stand. Their tokens
// show which of the two is the earlier one.
func (c *collected) judgeKept(r *Report, h *nameHistory) {
	all := c.stands(h)
	if len(all) == 0 {
		return
	}
	tokens := map[uint64]bool{}
	for i := range all {
		tokens[all[i].token] = true
	}
	r.Stats.Kept += len(tokens)
	granted := slices.Clone(h.granted)
	slices.SortFunc(granted, func(a, b *request) int { return cmp.Compare(a.answer, b.answer) })
	for i := range all {
		k := &all[i]
		from := sort.Search(len(granted), func(i int) bool { return granted[i].answer > k.from })
		for _, q := range granted[from:] {
			if q.answer >= k.until {
				break
			}
			conflict := q.token > k.token && min(q.limit, k.limit) == driver.Exclusive
			if conflict && !c.mayHaveEnded(k, h.name, q) {
				r.add(Violation{Rule: RuleKept, Name: h.name, Excerpt: append(slices.Clone(k.events), q.story()...),
					Text: fmt.Sprintf("%q was granted to %s with token %d, although token %d of %s had to stand for %s more after its release",
						h.name, q.worker, q.token, k.token, k.worker, time.Duration(k.until-q.answer).Round(10*time.Microsecond))})
				break
			}
		}
	}
}

// mayHaveEnded reports whether a fault may have ended a grant that had to stand, before the
// store granted q.
func (c *collected) mayHaveEnded(k *stand, name string, q *request) bool {
	if !c.guarantees.Linger {
		return !c.undisturbed(k.requested, q.answer, name, k.worker)
	}
	return slices.ContainsFunc(c.disturbances, func(d disturbance) bool {
		if d.from > q.answer || !d.on(name) {
			return false
		}
		return d.early && k.requested <= d.lastTaken() || (d.rewinds || d.loses) && k.requested <= d.to+c.notice()
	})
}
