//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// forgets reports whether the store may have lost data or confirmed writes in the interval.
func (c *collected) forgets(from, to int64) bool {
	return slices.ContainsFunc(c.disturbances, func(d disturbance) bool {
		return d.forgets() && d.from <= to && from <= d.to+int64(Slack)
	})
}

func (d *disturbance) forgets() bool {
	return d.rewinds || d.loses || slices.Contains(emptying, d.kind)
}

// onceCall is one call of Once.
type onceCall struct {
	worker     string
	begin, end int64
	ran        int64 // when the work began
	done       bool  // the call has reported that the work is done
	did        bool  // this call has done it
	events     []Event
}

func (c *collected) addOnce(e *Event) {
	key := opKey{e.W, e.Op}
	all := c.onces[e.Res]
	if e.K == kindOnce {
		c.onces[e.Res] = append(all, &onceCall{worker: e.W, begin: e.T, events: []Event{*e}})
		c.onceCalls[key] = c.onces[e.Res][len(all)]
		return
	}
	o := c.onceCalls[key]
	if o == nil {
		return
	}
	o.events = append(o.events, *e)
	if e.K == kindRan {
		o.ran = e.T
		return
	}
	o.end, o.done, o.did = e.T, e.Err == "", e.Err == "" && e.Value == 1
}

// judgeOnce finds work that was done twice, and work that began although a call had reported before
// that it is done. The end of a lock is no excuse for either: the mark is written with a comparison of
// its version.
func (c *collected) judgeOnce(r *Report, key string, all []*onceCall) {
	var done, did *onceCall // the calls that reported first that it is done, and that they have done it
	byEnd := slices.DeleteFunc(slices.Clone(all), func(o *onceCall) bool { return !o.done })
	slices.SortFunc(byEnd, func(a, b *onceCall) int { return cmp.Compare(a.end, b.end) })
	add := func(text string, a, b *onceCall) {
		r.add(Violation{Rule: RuleOnce, Name: key, Excerpt: append(slices.Clone(a.events), b.events...), Text: fmt.Sprintf(text, key, a.worker, b.worker)})
	}
	for _, o := range byEnd {
		if o.did {
			r.Stats.Once++
			if did != nil && !c.forgets(did.begin, o.end) {
				add("%s was done twice: by %s and by %s", did, o)
			}
			did = o
		}
	}
	next := 0
	for _, o := range all { // in order of their begin
		for next < len(byEnd) && byEnd[next].end < o.begin {
			done = byEnd[next]
			next++
		}
		if o.ran != 0 && done != nil && !c.forgets(done.begin, o.ran) {
			add("the work of %s was done when %s reported that, and %s began it again", done, o)
		}
	}
}

// oldBlocks limits how many ids a client may still have from blocks that it reserved before the
// store lost data.
const oldBlocks = 16

// judgeIDs finds an id that was drawn twice, and a client whose ids do not rise. Where the store may
// have lost data, it begins anew.
func (c *collected) judgeIDs(r *Report, name string, all []Event) {
	drawn := map[int64]*Event{}
	last := map[opKey]*Event{}
	old := map[opKey]int{} // by client: how many ids it may still have of old blocks
	for i := range all {   // in order of time
		e := &all[i]
		client := opKey{e.W, e.Gen}
		if i > 0 && c.forgets(all[i-1].T, e.T) {
			for client := range last {
				old[client] = oldBlocks
			}
			clear(drawn)
		}
		before := last[client]
		last[client] = e
		if old[client] > 0 {
			old[client]--
			continue
		}
		r.Stats.IDs++
		switch twin := drawn[e.Value]; {
		case twin != nil:
			r.add(Violation{Rule: RuleIDs, Name: name, Excerpt: []Event{*twin, *e},
				Text: fmt.Sprintf("id %d of %s was drawn twice, by %s and by %s", e.Value, name, twin.W, e.W)})
		case before != nil && before.Value >= e.Value && !c.forgets(before.T, e.T):
			r.add(Violation{Rule: RuleIDs, Name: name, Excerpt: []Event{*before, *e},
				Text: fmt.Sprintf("the ids that %s draws from %s do not rise: %d after %d", e.W, name, e.Value, before.Value)})
		}
		drawn[e.Value] = e
	}
}

// valueOp is a read or a write of a versioned value. A write replaces the data of its version,
// before. Writes have data of their own, so data stand for their version.
type valueOp struct {
	write        bool
	data, before string
	begin, end   int64
	outcome      string // of a write: "" if it was written, or one of Event.Err
	events       []Event
}

func (c *collected) addValue(e *Event) {
	o := &valueOp{data: e.ID, before: e.Note, begin: e.T, end: forever, outcome: unknown, events: []Event{*e}}
	switch e.K {
	case kindGet:
		o.begin, o.end, o.outcome = e.T-e.For, e.T, ""
	case kindPut:
		o.write = true
		c.puts[opKey{e.W, e.Op}] = o
	default:
		if put := c.puts[opKey{e.W, e.Op}]; put != nil {
			put.events = append(put.events, *e)
			if put.outcome = e.Err; e.Err != unknown {
				put.end = e.T
			}
		}
		return
	}
	c.values[e.Res] = append(c.values[e.Res], o)
}

// valueState is the state of the sequential value. At first its data are not known.
type valueState struct {
	known bool
	data  string
}

// valueModel is a register that compares versions. A refused write must have found another
// version.
func valueModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return valueState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, o := state.(valueState), input.(*valueOp)
			switch {
			case !o.write:
				return !s.known || s.data == o.data, valueState{true, o.data}
			case o.outcome == conflict:
				return !s.known || s.data != o.before, s
			}
			return !s.known || s.data == o.before, valueState{true, o.data}
		},
	}
}

// judgeValue requires that the reads and writes of a value have an order that a register with
// versions allows. A part of the history ends where the store may have lost data.
func (c *collected) judgeValue(r *Report, key string, all []*valueOp) {
	seen := map[string]int64{} // by data: when an operation had first observed them
	for _, o := range all {
		for _, data := range []string{o.before, o.data} {
			if observed := !o.write || data == o.before; observed && (seen[data] == 0 || o.end < seen[data]) {
				seen[data] = o.end
			}
		}
	}
	lost := map[string]bool{} // the data of versions whose write may have been overtaken by one that no operation observed
	var ops []*valueOp
	for _, o := range all {
		switch {
		case o.outcome == unknown && seen[o.data] == 0:
			lost[o.before] = true
			continue
		case o.write && (o.outcome == unknown || o.outcome == "") && seen[o.data] != 0: // it was written before its data were observed
			o.end = max(min(o.end, seen[o.data]), o.begin)
		case o.outcome != "" && o.outcome != conflict:
			if seen[o.data] != 0 {
				r.add(Violation{Rule: RuleValues, Name: key, Excerpt: o.events,
					Text: fmt.Sprintf("a write of %s was refused (%s), and its data were read later", key, o.outcome)})
				return
			}
			continue
		}
		ops = append(ops, o)
	}
	ops = slices.DeleteFunc(ops, func(o *valueOp) bool { return o.outcome == conflict && lost[o.before] })
	slices.SortStableFunc(ops, func(a, b *valueOp) int { return cmp.Compare(a.begin, b.begin) })
	var part []*valueOp
	var open int64 // when the last write ends that belongs to no part: it may take effect until then
	for _, o := range ops {
		if o.write && o.outcome == unknown && c.forgets(o.begin, o.end) {
			break // it may have been written after data were lost
		}
		if len(part) > 0 && c.forgets(part[len(part)-1].begin, o.begin) {
			if !judgeValuePart(r, key, part) {
				return
			}
			part = nil
		}
		switch {
		case !c.forgets(o.begin, o.end) && o.begin > open:
			part = append(part, o)
		case o.write:
			open = max(open, o.end)
			// No operation of the part has observed it, but it may have refused another.
			part = slices.DeleteFunc(part, func(p *valueOp) bool { return p.outcome == conflict && p.before == o.before && p.end > o.begin })
		}
	}
	judgeValuePart(r, key, part)
}

const (
	// The search of porcupine is exponential at worst, so valueLimit limits it.
	valueLimit = 5 * time.Second
	// shrinkTime limits each search for a shorter failing sequence.
	shrinkTime = 200 * time.Millisecond
)

// fewest returns the shortest beginning of a part that fails.
func fewest(part []*valueOp) []*valueOp {
	n := sort.Search(len(part)-1, func(n int) bool {
		ops := valueOperations(part[:n+1])
		return porcupine.CheckOperationsTimeout(valueModel(), ops, shrinkTime) == porcupine.Illegal
	})
	return part[:n+1]
}

func valueOperations(part []*valueOp) []porcupine.Operation {
	ops := make([]porcupine.Operation, len(part))
	for i, o := range part {
		ops[i] = porcupine.Operation{Input: o, Call: o.begin, Return: o.end}
	}
	return ops
}

// judgeValuePart reports whether an order of the operations exists. If porcupine does not
// decide in time, it returns true.
func judgeValuePart(r *Report, key string, part []*valueOp) bool {
	r.Stats.Values += len(part)
	switch porcupine.CheckOperationsTimeout(valueModel(), valueOperations(part), valueLimit) {
	case porcupine.Unknown:
		r.Stats.Unknown++
		return true
	case porcupine.Ok:
		return true
	}
	few := fewest(part)
	v := Violation{Rule: RuleValues, Name: key, From: few[0].begin, To: few[len(few)-1].begin,
		Text: fmt.Sprintf("no order of the reads and writes of %s is that of a value with versions: it fails in a stretch of %d", key, len(few))}
	for _, o := range few[max(0, len(few)-5):] {
		v.Excerpt = append(v.Excerpt, o.events...)
	}
	r.add(v)
	return false
}
