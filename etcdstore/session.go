package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// session is a lease of the store, shared by all places whose TTL rounds up to
// the same whole number of seconds. A goroutine stands by it while it is of use:
// it heartbeats for the places that wait (what is granted is renewed by the core)
// and looks once a second whether the granted places still stand. An idle
// session runs out by itself.
type session struct {
	s     *Store
	lease clientv3.LeaseID
	ttl   time.Duration

	mu sync.Mutex
	// sent is when the last keepalive that was answered was sent, or the grant.
	sent driver.Instant
	// call is the keepalive on its way, which others may wait for.
	call *keepalive
	// live are the places that may stand under this lease.
	live map[*attempt]struct{}
	// used are the numbers of the live places, by name. A number, and with it a key,
	// is free again when nothing of the attempt that had it stands or can appear:
	// keys that are used again keep the server's index small, which remembers every
	// key until it is compacted and goes through them to read a queue.
	used map[string]map[int]struct{}
	// epochs are the modification revisions of the lease's epoch keys.
	epochs [epochShards]int64
	err    error

	over chan struct{} // closed with err when the lease is known, or must be taken, to have ended
}

type keepalive struct {
	done chan struct{}
	sent driver.Instant
	err  error
}

// watchEvery is how often a session looks whether its granted places stand.
const watchEvery = time.Second

var (
	errLeaseGone = &driver.Error{Code: driver.NotHeld, Err: errors.New("the etcd lease has ended")}
	errNoTrust   = &driver.Error{Code: driver.Unknown, Err: errors.New("no keepalive was answered for the whole TTL of the etcd lease")}
)

// session finds or makes the lease for a TTL, with at least two thirds of it left.
func (s *Store) session(ctx context.Context, ttl time.Duration) (*session, error) {
	ttl = (ttl + time.Second - 1).Truncate(time.Second)
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, errClosed
		}
		e := s.sessions[ttl]
		if e == nil {
			m := s.making[ttl]
			if m == nil {
				m = &making{done: make(chan struct{})}
				s.making[ttl] = m
				s.mu.Unlock()
				m.err = s.makeSession(ctx, ttl)
				s.mu.Lock()
				delete(s.making, ttl)
				s.mu.Unlock()
				close(m.done)
				if m.err != nil {
					return nil, m.err
				}
				continue
			}
			s.mu.Unlock()
			select {
			case <-m.done: // whoever made it may have had less time than we have
			case <-ctx.Done():
				return nil, &driver.Error{Code: driver.Unavailable, Err: context.Cause(ctx)}
			}
			continue
		}
		s.mu.Unlock()
		err := e.fresh(ctx, e.ttl/3)
		if err == nil {
			return e, nil
		}
		if !e.ended() {
			// No place was asked for yet.
			return nil, unavailable(ctx, err)
		}
	}
}

type making struct {
	done chan struct{}
	err  error
}

func (s *Store) makeSession(ctx context.Context, ttl time.Duration) error {
	sent := driver.Now()
	resp, err := s.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		// A lease that was granted all the same runs out by itself.
		return unavailable(ctx, err)
	}
	e := &session{
		s: s, lease: resp.ID, ttl: time.Duration(resp.TTL) * time.Second, sent: sent,
		live: map[*attempt]struct{}{}, used: map[string]map[int]struct{}{}, over: make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed // the lease runs out
	}
	s.sessions[ttl] = e
	s.running.Go(func() { e.stand(min(watchEvery, e.ttl/6)) })
	return nil
}

// left is the time for which the lease certainly lives.
func (e *session) left() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	elapsed, _ := e.sent.Elapsed()
	return e.ttl - elapsed
}

func (e *session) ended() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}

// trust is what a grant may rely on now.
func (e *session) trust() (driver.Instant, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent, e.ttl
}

// fresh makes sure that the last keepalive that was answered was sent no longer
// ago than age.
func (e *session) fresh(ctx context.Context, age time.Duration) error {
	for {
		e.mu.Lock()
		if e.err != nil {
			defer e.mu.Unlock()
			return e.err
		}
		elapsed, _ := e.sent.Elapsed()
		if elapsed <= age {
			e.mu.Unlock()
			return nil
		}
		c := e.call
		if c == nil {
			c = &keepalive{done: make(chan struct{})}
			e.call = c
			e.mu.Unlock()
			c.sent = driver.Now()
			c.err = e.keepAlive(ctx)
			e.answered(c)
			close(c.done)
			return c.err
		}
		e.mu.Unlock()
		select {
		case <-c.done:
			// One that began before us may be too old, or have had less time.
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// requestMost bounds one request that is made for a place that stands.
const requestMost = 5 * time.Second

// within is how long such a request may take: a member that is reached and does not
// answer keeps nobody from asking another in time.
func (e *session) within() time.Duration {
	return min(max(e.ttl/3, watchEvery), requestMost)
}

// keepAlive is bounded for the sake of those who wait for its answer.
func (e *session) keepAlive(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, e.within())
	defer cancel()
	err := e.s.keepAlive(bounded, e.lease)
	late(bounded, err) // not of ctx, which may be far from its end
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("a keepalive was not answered within %s", e.within())
	}
	return err
}

// answered takes in what became of a keepalive.
func (e *session) answered(c *keepalive) {
	e.mu.Lock()
	e.call = nil
	if c.err == nil {
		e.sent = c.sent
	}
	e.mu.Unlock()
	if errors.Is(c.err, rpctypes.ErrLeaseNotFound) {
		e.end(errLeaseGone)
	}
}

// keepAlive sends one keepalive and waits for its answer. The client's own
// KeepAliveOnce repeats it without a pause while no server can be reached.
func (s *Store) keepAlive(ctx context.Context, lease clientv3.LeaseID) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel() // ends the stream
	stream, err := s.leases.LeaseKeepAlive(ctx)
	if err == nil {
		err = stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(lease)})
	}
	var answer *etcdserverpb.LeaseKeepAliveResponse
	if err == nil {
		answer, err = stream.Recv()
	}
	if err != nil {
		return clientv3.ContextError(ctx, err)
	}
	if answer.TTL <= 0 {
		return rpctypes.ErrLeaseNotFound
	}
	return nil
}

// end marks the session as over, and tells all that depends on it.
func (e *session) end(err *driver.Error) {
	s := e.s
	s.mu.Lock()
	for ttl, other := range s.sessions {
		if other == e {
			delete(s.sessions, ttl)
		}
	}
	s.mu.Unlock()
	e.mu.Lock()
	if e.err != nil {
		e.mu.Unlock()
		return
	}
	e.err = err
	var granted []*attempt
	for a := range e.live {
		if a.granted.Load() {
			granted = append(granted, a)
		}
	}
	e.mu.Unlock()
	close(e.over)
	if err == errLeaseGone {
		for _, a := range granted {
			a.r.From.Lost(driver.SessionEnded, err)
		}
	}
}

// enter counts an attempt among those of the session; false if that is over.
func (e *session) enter(a *attempt) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return false
	}
	e.live[a] = struct{}{}
	if e.used[a.r.Name] == nil {
		e.used[a.r.Name] = map[int]struct{}{}
	}
	a.number()
	return true
}

// number gives an attempt the first number from its own on that is not in use; the
// session's mu is held.
func (a *attempt) number() {
	used := a.e.used[a.r.Name]
	for {
		if _, taken := used[a.n]; !taken {
			break
		}
		a.n++
	}
	used[a.n] = struct{}{}
	a.key = a.e.s.lay.place(a.r.Name, a.e.lease, a.n)
}

// renumber is for an attempt whose key was found standing before anything of the
// attempt was applied: a grant that was released and kept stands under it, with a
// lease of its own.
func (a *attempt) renumber() {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	old := a.n
	a.n++
	a.number()
	delete(a.e.used[a.r.Name], old)
}

func (e *session) leave(a *attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, here := e.live[a]; !here {
		return
	}
	delete(e.live, a)
	used := e.used[a.r.Name]
	delete(used, a.n)
	if len(used) == 0 {
		delete(e.used, a.r.Name)
	}
}

// stand is the session's goroutine.
func (e *session) stand(every time.Duration) {
	ctx := e.s.ctx
	beat := time.NewTicker(every)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.over:
			return
		case <-beat.C:
		}
		left := e.left()
		if left <= 0 {
			e.end(errNoTrust)
			return
		}
		places, waiting := e.places()
		if len(places) == 0 && !waiting {
			continue // it runs out if nobody comes
		}
		try, cancel := context.WithTimeout(ctx, min(left, e.within()))
		if waiting && left < e.ttl*2/3 {
			_ = e.fresh(try, e.ttl/4) // tried again at the next beat
		}
		e.check(try, places)
		cancel()
	}
}

// places are those that are known to have stood, and whether any waits: for those
// that are about to be undone or released nothing is kept alive.
func (e *session) places() (known []*attempt, waiting bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a := range e.live {
		waiting = waiting || a.waits.Load()
		if a.rev.Load() > 0 {
			known = append(known, a)
		}
	}
	return known, waiting
}

// check tells those whose place has gone. What cannot be asked now is asked at
// the next beat.
func (e *session) check(ctx context.Context, places []*attempt) {
	if len(places) == 0 {
		return
	}
	stands, err := e.s.stand(ctx, places)
	if err != nil || !slices.Contains(stands, false) {
		return
	}
	// Their deletion, or that of the lease?
	if e.fresh(ctx, 0) != nil && e.ended() {
		return // of which all are told
	}
	for i, a := range places {
		switch {
		case stands[i]:
		case a.granted.Load():
			a.r.From.Lost(driver.Taken, errDeleted)
		default:
			a.lookAgain(0)
		}
	}
}

// lookAgain wakes a waiting place. A revision says that the place was the first
// at that time.
func (a *attempt) lookAgain(rev int64) {
	select {
	case a.passed <- rev:
	default:
	}
}

var errDeleted = &driver.Error{Code: driver.NotHeld, Err: errors.New("the lock's key was deleted")}
