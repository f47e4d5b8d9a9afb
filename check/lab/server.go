//go:build linux || darwin

package lab

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// server keeps values under names, as the servers do for which such recipes are
// written. Each method is one command, and one atomic step.
type server struct {
	mu     sync.Mutex
	values map[string][]value
	counts map[counter]int
	token  uint64
	// subscribers are the channels of the subscribers of each name.
	subscribers map[string]map[chan struct{}]bool
	// before is the state of a replica, replicaLag ago, if the recipe has one.
	before []snapshot
	lagged bool
	// spoilt is the number of present faults of the network, which delay answers and lose
	// renewals.
	spoilt int
	// dies: the next client that gives a permit back dies before it has counted down.
	dies atomic.Bool
}

// value is what a recipe has written under a name.
type value struct {
	owner   driver.Owner
	token   uint64
	limit   int
	made    time.Time
	expires time.Time // zero: never
	client  *client
}

// counter is the key of one: semaphores of several sizes have one each.
type counter struct {
	name    string
	permits int
}

type snapshot struct {
	at     time.Time
	values map[string][]value
}

// replicaLag is how far a replica is behind.
const replicaLag = 100 * time.Millisecond

func newServer() *server {
	return &server{values: map[string][]value{}, counts: map[counter]int{}, subscribers: map[string]map[chan struct{}]bool{}}
}

// standing are the values of a name that have not run out; mu is held.
func (s *server) standing(name string, now time.Time) []value {
	s.values[name] = slices.DeleteFunc(s.values[name], func(v value) bool { return !v.expires.IsZero() && !v.expires.After(now) })
	return s.values[name]
}

// free reports whether one more value may be added.
func (s *server) free(name string, limit int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admits(name, limit, now)
}

func (s *server) admits(name string, limit int, now time.Time) bool {
	all := s.standing(name, now)
	for _, v := range all {
		limit = min(limit, v.limit)
	}
	return len(all) < limit
}

// take writes a value if it may stand, as SET with NX and an expiry does.
func (s *server) take(name string, v value, now time.Time) (value, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.admits(name, v.limit, now) {
		return v, false
	}
	return s.add(name, v), true
}

// has reports whether a value that is picked stands.
func (s *server) has(name string, pick func(value) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.standing(name, time.Now()), pick)
}

func (s *server) put(name string, v value) value {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(name, v)
}

func (s *server) add(name string, v value) value {
	s.token++
	if v.token == 0 {
		v.token = s.token
	}
	s.values[name] = append(s.values[name], v)
	s.changed()
	return v
}

// extend sets the expiry of the picked values, and reports whether there were any.
func (s *server) extend(name string, expires time.Time, pick func(value) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	for i, v := range s.standing(name, time.Now()) {
		if pick(v) {
			s.values[name][i].expires, found = expires, true
		}
	}
	s.changed()
	return found
}

// remove removes the picked values, and reports whether there were any.
func (s *server) remove(name string, pick func(value) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.standing(name, time.Now())
	n := len(all)
	s.values[name] = slices.DeleteFunc(all, pick)
	for c := range s.subscribers[name] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	s.changed()
	return len(s.values[name]) < n
}

// leave takes away all that a client has written, as the end of a session does.
func (s *server) leave(c *client) {
	s.mu.Lock()
	names := slices.Collect(maps.Keys(s.values))
	s.mu.Unlock()
	for _, name := range names {
		s.remove(name, func(v value) bool { return v.client == c })
	}
}

// count adds to the counter of a semaphore unless that would exceed its permits.
func (s *server) count(name string, permits, by int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := counter{name, permits}
	if s.counts[key]+by > permits {
		return false
	}
	s.counts[key] += by
	return true
}

// listen subscribes to the removals of a name.
func (s *server) listen(name string) (notified <-chan struct{}, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{}, 1)
	if s.subscribers[name] == nil {
		s.subscribers[name] = map[chan struct{}]bool{}
	}
	s.subscribers[name][c] = true
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subscribers[name], c)
	}
}

// changed keeps what the replica has; mu is held.
func (s *server) changed() {
	if !s.lagged {
		return
	}
	now := time.Now()
	all := make(map[string][]value, len(s.values))
	for name, v := range s.values {
		all[name] = slices.Clone(v)
	}
	s.before = append(s.before, snapshot{now, all})
	for len(s.before) > 1 && now.Sub(s.before[1].at) > replicaLag {
		s.before = s.before[1:]
	}
}

// failover makes the replica the primary: what was written last is forgotten.
func (s *server) failover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.before) > 0 {
		s.values = s.before[0].values
		s.before = nil
	}
}

func (s *server) state(name string) driver.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := driver.State{Name: name}
	for _, v := range s.standing(name, time.Now()) {
		st.Holders = append(st.Holders, driver.Holder{Owner: v.owner, Token: v.token, Limit: v.limit, Slot: driver.NoSlot, TTL: time.Until(v.expires)})
	}
	return st
}

// slowBy is how late the answers of far clients are in bad times: not so late that
// the core gives the request up, which it does after a third of the TTL.
const slowBy = ttl / 4

// spoil makes the answers of far clients late and loses renewals until the context
// ends, or that of another fault that does so.
func (s *server) spoil(ctx context.Context) {
	count := func(by int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.spoilt += by
	}
	count(1)
	defer count(-1)
	<-ctx.Done()
}

// bad reports whether the network has a fault.
func (s *server) bad() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spoilt > 0
}
