package etcdstore

import (
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/holdfast-go/holdfast/driver"
)

// queue is the queue of a name, in the order of create revisions, from one read through the
// quorum.
type queue []entry

// newQueue sorts the keys under a name's prefix.
func newQueue(kvs []*mvccpb.KeyValue, prefix string) queue {
	q := make(queue, 0, len(kvs))
	for _, kv := range kvs {
		if !ofLongerName(kv.Key, prefix) {
			q = append(q, newEntry(kv))
		}
	}
	slices.SortFunc(q, func(a, b entry) int { return cmp.Compare(a.rev, b.rev) })
	return q
}

// broken returns the error of the first entry whose value no client has written, nil if there is none.
func (q queue) broken() error {
	for i := range q {
		if q[i].broken != "" {
			return driver.Broken(q[i].key, q[i].broken)
		}
	}
	return nil
}

// granted returns how many entries are granted: they are the first ones.
func (q queue) granted() int {
	least := driver.Unlimited
	for i := range q {
		least = min(least, q[i].record.Limit)
		if i >= least {
			return i
		}
	}
	return len(q)
}

// admits reports whether one more entry, at the end, would be granted.
func (q queue) admits(limit int) bool {
	return append(q[:len(q):len(q)], entry{record: record{Limit: limit}}).granted() > len(q)
}

// find returns the index of a key, -1 if it is not in the queue.
func (q queue) find(key string) int {
	return slices.IndexFunc(q, func(p entry) bool { return p.key == key })
}

// freeSlot returns the lowest slot that no entry other than except has.
func (q queue) freeSlot(except string) int {
	used := map[int]bool{}
	for i := range q {
		if q[i].key != except {
			used[q[i].slot()] = true
		}
	}
	for s := 0; ; s++ {
		if !used[s] {
			return s
		}
	}
}

// blocker returns the key of the entry that must end before entry i, which is not granted, can be
// granted. For an exclusive entry that is its predecessor, otherwise the last exclusive entry
// before it. The key is empty if several limits decide: then the end of any earlier entry may
// count.
func (q queue) blocker(i int) string {
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

func (s *store) holders(q queue) []driver.Holder {
	h := make([]driver.Holder, 0, 1)
	for _, p := range q[:q.granted()] {
		h = append(h, s.holder(p))
	}
	return h
}

// token returns the first token of an entry.
func (s *store) token(rev int64) uint64 { return uint64(rev) * uint64(s.room) }

func (s *store) holder(p entry) driver.Holder {
	h := driver.Holder{Owner: p.owner(), Token: s.token(p.rev), Tokens: p.record.Tokens, Limit: p.record.Limit, Slot: p.slot(), Kept: p.record.Kept}
	if h.Kept {
		h.Note = driver.NoteKept
	}
	return h
}
