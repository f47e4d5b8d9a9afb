//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-go/holdfast/driver"
)

// The search of porcupine is exponential at worst, so Judge cuts a history into independent
// pieces of about piece grants or writes. pieceLimit limits the search in each.
const (
	piece      = 400
	pieceLimit = 5 * time.Second
)

// step is one operation of the lock model: a grant, or the end of one.
type step struct {
	token uint64
	limit int // 0 for the end of a grant
}

// lockState is the state of the sequential lock: its holders and the last token.
type lockState struct {
	last    uint64
	holders []step
}

func lockModel(initial lockState) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, _ any) (bool, any) {
			s, in := state.(lockState), input.(step)
			if in.limit == 0 {
				i := slices.IndexFunc(s.holders, func(h step) bool { return h.token == in.token })
				if i < 0 {
					return false, s
				}
				return true, lockState{s.last, slices.Delete(slices.Clone(s.holders), i, i+1)}
			}
			least := in.limit
			for _, h := range s.holders {
				least = min(least, h.limit)
			}
			if in.token <= s.last || len(s.holders)+1 > least {
				return false, s
			}
			return true, lockState{in.token, append(slices.Clone(s.holders), in)}
		},
		// The order of the holders follows from their tokens.
		Equal: func(a, b any) bool {
			x, y := a.(lockState), b.(lockState)
			return x.last == y.last && slices.Equal(x.holders, y.holders)
		},
	}
}

// judgeLockModel searches an order of the grants and ends that obeys the sequential rule.
// Each operation takes effect between its call and its return. A grant's call is the
// request, and its return is the moment when its holder received it. The end of a grant is
// a single moment, the earliest possible one, which can only make later grants easier.
//
// A piece ends at an exclusive grant, because no other grant may stand beside that one.
// Smaller tokens are in the pieces before it, larger ones in those after it. A cut may hide
// a violation from porcupine. The sweep of judgeExclusion and the order of tokens cover the
// whole history. They do not find a smaller token that was used after a larger one, if both were
// requested before and the cut is between them.
func (c *collected) judgeLockModel(r *Report, h *nameHistory) {
	all := held(h.sections)
	// The tokens of a rewound store do not show the order of its grants.
	all = slices.DeleteFunc(all, func(s *section) bool { return c.rewound(s.requested, s.granted) })
	c.setAsked(h, all)
	slices.SortStableFunc(all, func(a, b *section) int { return cmp.Compare(a.token, b.token) })
	var initial lockState
	var ops []porcupine.Operation
	first := 0 // the index of the piece's first grant
	for i, s := range all {
		ops = append(ops, porcupine.Operation{Input: step{s.token, s.limit}, Call: s.asked, Return: s.granted})
		cut := s.limit == driver.Exclusive && len(ops) >= 2*piece
		if !cut {
			ops = c.appendEnd(ops, s)
		}
		if !cut && i < len(all)-1 {
			continue
		}
		if r.illegal(lockModel(initial), ops) {
			r.add(c.noOrder(h.name, all[first:i+1]))
			return
		}
		// The next piece begins with this grant as the only holder.
		first = i
		initial = lockState{s.token, []step{{s.token, s.limit}}}
		ops = c.appendEnd(ops[:0], s)
	}
}

// illegal reports whether a model has no order of the operations. It counts a piece that porcupine does not decide in
// time, and returns false.
func (r *Report) illegal(model porcupine.Model, ops []porcupine.Operation) bool {
	verdict := porcupine.CheckOperationsTimeout(model, ops, pieceLimit)
	if verdict == porcupine.Unknown {
		r.Stats.Unknown++
	}
	return verdict == porcupine.Illegal
}

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

// noOrder returns the violation of a piece whose grants no order explains.
func (c *collected) noOrder(name string, all []*section) Violation {
	first, last := all[0], all[len(all)-1]
	stretch := c.smallest(all)
	v := Violation{Rule: RuleModel, Name: name, From: first.requested, To: last.granted,
		Text: fmt.Sprintf("no order of the grants of %q with tokens %d to %d keeps the rule that a grant of limit n stands beside at most n-1 others, with rising tokens"+
			"; the smallest stretch in which it fails is that of %d grants, tokens %d to %d",
			name, first.token, last.token, len(stretch), stretch[0].token, stretch[len(stretch)-1].token)}
	if len(stretch) > mostShown {
		stretch = append(stretch[:mostShown-1:mostShown-1], stretch[len(stretch)-1])
	}
	for _, s := range stretch {
		v.Excerpt = append(v.Excerpt, s.story()...)
	}
	return v
}

// appendEnd appends the end of a grant, unless it has none.
func (c *collected) appendEnd(ops []porcupine.Operation, s *section) []porcupine.Operation {
	call, end := s.end(), s.end()
	if end == s.granted {
		// The grant had ended when its holder received it: its Locker was closed, or its
		// validity had ended. So it may have ended at any time since the request.
		call = s.asked
	}
	// If a fault may have taken the grant away, the grant may have ended at any time since
	// the fault began.
	for j := range c.disturbances {
		if d := &c.disturbances[j]; d.early && d.on(s.name) && s.since() <= d.to && d.from <= end {
			call = max(s.asked, min(call, d.from))
		}
	}
	if end < forever {
		ops = append(ops, porcupine.Operation{Input: step{s.token, 0}, Call: call, Return: end})
	}
	return ops
}

// mostShown limits the number of grants that a violation shows.
const mostShown = 3

// shrinkTime limits each search for a smaller failing sequence.
const shrinkTime = 200 * time.Millisecond

// smallest returns the shortest sequence of grants, in the order of their tokens, that
// fails: no order explains it. Leaving grants out, with their ends, only makes an order
// easier to find. So a sequence that fails without some grants fails with them.
func (c *collected) smallest(all []*section) []*section {
	fails := func(some []*section) bool {
		var ops []porcupine.Operation
		for _, s := range some {
			ops = append(ops, porcupine.Operation{Input: step{s.token, s.limit}, Call: s.asked, Return: s.granted})
			ops = c.appendEnd(ops, s)
		}
		return porcupine.CheckOperationsTimeout(lockModel(lockState{}), ops, shrinkTime) == porcupine.Illegal
	}
	n := sort.Search(len(all), func(n int) bool { return fails(all[:n+1]) })
	if n == len(all) {
		return all // porcupine does not decide in time
	}
	all = all[:n+1]
	from := sort.Search(len(all), func(from int) bool { return !fails(all[from:]) })
	return all[max(from-1, 0):]
}

// update is the register's only operation. It reads a value and, unless the register
// refuses it, writes the value plus one. An update without a return may or may not have
// happened.
type update struct {
	value   int64
	pending bool
}

func registerModel(initial int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, _ any) (bool, any) {
			s, in := state.(int64), input.(update)
			if s == in.value {
				return true, s + 1
			}
			return in.pending, s
		},
	}
}

// judgeRegister requires that each accepted update is one atomic step from the value that
// it read to the next. It only counts lost updates of the unguarded register. There, a
// holder may lose an update if it is stopped between its last check of its context and its
// write. Tokens prevent that.
func judgeRegister(r *Report, res string, all []*work) {
	var wrote, finished []*work // wrote includes the pending updates, which may have written
	guarded := false
	for _, w := range all {
		guarded = guarded || w.guarded
		switch {
		case w.outcome == kindWrote:
			wrote = append(wrote, w)
			finished = append(finished, w)
			if w.guarded {
				r.Stats.Writes++
			}
		case w.outcome == kindStale:
			r.Stats.Refused++
		case w.pending() && w.read != 0:
			wrote = append(wrote, w)
		}
	}
	byValue := func(a, b *work) int { return cmp.Compare(a.value, b.value) }
	slices.SortStableFunc(wrote, byValue)
	slices.SortStableFunc(finished, byValue)
	if !guarded {
		for i := 1; i < len(finished); i++ {
			if finished[i].value == finished[i-1].value {
				r.Stats.LostUpdates++
			}
		}
		return
	}
	judgeUpdates(r, res, finished)
	// A piece ends between two values, because the order of the values is the order of the
	// updates. judgeUpdates has compared that order with time.
	for from := 0; from < len(wrote); {
		to := min(from+piece, len(wrote))
		for to < len(wrote) && wrote[to].value == wrote[to-1].value {
			to++
		}
		initial := wrote[0].value
		if from > 0 {
			initial = wrote[from-1].value + 1
		}
		if !linearizable(r, res, initial, wrote[from:to]) {
			return
		}
		from = to
	}
}

// judgeUpdates finds two updates of a guarded register that read the same value, and an update
// that ended before one with a smaller value began. The updates are in the order of their values.
func judgeUpdates(r *Report, res string, updates []*work) {
	var latest *work // of all updates with smaller values, the one that began last
	for i, w := range updates {
		if i > 0 && updates[i-1].value == w.value {
			twin := updates[i-1]
			r.add(Violation{Rule: RuleRegister, Name: res, Excerpt: append(twin.story(), w.story()...),
				Text: fmt.Sprintf("an update of register %s is lost: %s (token %d) and %s (token %d) both read %d and both wrote %d, and the guard let both pass",
					res, twin.worker, twin.token, w.worker, w.token, w.value, w.value+1)})
		}
		if latest != nil && latest.begin > w.end {
			r.add(Violation{Rule: RuleRegister, Name: res, Excerpt: append(latest.story(), w.story()...),
				Text: fmt.Sprintf("register %s went back: %s began after %s had finished and found an older value", res, latest.worker, w.worker)})
		}
		if latest == nil || w.begin > latest.begin {
			latest = w
		}
	}
}

// linearizable reports whether porcupine finds an order of the updates. If there is none, it adds
// a violation. It also returns true if porcupine does not decide in time.
func linearizable(r *Report, res string, initial int64, wrote []*work) bool {
	ops := make([]porcupine.Operation, len(wrote))
	for i, w := range wrote {
		end := w.end
		if w.pending() {
			end = forever
		}
		ops[i] = porcupine.Operation{Input: update{w.value, w.pending()}, Call: w.begin, Return: end}
	}
	if !r.illegal(registerModel(initial), ops) {
		return true
	}
	first, last := wrote[0], wrote[len(wrote)-1]
	v := Violation{Rule: RuleModel, Name: res, From: first.begin, To: last.begin,
		Text: fmt.Sprintf("the guarded register %s is not linearizable between the values %d and %d", res, first.value, last.value+1)}
	if !r.shown(res, RuleRegister) {
		v.Excerpt = gap(wrote)
	}
	r.add(v)
	return false
}

// gap returns the updates around the first value that was read but not written.
func gap(wrote []*work) []Event {
	for i := 1; i < len(wrote); i++ {
		if wrote[i].value > wrote[i-1].value+1 {
			return append(wrote[i-1].story(), wrote[i].story()...)
		}
	}
	return wrote[0].story()
}
