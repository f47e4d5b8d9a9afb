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
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// session is a lease of the store, shared by all entries whose TTL rounds up to the same number of
// seconds. A goroutine serves it while it is used: it sends keepalives for the waiters (the core
// renews grants) and watches the entries. An idle session expires.
type session struct {
	s     *store
	lease clientv3.LeaseID
	ttl   time.Duration

	mu sync.Mutex
	// sent is when the client sent the last keepalive with an answer, or the lease's creation.
	sent driver.Instant
	// call is the present keepalive, which several calls may wait for.
	call *sharedCall
	// live are the requests whose entries may exist under this lease.
	live map[*request]struct{}
	// used are the numbers of the live requests, by name. A number, and with it a key, is free again
	// when no entry of its request exists or can appear. Reused keys keep the server's index small:
	// it has every key until a compaction, and reads them all to read a queue.
	used map[string]map[int]struct{}
	// epochs are the modification revisions of the lease's epoch keys.
	epochs [epochShards]int64
	err    error
	// sentinel is the watch of the lease's own key, and sentinelRev the key's revision.
	sentinel         *watch
	sentinelRev      int64
	creatingSentinel bool
	sentinelWatched  bool // the sentinel's watch has been set once
	// newest is the newest state of the cluster in an answer to a read of the sentinel.
	newest clusterState

	// due signals that keys have to be read after their watches were set.
	due chan struct{}

	over chan struct{} // closed with err when the lease has ended, or may have ended
}

// sharedCall is a call that several callers wait for.
type sharedCall struct {
	done chan struct{} // closed with err
	err  error
}

// clusterState is the state of a cluster in one of its answers.
type clusterState struct {
	cluster  uint64
	revision int64
}

const (
	// checkEvery is the interval at which a session checks its entries. An entry that has existed for
	// one interval is watched.
	checkEvery = 250 * time.Millisecond
	// readEvery is the interval at which the sentinel is read, whose revision the watches have to
	// reach. While the stream of watches is down, the unwatched entries are read as well.
	readEvery = time.Second
	// causeTimeout limits the check whether a key was deleted with its lease or alone.
	causeTimeout = 100 * time.Millisecond
)

var (
	errLeaseEnded = &driver.Error{Code: driver.CodeNotHeld, Err: errors.New("the etcd lease has ended")}
	errNotRenewed = &driver.Error{Code: driver.CodeUnknown, Err: errors.New("no keepalive was answered for the whole TTL of the etcd lease")}
)

// session returns a session for a TTL whose lease has at least two thirds of it left. It creates one if
// necessary.
func (s *store) session(ctx context.Context, ttl time.Duration) (*session, error) {
	for {
		e, err := s.sessions.Get(ctx, wholeSeconds(ttl))
		if err != nil {
			return nil, err
		}
		err = e.renewIfOlder(ctx, e.ttl/3)
		if err == nil {
			return e, nil
		}
		if !e.isOver() {
			// No entry was requested yet.
			return nil, unavailable(ctx, err)
		}
	}
}

// share sets how the sessions and the stream of keepalives are made.
func (s *store) share() {
	s.sessions = calls.Shared[time.Duration, *session]{Calls: s.calls, Timeout: openTimeout + requestTimeout, Make: s.createSession, Over: (*session).isOver}
	s.keepalives.streams = calls.Shared[struct{}, *keepaliveStream]{Calls: s.calls, Timeout: openTimeout, Make: s.openKeepalives,
		Over: func(k *keepaliveStream) bool { return !k.usable() }}
}

// ready reports whether session returns without a request.
func (s *store) ready(ttl time.Duration) bool {
	e := s.sessions.Made()[wholeSeconds(ttl)]
	return e != nil && !e.isOver() && e.left() >= e.ttl-e.ttl/3
}

// wholeSeconds rounds up to the unit of leases.
func wholeSeconds(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

func (s *store) createSession(ctx context.Context, ttl time.Duration) (*session, error) {
	if s.client.Username != "" {
		// The login precedes the lease: if many clients log in at once, it may take longer than
		// a TTL.
		if _, _, err := s.keepaliveStream(ctx); err != nil {
			return nil, unavailable(ctx, err)
		}
	}
	sent := driver.Now()
	resp, err := limited(ctx, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		return s.send.Grant(ctx, int64(ttl/time.Second))
	})
	if err != nil {
		s.reconnect()
		// If the server has created the lease, it expires.
		return nil, unavailable(ctx, err)
	}
	e := &session{
		s: s, lease: resp.ID, ttl: time.Duration(resp.TTL) * time.Second, sent: sent,
		live: map[*request]struct{}{}, used: map[string]map[int]struct{}{}, over: make(chan struct{}), due: make(chan struct{}, 1),
	}
	if !s.calls.Go(func() { e.serve(min(checkEvery, e.ttl/6)) }) {
		return nil, errClosed // the lease expires
	}
	return e, nil
}

// left returns how long the lease is certain to exist.
func (e *session) left() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	elapsed, _ := e.sent.Elapsed()
	return e.ttl - elapsed
}

// isOver reports whether the lease has ended, or may have ended.
func (e *session) isOver() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}

// leaseEnded reports whether the lease has certainly ended.
func (e *session) leaseEnded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err == errLeaseEnded
}

// validity returns the time of the send, and the TTL, on which a grant may rely.
func (e *session) validity() (driver.Instant, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent, e.ttl
}

// renewIfOlder renews the lease if the last keepalive with an answer was sent more than age ago.
func (e *session) renewIfOlder(ctx context.Context, age time.Duration) error {
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
			c = &sharedCall{done: make(chan struct{})}
			e.call = c
			e.mu.Unlock()
			c.err = e.keepAlive(ctx)
			e.answered(c.err)
			close(c.done)
			return c.err
		}
		e.mu.Unlock()
		select {
		case <-c.done:
			// The answer may be too old, or its caller may have had a shorter deadline.
		case <-e.over:
			return e.overError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// requestTimeout limits one request to the server.
const requestTimeout = 5 * time.Second

// timeout returns the timeout of a request for an entry of the session. It leaves time for another
// member if one does not answer.
func (e *session) timeout() time.Duration {
	return min(max(e.ttl/3, time.Second), requestTimeout)
}

// keepAlive renews the lease. Its timeout is for the callers that wait for the answer.
func (e *session) keepAlive(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, e.timeout())
	defer cancel()
	// A silent stream is closed in time for another request.
	_, err := withLeader(bounded, func(ctx context.Context) (any, error) {
		return nil, e.s.keepAlive(ctx, e.lease, min(e.ttl/3, e.timeout()*2/3), e.renewed)
	})
	awaitDeadline(bounded, err) // ctx itself may have no deadline soon
	if err != nil {
		e.s.reconnect()
	}
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("a keepalive was not answered within %s", e.timeout())
	}
	return err
}

// renewed handles the answer to a keepalive that was sent at that time.
func (e *session) renewed(sent driver.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil && sent.Time().After(e.sent.Time()) {
		e.sent = sent
	}
}

// answered handles the outcome of the present keepalive.
func (e *session) answered(err error) {
	e.mu.Lock()
	e.call = nil
	e.mu.Unlock()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		e.end(errLeaseEnded)
	}
}

// end marks the session as over, and notifies its grants and waiters.
func (e *session) end(err *driver.Error) {
	e.mu.Lock()
	if e.err != nil {
		e.mu.Unlock()
		return
	}
	e.err = err
	sentinel := e.sentinel
	var granted []*request
	for a := range e.live {
		if a.granted.Load() {
			granted = append(granted, a)
		}
	}
	close(e.over) // before another caller finds err set
	e.mu.Unlock()
	if sentinel != nil {
		e.s.unwatch(sentinel)
	}
	if err == errLeaseEnded {
		for _, a := range granted {
			a.r.From.Lost(driver.CauseSessionEnded, err)
		}
	}
}

// add adds a request to the session. It returns false if the session is over.
func (e *session) add(a *request) bool {
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

// number gives a request the first free number that is not below its present one. The caller
// holds the session's mu.
func (a *request) number() {
	used := a.e.used[a.r.Name]
	for {
		if _, taken := used[a.n]; !taken {
			break
		}
		a.n++
	}
	used[a.n] = struct{}{}
	a.key = a.e.s.lay.entry(a.r.Name, a.e.lease, a.n)
}

// renumber gives a request another key. Its key exists already under another lease, for example
// because the store keeps a released grant for a minimum hold.
func (a *request) renumber() {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	old := a.n
	a.n++
	a.number()
	delete(a.e.used[a.r.Name], old)
}

// remove removes a request from the session.
func (e *session) remove(a *request) {
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

// serve is the goroutine of the session.
func (e *session) serve(every time.Duration) {
	ctx := e.s.calls.Ctx
	check := time.NewTicker(every)
	defer check.Stop()
	var read time.Time // when all was set last
	for {
		all := false // also read the entries without a watch
		select {
		case <-ctx.Done():
			return
		case <-e.over:
			return
		case <-e.due:
		case <-check.C:
			all = time.Since(read) >= min(readEvery, e.ttl/6)
			e.s.watches.dropLagging()
		}
		left := e.left()
		if left <= 0 {
			e.end(errNotRenewed)
			return
		}
		entries, used, waiting := e.watchEntries(all)
		if !used {
			continue // the session expires unless it is used again
		}
		e.s.calls.Go(e.createSentinel)
		bounded, cancel := context.WithTimeout(ctx, min(left, e.timeout()))
		if waiting && left < e.ttl*2/3 {
			_ = e.renewIfOlder(bounded, e.ttl/4) // the next interval tries again
		}
		if all {
			read = time.Now()
			e.s.calls.Go(e.readSentinel)
		}
		e.checkEntries(bounded, entries)
		cancel()
	}
}

// The states of the watch of an entry's key.
const (
	unwatched int32 = iota
	watchDue        // its watch is set, and the key has to be read again
	watched
)

// watchEntries sets watches for entries that have existed for an interval. It returns the entries
// that have to be read: those whose watch was set just now and, if all is set, those without a
// watch. used is false if all entries are about to be withdrawn or released.
func (e *session) watchEntries(all bool) (read []*request, used, waiting bool) {
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
			if a.checked {
				a.watch = &watch{key: []byte(a.key), update: a.update}
				e.s.watch(a.watch)
			}
			a.checked = true
			continue
		}
		if state := a.state.Load(); state == watchDue || all && state == unwatched {
			read = append(read, a)
		}
	}
	return read, used || waiting, waiting
}

// update handles an update of the watch of the entry's key.
func (a *request) update(u watchUpdate) {
	switch {
	case u.isSet:
		a.state.Store(watchDue)
		wakeup.Send(a.e.due)
	case u.interrupted, u.err != nil:
		a.state.Store(unwatched)
	}
	for _, ev := range u.events {
		// A member that lags behind reports deletions from before the entry.
		if ev.Type == mvccpb.Event_DELETE && ev.Kv.ModRevision > a.rev.Load() {
			a.e.s.calls.Go(func() { a.e.reportDeleted([]*request{a}, causeTimeout) })
		}
	}
}

// createSentinel creates the sentinel of the lease, a key that is deleted with the lease and only with
// it, and watches the key. So the revocation of a lease ends every grant of the session at once, also
// grants that were just given.
func (e *session) createSentinel() {
	e.mu.Lock()
	if e.sentinel != nil || e.creatingSentinel || e.err != nil {
		e.mu.Unlock()
		return
	}
	e.creatingSentinel = true
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(e.s.calls.Ctx, e.timeout())
	defer cancel()
	key := e.s.lay.sentinel(e.lease)
	resp, err := e.s.send.Put(ctx, key, "", clientv3.WithLease(e.lease))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) && ctx.Err() == nil {
		e.end(errLeaseEnded)
	}
	e.wakeIfRefused(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.creatingSentinel = false
	if err != nil || e.err != nil {
		return // a later interval tries again
	}
	e.sentinelRev = resp.Header.Revision
	e.sentinel = &watch{key: []byte(key), update: e.sentinelUpdate}
	e.s.watch(e.sentinel)
}

// sentinelUpdate handles an update of the watch of the sentinel.
func (e *session) sentinelUpdate(u watchUpdate) {
	if u.isSet { // the watch has not reported an end before this point
		e.mu.Lock()
		again := e.sentinelWatched // the watch was interrupted
		e.sentinelWatched = true
		e.mu.Unlock()
		e.s.calls.Go(func() {
			ctx, cancel := context.WithTimeout(e.s.calls.Ctx, e.timeout())
			defer cancel()
			if e.renewIfOlder(ctx, 0) == nil && again {
				e.removeUnknown(ctx)
			}
		})
	}
	for _, ev := range u.events {
		e.mu.Lock()
		at := e.sentinelRev
		e.mu.Unlock()
		if ev.Type == mvccpb.Event_DELETE && ev.Kv.ModRevision > at {
			e.abandon()
		}
	}
}

// removeUnknown deletes the entries under the session's lease that belong to no request of this
// client. A server that was restored from a copy has entries that were released after the copy was
// made. If the restore raises the revision, as it should, nothing else shows the restore, and the
// entries would exist as long as the session. A restore interrupts the watches, so removeUnknown runs
// whenever they are set again.
func (e *session) removeUnknown(ctx context.Context) {
	sentinel := e.s.lay.sentinel(e.lease)
	now, err := e.s.send.Get(ctx, sentinel, clientv3.WithKeysOnly())
	if err != nil {
		return // the next interruption of the watches repeats this; the entries end with the session at the latest
	}
	attached, err := e.s.send.TimeToLive(ctx, e.lease, clientv3.WithAttachedKeys())
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
		// A later request may have created the key after the read.
		unknown := []clientv3.Cmp{
			clientv3.Compare(clientv3.LeaseValue(key), "=", e.lease),
			clientv3.Compare(clientv3.CreateRevision(key), "<", now.Header.Revision+1),
		}
		_, _ = e.s.send.Txn(ctx).If(unknown...).Then(clientv3.OpDelete(key)).Commit()
	}
}

// abandon ends a session whose sentinel was deleted, or whose server was restored to an earlier
// state, and revokes its lease: an operator may have deleted only the sentinel, and a restored
// server may have entries that were released after the copy was made.
func (e *session) abandon() {
	if e.isOver() {
		return
	}
	e.end(errLeaseEnded)
	e.s.calls.Go(func() {
		ctx, cancel := context.WithTimeout(e.s.calls.Ctx, requestTimeout)
		defer cancel()
		_, _ = e.s.send.Revoke(ctx, e.lease)
	})
}

// readSentinel reads the sentinel through the quorum. It checks that the key exists, that the watches
// keep up, and that the server was not restored from an older copy. A restored server has a lower
// revision than an earlier answer, or is another cluster.
func (e *session) readSentinel() {
	e.mu.Lock()
	created, before := e.sentinelRev != 0, e.newest
	e.mu.Unlock()
	if !created {
		return
	}
	ctx, cancel := context.WithTimeout(e.s.calls.Ctx, readEvery)
	defer cancel()
	resp, err := e.s.send.Get(ctx, e.s.lay.sentinel(e.lease), clientv3.WithKeysOnly())
	if err != nil {
		e.wakeIfRefused(err)
		return // the next read may succeed
	}
	h := resp.Header
	if len(resp.Kvs) == 0 || h.Revision < before.revision || before.cluster != 0 && h.ClusterId != before.cluster {
		e.abandon()
		return
	}
	e.s.watches.expect(h.Revision)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.newest = clusterState{h.ClusterId, max(h.Revision, e.newest.revision)}
}

// checkEntries reads through the quorum whether entries exist. Entries that cannot be read now are
// read later.
func (e *session) checkEntries(ctx context.Context, entries []*request) {
	if len(entries) == 0 {
		return
	}
	due := make([]bool, len(entries)) // an entry whose watch is set again meanwhile is read again
	for i, a := range entries {
		due[i] = a.state.CompareAndSwap(watchDue, watched)
	}
	var deleted []*request
	for i, st := range e.s.readEntries(ctx, entries) {
		switch {
		case st.err != nil && due[i]:
			entries[i].state.CompareAndSwap(watched, watchDue)
		case st.err == nil && !st.exists:
			deleted = append(deleted, entries[i])
		}
	}
	if len(deleted) > 0 {
		e.reportDeleted(deleted, e.timeout())
	}
}

// reportDeleted handles entries whose keys were deleted. It notifies the holders, and wakes the waiters.
func (e *session) reportDeleted(entries []*request, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(e.s.calls.Ctx, timeout)
	defer cancel()
	// If the lease has ended, end notifies the holders of all its entries.
	if e.renewIfOlder(ctx, 0) != nil && e.isOver() {
		return
	}
	for _, a := range entries {
		a.deleted.Store(true) // grant reads this for a grant in progress
		if a.granted.Load() {
			a.r.From.Lost(driver.CauseTaken, errDeleted)
		} else {
			a.wake(0)
		}
	}
}

// wakeIfRefused makes the waiting entries of the session read their queues if the server has refused a request for the
// sentinel, above all because of a new password. The server keeps the streams that are open, so a waiter would notice the
// refusal only with its next read.
func (e *session) wakeIfRefused(err error) {
	if codeOf(err) != driver.CodeRefused || errors.Is(err, rpctypes.ErrNoSpace) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for a := range e.live {
		if a.waits.Load() {
			a.wake(0)
		}
	}
}

// wake wakes a waiting entry. If rev is not 0, the entry was the first one at that revision.
func (a *request) wake(rev int64) {
	select {
	case a.woken <- rev:
	default:
	}
}

var errDeleted = &driver.Error{Code: driver.CodeNotHeld, Err: errors.New("the lock's key was deleted")}
