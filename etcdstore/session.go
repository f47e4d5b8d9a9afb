package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// session is a lease of the store, shared by all queue entries whose TTL rounds up to the same
// whole number of seconds. A goroutine keeps it while it is of use: it heartbeats for the
// waiters (the core renews what is granted), and it has the entries watched. An idle session
// expires.
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
	// sentinel is the watch of the lease's own key, and sentinelAt the key's revision.
	sentinel   *watch
	sentinelAt int64
	marking    bool // the sentinel is being written
	stood      bool // the sentinel's watch has stood
	// compared is the newest state of the cluster that a read of the sentinel has answered.
	compared seen

	// due signals that watches have been made whose keys have to be read.
	due chan struct{}

	over chan struct{} // closed with err when the lease is known, or must be taken, to have ended
}

type keepalive struct {
	done chan struct{}
	err  error
}

const (
	// beatEvery is how often a session looks after its entries. An entry that has stood for one
	// beat is watched from then on.
	beatEvery = 250 * time.Millisecond
	// readEvery is how often the sentinel is read, whose revision the watches have to reach, and the
	// entries that have to be watched and are not, while the stream of watches is down.
	readEvery = time.Second
	// causeMost bounds the question whether a key has gone with its lease or alone.
	causeMost = 100 * time.Millisecond
)

var (
	errLeaseGone = &driver.Error{Code: driver.CodeNotHeld, Err: errors.New("the etcd lease has ended")}
	errNoTrust   = &driver.Error{Code: driver.CodeUnknown, Err: errors.New("no keepalive was answered for the whole TTL of the etcd lease")}
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
				return nil, &driver.Error{Code: driver.CodeUnavailable, Err: context.Cause(ctx)}
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
	if s.client.Username != "" {
		// Its login comes before the lease: where many clients log in at once that may take
		// longer than a TTL.
		if _, _, err := s.keepaliveStream(ctx); err != nil {
			return unavailable(ctx, err)
		}
	}
	sent := driver.Now()
	resp, err := s.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		// A lease that was granted all the same runs out by itself.
		return unavailable(ctx, err)
	}
	e := &session{
		s: s, lease: resp.ID, ttl: time.Duration(resp.TTL) * time.Second, sent: sent,
		live: map[*attempt]struct{}{}, used: map[string]map[int]struct{}{}, over: make(chan struct{}), due: make(chan struct{}, 1),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed // the lease expires
	}
	s.sessions[ttl] = e
	s.running.Go(func() { e.keep(min(beatEvery, e.ttl/6)) })
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
			c.err = e.keepAlive(ctx)
			e.answered(c)
			close(c.done)
			return c.err
		}
		e.mu.Unlock()
		select {
		case <-c.done:
			// One that began before us may be too old, or have had less time.
		case <-e.over:
			return e.why()
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
	return min(max(e.ttl/3, time.Second), requestMost)
}

// keepAlive renews the lease. It is bounded for the sake of the callers that wait for its answer.
func (e *session) keepAlive(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, e.within())
	defer cancel()
	// A stream that is silent is given up in time for another try.
	err := e.s.keepAlive(bounded, e.lease, min(e.ttl/3, e.within()*2/3), e.renewed)
	late(bounded, err) // not of ctx, which may be far from its end
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("a keepalive was not answered within %s", e.within())
	}
	return err
}

// renewed takes in that a keepalive was answered, which was sent then.
func (e *session) renewed(sent driver.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil && sent.Time().After(e.sent.Time()) {
		e.sent = sent
	}
}

// answered takes in what became of a keepalive.
func (e *session) answered(c *keepalive) {
	e.mu.Lock()
	e.call = nil
	e.mu.Unlock()
	if errors.Is(c.err, rpctypes.ErrLeaseNotFound) {
		e.end(errLeaseGone)
	}
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
	sentinel := e.sentinel
	var granted []*attempt
	for a := range e.live {
		if a.granted.Load() {
			granted = append(granted, a)
		}
	}
	e.mu.Unlock()
	close(e.over)
	if sentinel != nil {
		s.unwatch(sentinel)
	}
	if err == errLeaseGone {
		for _, a := range granted {
			a.r.From.Lost(driver.CauseSessionEnded, err)
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
	if a.watch != nil {
		e.s.unwatch(a.watch)
	}
	used := e.used[a.r.Name]
	delete(used, a.n)
	if len(used) == 0 {
		delete(e.used, a.r.Name)
	}
}

// keep is the session's goroutine.
func (e *session) keep(every time.Duration) {
	ctx := e.s.ctx
	beat := time.NewTicker(every)
	defer beat.Stop()
	var read time.Time
	for {
		all := false // entries without a watch, too
		select {
		case <-ctx.Done():
			return
		case <-e.over:
			return
		case <-e.due:
		case <-beat.C:
			all = time.Since(read) >= min(readEvery, e.ttl/6)
			e.s.watches.dropLagging()
		}
		left := e.left()
		if left <= 0 {
			e.end(errNoTrust)
			return
		}
		entries, used, waiting := e.watchEntries(all)
		if !used {
			continue // it expires unless it is used again
		}
		e.s.background(e.mark)
		try, cancel := context.WithTimeout(ctx, min(left, e.within()))
		if waiting && left < e.ttl*2/3 {
			_ = e.fresh(try, e.ttl/4) // tried again at the next beat
		}
		if all {
			read = time.Now()
			e.s.background(e.compare)
		}
		e.read(try, entries)
		cancel()
	}
}

// How an attempt's key is watched.
const (
	unwatched int32 = iota
	watchDue        // its watch stands, and the key has to be read once more
	watched
)

// watchEntries has the entries watched that have stood for a beat, and returns those that have to
// be read: their watch was made just now, or, with unwatched, they have none that stands. Nothing
// is kept alive for entries that are about to be withdrawn or released.
func (e *session) watchEntries(all bool) (read []*attempt, used, waiting bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for a := range e.live {
		waits := a.waits.Load()
		waiting = waiting || waits
		if a.rev.Load() == 0 {
			continue
		}
		used = true
		if a.watch == nil {
			if a.seen {
				a.watch = &watch{key: []byte(a.key), update: a.update}
				e.s.watch(a.watch)
			}
			a.seen = true
			continue
		}
		if state := a.state.Load(); state == watchDue || all && state == unwatched {
			read = append(read, a)
		}
	}
	return read, used || waiting, waiting
}

// update takes in what the watch of an attempt's key reports.
func (a *attempt) update(u watchUpdate) {
	switch {
	case u.stands:
		a.state.Store(watchDue)
		signal(a.e.due)
	case u.interrupted, u.err != nil:
		a.state.Store(unwatched)
	}
	for _, ev := range u.events {
		// A member that lags reports what was deleted before the entry was made.
		if ev.Type == mvccpb.Event_DELETE && ev.Kv.ModRevision > a.rev.Load() {
			a.e.s.background(func() { a.e.gone([]*attempt{a}, causeMost) })
		}
	}
}

// mark writes the sentinel of the lease, a key that goes with the lease and only with it, and has
// it watched: a lease that is revoked ends every grant of the session at once, however short it
// has been held.
func (e *session) mark() {
	e.mu.Lock()
	if e.sentinel != nil || e.marking || e.err != nil {
		e.mu.Unlock()
		return
	}
	e.marking = true
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(e.s.ctx, e.within())
	defer cancel()
	key := e.s.lay.sentinel(e.lease)
	resp, err := e.s.client.Put(ctx, key, "", clientv3.WithLease(e.lease))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) && ctx.Err() == nil {
		e.end(errLeaseGone)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.marking = false
	if err != nil || e.err != nil {
		return // tried again at a later beat
	}
	e.sentinelAt = resp.Header.Revision
	e.sentinel = &watch{key: []byte(key), update: e.sentinelUpdate}
	e.s.watch(e.sentinel)
}

// sentinelUpdate takes in what the watch of the sentinel reports.
func (e *session) sentinelUpdate(u watchUpdate) {
	if u.stands { // since when?
		e.mu.Lock()
		again := e.stood
		e.stood = true
		e.mu.Unlock()
		e.s.background(func() {
			ctx, cancel := context.WithTimeout(e.s.ctx, e.within())
			defer cancel()
			if e.fresh(ctx, 0) == nil && again {
				e.removeUnknown(ctx)
			}
		})
	}
	for _, ev := range u.events {
		e.mu.Lock()
		at := e.sentinelAt
		e.mu.Unlock()
		if ev.Type == mvccpb.Event_DELETE && ev.Kv.ModRevision > at {
			e.abandon()
		}
	}
}

// removeUnknown deletes the entries under the session's lease that no attempt of this client has. A
// copy that a server was restored from holds entries that were released since. Where its revision
// was raised, as it should be, nothing else shows the restore, and the entries would stand for as
// long as the session. A restore interrupts the watches, so this follows whenever they stand anew.
func (e *session) removeUnknown(ctx context.Context) {
	sentinel := e.s.lay.sentinel(e.lease)
	now, err := e.s.client.Get(ctx, sentinel, clientv3.WithKeysOnly())
	if err != nil {
		return // the watches may stand anew once more; else the entries end with the session
	}
	attached, err := e.s.client.TimeToLive(ctx, e.lease, clientv3.WithAttachedKeys())
	if err != nil {
		return
	}
	known := map[string]bool{sentinel: true}
	for n := range epochShards {
		known[e.s.lay.epoch(e.lease, n)] = true
	}
	e.mu.Lock()
	for a := range e.live {
		known[a.key] = true
	}
	e.mu.Unlock()
	for _, key := range attached.Keys {
		key := string(key)
		if known[key] {
			continue
		}
		// A later attempt may have the key by now: its entry is created after the read.
		unknown := []clientv3.Cmp{
			clientv3.Compare(clientv3.LeaseValue(key), "=", e.lease),
			clientv3.Compare(clientv3.CreateRevision(key), "<", now.Header.Revision+1),
		}
		_, _ = e.s.client.Txn(ctx).If(unknown...).Then(clientv3.OpDelete(key)).Commit()
	}
}

// abandon ends a session whose sentinel does not stand any more, or whose server has gone back
// in time, and ends its lease: the sentinel alone may have been deleted by hand, and a copy that a
// server was restored from may hold entries that were released since.
func (e *session) abandon() {
	if e.ended() {
		return
	}
	e.end(errLeaseGone)
	e.s.background(func() {
		ctx, cancel := context.WithTimeout(e.s.ctx, requestMost)
		defer cancel()
		_, _ = e.s.client.Revoke(ctx, e.lease)
	})
}

// compare reads the sentinel through the quorum: does it stand, do the watches keep up, and is this
// the server that it was? A revision below one that was answered before the request was sent is
// that of a server that was restored from an older copy.
func (e *session) compare() {
	e.mu.Lock()
	at, before := e.sentinelAt, e.compared
	e.mu.Unlock()
	if at == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(e.s.ctx, readEvery)
	defer cancel()
	resp, err := e.s.client.Get(ctx, e.s.lay.sentinel(e.lease), clientv3.WithKeysOnly())
	if err != nil {
		return // the next one may be answered
	}
	h := resp.Header
	if len(resp.Kvs) == 0 || h.Revision < before.revision || before.cluster != 0 && h.ClusterId != before.cluster {
		e.abandon()
		return
	}
	e.s.watches.expect(h.Revision)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.compared = seen{h.ClusterId, max(h.Revision, e.compared.revision)}
}

// seen is a state of a cluster.
type seen struct {
	cluster  uint64
	revision int64
}

// read looks through the quorum whether entries stand. What cannot be read now is read later.
func (e *session) read(ctx context.Context, entries []*attempt) {
	if len(entries) == 0 {
		return
	}
	due := make([]bool, len(entries)) // a watch that is made anew meanwhile needs another look
	for i, a := range entries {
		due[i] = a.state.CompareAndSwap(watchDue, watched)
	}
	var gone []*attempt
	for i, st := range e.s.standing(ctx, entries) {
		switch {
		case st.err != nil && due[i]:
			entries[i].state.CompareAndSwap(watched, watchDue)
		case st.err == nil && !st.stands:
			gone = append(gone, entries[i])
		}
	}
	if len(gone) > 0 {
		e.gone(gone, e.within())
	}
}

// gone reports the entries whose keys do not stand any more.
func (e *session) gone(entries []*attempt, most time.Duration) {
	ctx, cancel := context.WithTimeout(e.s.ctx, most)
	defer cancel()
	// Was it their deletion, or that of the lease?
	if e.fresh(ctx, 0) != nil && e.ended() {
		return // which is reported for all
	}
	for _, a := range entries {
		a.deleted.Store(true) // for a grant that is being made: see grant
		if a.granted.Load() {
			a.r.From.Lost(driver.CauseTaken, errDeleted)
		} else {
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

var errDeleted = &driver.Error{Code: driver.CodeNotHeld, Err: errors.New("the lock's key was deleted")}
