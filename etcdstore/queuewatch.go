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
// them share it. It stays for queueWatchTime after the last of them, so that the next entry needs
// neither a new watch nor the read that follows one.
type queueWatch struct {
	name  string
	watch watch

	// The mutex of queueWatches guards these fields.
	isSet bool
	users map[*mailbox]struct{}
}

// queueWatchTime is how long a watch of a name stays without an entry that needs it.
const queueWatchTime = time.Second

// joinWatchedQueue returns a mailbox for the deletions of a name's entries, from now on. It returns nil
// if their watch is not set.
func (s *store) joinWatchedQueue(name string) *mailbox {
	n := &s.queues
	n.mu.Lock()
	defer n.mu.Unlock()
	if q := n.all[name]; q != nil && q.isSet {
		return q.join()
	}
	return nil
}

// joinQueue returns a mailbox for the deletions of a name's entries, from now on. The mailbox also
// reports when their watch is set.
func (s *store) joinQueue(name string) *mailbox {
	n := &s.queues
	n.mu.Lock()
	q := n.all[name]
	first := q == nil
	if first {
		q = &queueWatch{name: name, users: map[*mailbox]struct{}{}}
		q.watch.update = func(u watchUpdate) { s.reportDeletions(q, u) }
		q.watch.setPrefix(s.lay.entries(name))
		if n.all == nil {
			n.all = map[string]*queueWatch{}
		}
		n.all[name] = q
	}
	m := q.join()
	if q.isSet {
		m.put(watchUpdate{isSet: true})
	}
	n.mu.Unlock()
	if first {
		s.watch(&q.watch)
	}
	return m
}

// join adds a mailbox to the users. The caller holds the mutex of queueWatches.
func (q *queueWatch) join() *mailbox {
	m := &mailbox{full: make(chan struct{}, 1), queue: q}
	q.users[m] = struct{}{}
	return m
}

// leaveQueue ends the use of a mailbox, which may be nil.
func (s *store) leaveQueue(m *mailbox) {
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
func (s *store) dropQueue(q *queueWatch) {
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
func (s *store) reportDeletions(q *queueWatch, u watchUpdate) {
	n := &s.queues
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case u.err != nil: // the watch is over
		if n.all[q.name] == q {
			delete(n.all, q.name)
		}
	case u.isSet || u.interrupted:
		q.isSet = u.isSet
	}
	for m := range q.users {
		m.put(u)
	}
}
