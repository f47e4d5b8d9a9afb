package sqlkit

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

// Renew sets new expiry times for grants that still stand. The grants of one name are renewed by one
// write of its row.
func (o *Optimistic) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	ctx, end, err := o.call(ctx)
	if err != nil {
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	defer end()
	renewals := o.renewals(grants, answers)
	inBatches(len(renewals), func(from, to int, last bool) bool {
		var ops []*op
		for _, r := range renewals[from:to] {
			if !r.done {
				ops = append(ops, r.op)
			}
		}
		err := o.applyTogether(ctx, ops)
		if err != nil && !last && ctx.Err() == nil && driver.CodeOf(err) == driver.CodeUnavailable {
			return false
		}
		for _, r := range renewals[from:to] {
			failed := r.err
			if !r.done {
				failed = o.ended(err)
			}
			for _, i := range r.waiting {
				answers[i] = driver.Renewal{Err: failed}
			}
		}
		return true
	})
	return answers
}

// renewal is an op that renews the grants of one name.
type renewal struct {
	*op
	waiting []int // indices of grants without an answer
}

// renewals returns an op for each name. The ops set the answers.
func (o *Optimistic) renewals(grants []driver.Grant, answers []driver.Renewal) (all []*renewal) {
	byName := map[string]*renewal{}
	for i, g := range grants {
		r := byName[g.Name]
		if r == nil {
			r = &renewal{op: &op{name: o.key(g.Name)}}
			var from *row // the row that the last write shall replace
			r.step = func(row *row) (next *content, err error) {
				next, r.waiting = row.renew(from, grants, r.waiting, answers)
				from = row
				return next, nil
			}
			byName[g.Name], all = r, append(all, r)
		}
		r.waiting = append(r.waiting, i)
	}
	return all
}

// renew sets the answers of grants that are gone, and of grants that the last write has renewed: it
// replaced the row from. renew returns the other grants, and the content that renews them. It returns nil
// if there are none.
func (r *row) renew(from *row, grants []driver.Grant, waiting []int, answers []driver.Renewal) (next *content, others []int) {
	next = &content{Holders: slices.Clone(r.Holders), Taken: r.Taken}
	byID := make(map[string]*holder, len(next.Holders))
	for i := range next.Holders {
		if h := &next.Holders[i]; !h.Left {
			byID[h.ID] = h
		}
	}
	for _, i := range waiting {
		g := grants[i]
		switch h := byID[g.ID]; {
		case h == nil || h.Token != g.Token:
			answers[i] = driver.Renewal{Cause: driver.CauseGone, Err: notHeld(g.Name, g.Token)}
			if r.wasTaken(g.Token) {
				answers[i].Cause = driver.CauseTaken
			}
		case from != nil && h.Expires == from.now+micros(g.TTL):
			answers[i] = driver.Renewal{SentAt: from.sent, TTL: g.TTL}
		default:
			h.Expires, h.TTL = r.now+micros(g.TTL), micros(g.TTL)
			others = append(others, i)
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	return next, others
}

const (
	// togetherTries is how many tries follow the first one without a pause. The client pauses
	// before each later try.
	togetherTries = 4
	// togetherBytes limits the states in a statement that replaces several rows. A server limits its
	// packets, MariaDB to 16 MB.
	togetherBytes = 256 << 10
)

// applyTogether executes ops that change rows of different names and wake no waiter. It sends three
// statements for all of them, where apply sends three for each. It never waits for a row that another
// transaction has locked, so that such a row delays no other. It tries such rows again until ctx ends. It
// returns an error if ops are not done. Each op has its own error.
func (o *Optimistic) applyTogether(ctx context.Context, ops []*op) error {
	if len(ops) < 2 {
		return o.apply(ctx, ops...)
	}
	ops = slices.SortedFunc(slices.Values(ops), func(a, b *op) int { return bytes.Compare(a.name, b.name) })
	for _, p := range ops {
		p.change = nil // of an earlier call
	}
	var rest []*op // apply executes these and returns the error
	for tries := 0; len(ops) > 0; tries++ {
		if tries > togetherTries && backOff(ctx, tries) != nil {
			rest = append(rest, ops...)
			break
		}
		again, others := o.tryTogether(ctx, ops)
		ops, rest = again, append(rest, others...)
	}
	return o.apply(ctx, rest...)
}

// tryTogether replaces and reads the row of each op once. It returns ops to try again, and ops that cannot
// be executed together: those whose rows are missing, and after an error that a retry does not solve all
// that are not done.
func (o *Optimistic) tryTogether(ctx context.Context, ops []*op) (again, others []*op) {
	for queue := [][]*op{ops}; len(queue) > 0; {
		part := queue[0]
		queue = queue[1:]
		if n := fits(part); n < len(part) {
			queue = append(queue, part[n:])
			part = part[:n]
		}
		changed, missing, err := o.writeAndRead(ctx, part)
		_, retry := o.faults.Sort(err)
		switch {
		case err == nil:
			again, others = append(again, changed...), append(others, missing...)
		case !retry || ctx.Err() != nil:
			return nil, slices.Concat(append(queue, part, again, others)...)
		case len(part) == 1:
			again = append(again, part...)
		default: // another transaction may have locked a row; the other half does not wait for it
			queue = append(queue, part[:len(part)/2], part[len(part)/2:])
		}
	}
	return again, others
}

// fits returns how many of the ops may be sent together, at least one.
func fits(ops []*op) int {
	size := 0
	for i, p := range ops {
		if p.change == nil {
			continue
		}
		if size += len(p.change.State); size > togetherBytes && i > 0 {
			return i
		}
	}
	return len(ops)
}

// writeAndRead replaces the rows of ops that have a change, and then reads the rows of all ops. It returns
// ops whose rows shall be replaced next, and ops whose rows were not found. After an error no op is done,
// and each keeps its change.
func (o *Optimistic) writeAndRead(ctx context.Context, ops []*op) (changed, missing []*op, err error) {
	var script []string
	var changes []Change
	var written []*op
	names := make([][]byte, len(ops))
	for i, p := range ops {
		names[i] = p.name
		if p.change != nil {
			changes, written = append(changes, *p.change), append(written, p)
			p.change = nil
		}
	}
	if len(changes) > 0 {
		script = append(script, o.table.UpdateEach(changes))
	}
	script = append(script, o.table.Find(names))
	sent := driver.Now()
	answers, mayHaveWritten, err := o.run(ctx, script)
	if err != nil {
		for i, p := range written {
			p.change, p.unread = &changes[i], mayHaveWritten
		}
		return nil, nil, err
	}
	found := map[string]Row{}
	for _, a := range answers[len(answers)-1] {
		key, err := hex.DecodeString(a.Text(columnName))
		if err != nil {
			continue
		}
		a[columnHighWater] = sql.NullString{} // Find returns none
		found[string(key)] = a
	}
	for _, p := range ops {
		a, ok := found[string(p.name)]
		if !ok {
			missing = append(missing, p)
			continue
		}
		if r, w := p.next(a, sent); w != nil {
			p.change = &Change{Name: p.name, Old: r.version, Write: *w}
			changed = append(changed, p)
		}
	}
	return changed, missing, nil
}
