package etcdstore

import (
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/holdfast-go/holdfast/driver"
)

// line is the queue of a name, in the order of create revisions, as one read
// through the quorum showed it.
type line []place

// newLine orders what stands under a name's prefix.
func newLine(kvs []*mvccpb.KeyValue, prefix string) line {
	q := make(line, 0, len(kvs))
	for _, kv := range kvs {
		if !deep(kv.Key, prefix) {
			q = append(q, newPlace(kv))
		}
	}
	slices.SortFunc(q, func(a, b place) int { return cmp.Compare(a.rev, b.rev) })
	return q
}

// granted counts the places that are granted: they are the first ones.
func (q line) granted() int {
	least := driver.Unlimited
	for i := range q {
		least = min(least, q[i].record.Limit)
		if i >= least {
			return i
		}
	}
	return len(q)
}

// admits tells whether one more place, at the end, would be granted.
func (q line) admits(limit int) bool {
	return q.granted() == len(q) && q.least(limit) > len(q)
}

// least is the smallest limit in the line, and of one more.
func (q line) least(limit int) int {
	for i := range q {
		limit = min(limit, q[i].record.Limit)
	}
	return limit
}

// find is the index of a key, -1 if it does not stand.
func (q line) find(key string) int {
	return slices.IndexFunc(q, func(p place) bool { return p.key == key })
}

// freeSlot is the lowest slot that no place but the given one has taken.
func (q line) freeSlot(but string) int {
	used := map[int]bool{}
	for i := range q {
		if q[i].key != but {
			used[q[i].slot()] = true
		}
	}
	for s := 0; ; s++ {
		if !used[s] {
			return s
		}
	}
}

// blocker is the place whose end place i, which is not granted, has to wait for
// before anything else: the one before it where it is exclusive itself, else the
// last exclusive one. Empty: several limits decide, and any end before it counts.
func (q line) blocker(i int) string {
	if q[i].record.Limit == driver.Exclusive {
		return q[i-1].key
	}
	for j := i - 1; j >= 0; j-- {
		if q[j].record.Limit == driver.Exclusive {
			return q[j].key
		}
	}
	return ""
}

func (q line) holders() []driver.Holder {
	h := make([]driver.Holder, 0, 1)
	for _, p := range q[:q.granted()] {
		h = append(h, p.holder())
	}
	return h
}

func (p *place) holder() driver.Holder {
	h := driver.Holder{Owner: p.owner(), Token: uint64(p.rev), Limit: p.record.Limit, Slot: p.slot()}
	if p.record.Kept {
		h.Note = "released, kept for its minimum hold"
	}
	return h
}
