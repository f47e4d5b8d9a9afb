package etcdstore

import (
	"sync"
	"time"
)

// queueWatches are the watches of the deletions of each name's entries.
type queueWatches struct {
	mu  sync.Mutex
	all map[string]*queueWatch
}

// queueWatch is the watch of all deletions of a name's entries. The entries of this store that count
// them share it. It stays for queueWatchTime after the last of them, so that the next entry needs neither a
// new watch nor the read that follows one.
type queueWatch struct {
	name  string
	watch watch

	// The mutex of queueWatches guards these fields.
	stands bool
	users  map[*mailbox]struct{}
}

// queueWatchTime is how long a watch of a name stays without an entry that needs it.
const queueWatchTime = time.Second

// joinQueue returns a mailbox for the deletions of a name's entries, from now on. If standing is set, it
// returns nil unless the watch stands. Otherwise the mailbox reports when the watch stands.
func (s *Store) joinQueue(name string, standing bool) *mailbox {
	n := &s.queues
	n.mu.Lock()
	q := n.all[name]
	if standing && (q == nil || !q.stands) {
		n.mu.Unlock()
		return nil
	}
	made := q == nil
	if made {
		q = &queueWatch{name: name, users: map[*mailbox]struct{}{}}
		q.watch.update = func(u watchUpdate) { s.reportDeletions(q, u) }
		q.watch.setPrefix(s.lay.entries(name))
		if n.all == nil {
			n.all = map[string]*queueWatch{}
		}
		n.all[name] = q
	}
	m := &mailbox{full: make(chan struct{}, 1), queue: q}
	if q.stands && !standing {
		m.put(watchUpdate{stands: true})
	}
	q.users[m] = struct{}{}
	n.mu.Unlock()
	if made {
		s.watch(&q.watch)
	}
	return m
}

// leaveQueue ends the use of a mailbox, which may be nil.
func (s *Store) leaveQueue(m *mailbox) {
	if m == nil {
		return
	}
	n := &s.queues
	n.mu.Lock()
	defer n.mu.Unlock()
	q := m.queue
	delete(q.users, m)
	if len(q.users) == 0 && n.all[q.name] == q {
		time.AfterFunc(queueWatchTime, func() { s.dropQueue(q) })
	}
}

// dropQueue ends a watch that no entry needs.
func (s *Store) dropQueue(q *queueWatch) {
	n := &s.queues
	n.mu.Lock()
	if len(q.users) > 0 || n.all[q.name] != q {
		n.mu.Unlock()
		return
	}
	delete(n.all, q.name)
	n.mu.Unlock()
	s.unwatch(&q.watch)
}

// reportDeletions passes an update of a watch on to the entries that share it.
func (s *Store) reportDeletions(q *queueWatch, u watchUpdate) {
	n := &s.queues
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case u.err != nil: // the watch is over
		if n.all[q.name] == q {
			delete(n.all, q.name)
		}
	case u.stands || u.interrupted:
		q.stands = u.stands
	}
	for m := range q.users {
		m.put(u)
	}
}
