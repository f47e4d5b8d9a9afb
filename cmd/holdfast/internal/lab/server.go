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
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// server simulates a key-value server on which programs build locks. It keeps values under
// names. Each command of a client is one method, and one atomic step; leave takes one step for
// each name.
type server struct {
	mu     sync.Mutex
	values map[string][]value
	counts map[counter]int
	token  uint64 // the last token
	// subscribers are the channels of the subscribers of each name.
	subscribers map[string]map[chan struct{}]bool
	// before has the states of about the last replicaLag, if lagged is set: then a replica
	// follows the server with that lag. The first is the replica's state.
	before []snapshot
	lagged bool
	// networkFaults is the number of present faults of the network. Such a fault delays answers
	// and loses renewals.
	networkFaults int
	// dies makes the next client that releases a permit die before it has decreased the
	// counter.
	dies atomic.Bool
}

// value is a value that a client has written under a name.
type value struct {
	owner   driver.Owner
	token   uint64
	limit   int
	made    time.Time
	expires time.Time // zero: never
	client  *client
}

// counter identifies the counter of a semaphore. Semaphores of different sizes under one
// name have a counter each.
type counter struct {
	name    string
	permits int
}

// snapshot is the values of the server at one time.
type snapshot struct {
	at     time.Time
	values map[string][]value
}

// replicaLag is the time by which a replica is behind.
const replicaLag = 100 * time.Millisecond

func newServer() *server {
	return &server{values: map[string][]value{}, counts: map[counter]int{}, subscribers: map[string]map[chan struct{}]bool{}}
}

// unexpired removes the expired values of a name, and returns the others. The caller holds s.mu.
func (s *server) unexpired(name string, now time.Time) []value {
	s.values[name] = slices.DeleteFunc(s.values[name], func(v value) bool { return !v.expires.IsZero() && !v.expires.After(now) })
	return s.values[name]
}

// free reports whether the name admits one more value with this limit.
func (s *server) free(name string, limit int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admits(name, limit, now)
}

// admits does what free does. The caller holds s.mu.
func (s *server) admits(name string, limit int, now time.Time) bool {
	all := s.unexpired(name, now)
	for _, v := range all {
		limit = min(limit, v.limit)
	}
	return len(all) < limit
}

// take writes a value if the name admits it, like SET with NX and an expiry.
func (s *server) take(name string, v value, now time.Time) (value, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.admits(name, v.limit, now) {
		return v, false
	}
	return s.add(name, v), true
}

// has reports whether the name has a value that pick selects.
func (s *server) has(name string, pick func(value) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.unexpired(name, time.Now()), pick)
}

// put writes a value without a check.
func (s *server) put(name string, v value) value {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(name, v)
}

// add writes a value, with a new token if it has none. The caller holds s.mu.
func (s *server) add(name string, v value) value {
	s.token++
	if v.token == 0 {
		v.token = s.token
	}
	s.values[name] = append(s.values[name], v)
	s.changed()
	return v
}

// extend sets the expiry of the values that pick selects, and reports whether there were
// any.
func (s *server) extend(name string, expires time.Time, pick func(value) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	for i, v := range s.unexpired(name, time.Now()) {
		if pick(v) {
			s.values[name][i].expires, found = expires, true
		}
	}
	s.changed()
	return found
}

// remove removes the values that pick selects, and reports whether there were any. It
// notifies the subscribers of the name.
func (s *server) remove(name string, pick func(value) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.unexpired(name, time.Now())
	n := len(all)
	s.values[name] = slices.DeleteFunc(all, pick)
	for c := range s.subscribers[name] {
		wakeup.Send(c)
	}
	s.changed()
	return len(s.values[name]) < n
}

// leave removes all values of a client, as the end of its session does.
func (s *server) leave(c *client) {
	s.mu.Lock()
	names := slices.Collect(maps.Keys(s.values))
	s.mu.Unlock()
	for _, name := range names {
		s.remove(name, func(v value) bool { return v.client == c })
	}
}

// count adds to the counter of a semaphore, and reports whether it did. It adds nothing if
// the counter would exceed the number of permits.
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

// listen subscribes to the removals of a name, until the caller calls end.
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

// changed records the state for the replica. The caller holds s.mu.
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

// failover makes the replica, if there is one, the primary. The writes of the last replicaLag are
// lost.
func (s *server) failover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.before) > 0 {
		s.values = s.before[0].values
		s.before = nil
	}
}

// state returns the holders of a name.
func (s *server) state(name string) driver.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := driver.State{Name: name}
	for _, v := range s.unexpired(name, time.Now()) {
		st.Holders = append(st.Holders, driver.Holder{Owner: v.owner, Token: v.token, Limit: v.limit, Slot: driver.NoSlot, TTL: time.Until(v.expires)})
	}
	return st
}

// slowBy is the delay of a far client's answers while the network has a fault. It is
// shorter than a third of the TTL, after which the Locker ends the request.
const slowBy = ttl / 4

// disturbNetwork delays the answers of far clients and loses renewals, until ctx ends. If other
// faults of the network are under way, the effect lasts until all have ended.
func (s *server) disturbNetwork(ctx context.Context) {
	addFaults := func(by int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.networkFaults += by
	}
	addFaults(1)
	defer addFaults(-1)
	<-ctx.Done()
}

// networkFault reports whether the network has a fault.
func (s *server) networkFault() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.networkFaults > 0
}
