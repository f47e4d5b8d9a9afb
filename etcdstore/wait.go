package etcdstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

var errEntryGone = &driver.Error{Code: driver.CodeUnavailable, Err: errors.New("the queue entry was deleted")}

// enqueueAndWait creates a queue entry, and waits until the entry is granted. If old is not nil, it
// also carries out that release.
func (s *store) enqueueAndWait(ctx context.Context, a *request, old *release) (driver.Grant, error) {
	a.mail = s.joinWatchedQueue(a.r.Name)
	a.complete = a.mail != nil
	defer func() { s.leaveQueue(a.mail) }()
	before := s.watches.newest()
	v, err := s.enqueue(ctx, a, old)
	if err != nil {
		return driver.Grant{}, err
	}
	if a.complete && a.rev.Load() <= before {
		// The server was restored from an older copy after the watch was made, so the events in the
		// mailbox may be those of the replaced server.
		a.complete = false
		s.watches.dropRestored(a.rev.Load())
	}
	if v.rev == 0 {
		v, err = s.readView(ctx, a)
	}
	s.addWaiting(a)
	g, err := s.wait(ctx, a, v, err)
	s.dropWaiting(a)
	switch {
	case err == nil:
		return g, nil
	case err == errEntryGone || err == errClosed || a.e.leaseEnded():
		return driver.Grant{}, err
	}
	return driver.Grant{}, s.withdraw(ctx, a, err)
}

// retriable reports whether a retry may succeed while the entry exists.
func retriable(err error) bool {
	return codeOf(err) == driver.CodeUnknown || errors.Is(err, rpctypes.ErrTooManyRequests)
}

// withdraw deletes an entry that is no longer needed, or whose request was refused, and returns
// the error with its code. The server has confirmed the creation, so the deletion needs no epoch.
func (s *store) withdraw(ctx context.Context, a *request, why error) error {
	code := codeOf(why)
	if ctx.Err() != nil {
		code, why = driver.CodeWithdrawn, context.Cause(ctx)
	} else if code == driver.CodeUnknown {
		return why
	}
	return s.remove(ctx, a, &driver.Error{Code: code, Err: why}, clientv3.Compare(clientv3.CreateRevision(a.key), "=", a.rev.Load()))
}

// remove deletes the entry of a request that has failed with why, if it is ours, and returns the error of the request.
func (s *store) remove(ctx context.Context, a *request, why error, ours clientv3.Cmp) error {
	return calls.Withdraw(ctx, withdrawTimeout, why, func(ctx context.Context) error {
		_, err := s.send.Txn(ctx).If(ours).Then(clientv3.OpDelete(a.key)).Commit()
		return err
	})
}

// withdrawTimeout limits the deletion of an entry after the caller's context has ended. If the
// deletion fails, Undo deletes the entry.
const withdrawTimeout = 500 * time.Millisecond

func (s *store) addWaiting(a *request) {
	s.mu.Lock()
	s.waiting[a.r.Name] = append(s.waiting[a.r.Name], a)
	a.waits.Store(true)
	s.mu.Unlock()
}

func (s *store) dropWaiting(a *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.waits.Store(false)
	w := slices.DeleteFunc(s.waiting[a.r.Name], func(other *request) bool { return other == a })
	if s.waiting[a.r.Name] = w; len(w) == 0 {
		delete(s.waiting, a.r.Name)
	}
}

// waitingFor returns an entry of this store that waits for the name, or nil if there is none.
func (s *store) waitingFor(name string) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waiting[name]; len(w) > 0 {
		return w[0]
	}
	return nil
}

// The backoff after failed reads and watches.
const waitRetry, waitRetryMax = 20 * time.Millisecond, time.Second

const (
	// readQueueEvery is the interval at which a waiter reads the queue although its watch reports
	// nothing. unwatchedEvery is the interval while the waiter has no watch.
	readQueueEvery = 10 * time.Second
	unwatchedEvery = time.Second
)

// wait waits until an entry is granted: it watches the entries before it, and reads the queue again
// when they change. v is the last view; without a view, lastErr is the reason.
func (s *store) wait(ctx context.Context, a *request, v view, lastErr error) (driver.Grant, error) {
	retry := backoff.Backoff{First: waitRetry, Max: waitRetryMax}
	for {
		switch {
		case lastErr != nil:
		case v.granted:
			var g driver.Grant
			if g, lastErr = s.claim(ctx, a, v); lastErr == nil {
				return g, nil
			}
		case !v.exists:
			return driver.Grant{}, s.entryGone(ctx, a)
		case v.broken != nil:
			return driver.Grant{}, v.broken
		default:
			a.r.From.Queued(s.holders(v.queue))
			if v, lastErr = s.awaitChange(ctx, a, v, 0); lastErr == nil {
				retry.Reset()
				continue
			}
		}
		switch {
		case !retriable(lastErr) || ctx.Err() != nil:
			return driver.Grant{}, lastErr
		case a.e.isOver():
			return driver.Grant{}, a.e.overError()
		}
		v, lastErr = s.awaitChange(ctx, a, view{}, retry.Next())
	}
}

// entryGone returns the error of an entry that was deleted while it waited.
func (s *store) entryGone(ctx context.Context, a *request) error {
	if a.e.renewIfOlder(ctx, 0) != nil && a.e.isOver() {
		return &driver.Error{Code: driver.CodeUnavailable, Err: errLeaseEnded.Err}
	}
	return errEntryGone
}

// overError returns the error of a waiter whose session is over.
func (e *session) overError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == errLeaseEnded {
		return &driver.Error{Code: driver.CodeUnavailable, Err: errLeaseEnded.Err}
	}
	return e.err
}

// mailbox collects the updates of a watch until they are read.
type mailbox struct {
	full  chan struct{}
	queue *queueWatch // the watch, if waiters share it

	mu sync.Mutex
	u  watchUpdate
}

func (m *mailbox) put(u watchUpdate) {
	m.mu.Lock()
	switch {
	case u.err != nil:
		m.u.err = u.err
	case u.isSet:
		// The read that follows shows what the earlier events have changed. They may be those of a
		// server that was replaced by one with a lower revision, and would look new.
		m.u.isSet, m.u.interrupted, m.u.events = true, false, nil
	case u.interrupted:
		m.u.isSet, m.u.interrupted = false, true
	}
	m.u.events = append(m.u.events, u.events...)
	m.mu.Unlock()
	wakeup.Send(m.full)
}

func (m *mailbox) take() watchUpdate {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.u
	m.u = watchUpdate{}
	return u
}

// awaitChange waits until the entries that v watches have changed, and returns the next view. A pause follows an error:
// then nothing is watched, and awaitChange reads the queue after the pause.
func (s *store) awaitChange(ctx context.Context, a *request, v view, pause time.Duration) (view, error) {
	mail, interval := &mailbox{}, pause
	if pause == 0 {
		var own *watch
		if mail, own = s.watchView(a, v); own != nil {
			defer s.unwatch(own)
		}
		interval = unwatchedEvery
		if a.complete {
			interval = readQueueEvery
		}
		interval = wakeup.Fallback(ctx, interval)
	}
	overdue := time.NewTimer(interval)
	defer overdue.Stop()
	for {
		select {
		case <-ctx.Done():
			return view{}, &driver.Error{Code: driver.CodeUnknown, Err: context.Cause(ctx)}
		case <-s.calls.Ctx.Done():
			return view{}, errClosed
		case <-a.e.over:
			return view{}, a.e.overError()
		case rev := <-a.woken:
			if rev > 0 && a.r.Limit == driver.Exclusive { // also in a pause before a retry
				return view{rev: rev, exists: true, granted: true}, nil
			}
			return s.readView(ctx, a)
		case <-overdue.C:
			return s.readView(ctx, a)
		case <-mail.full:
		}
		u := mail.take()
		switch {
		case u.err != nil:
			return view{}, u.err
		case u.isSet:
			overdue.Reset(wakeup.Fallback(ctx, readQueueEvery))
			// The watch has not reported changes before this point.
			a.complete = v.counted
			now, err := s.refreshView(ctx, a, v)
			if err != nil || now.granted || !now.exists || now.watch != v.watch {
				return now, err
			}
			v = now
		case u.interrupted:
			a.complete = false
			overdue.Reset(wakeup.Fallback(ctx, unwatchedEvery))
		}
		events := v.newer(u.events)
		switch {
		case v.watch != "" && len(events) > 0:
			return s.readView(ctx, a)
		case v.watch == "" && v.removeDeleted(events, a.key):
			if a.complete && v.counted && v.queue.find(a.key) == 0 {
				return view{rev: events[len(events)-1].Kv.ModRevision, exists: true, granted: true}, nil
			}
			return s.readView(ctx, a)
		}
	}
}

// watchView watches the entries that v watches, and returns the mailbox of the watch. own is nil if the
// waiters of the name share the watch. Otherwise the caller ends own.
func (s *store) watchView(a *request, v view) (mail *mailbox, own *watch) {
	if v.counted {
		if a.mail == nil {
			a.mail = s.joinQueue(a.r.Name)
		}
		return a.mail, nil
	}
	s.leaveQueue(a.mail)
	a.mail, a.complete = nil, false
	mail = &mailbox{full: make(chan struct{}, 1)}
	own = &watch{key: []byte(v.watch), update: mail.put}
	if v.watch == "" {
		own.setPrefix(s.lay.entries(a.r.Name))
	}
	s.watch(own)
	return mail, own
}

// refreshView updates a view with the cheapest read: if the view watches one entry, refreshView reads
// only whether that entry still exists.
func (s *store) refreshView(ctx context.Context, a *request, v view) (view, error) {
	if i := v.queue.find(v.watch); i >= 0 {
		bounded, cancel := context.WithTimeout(ctx, a.e.timeout())
		resp, err := s.send.Get(bounded, v.watch, clientv3.WithKeysOnly())
		cancel()
		if err != nil {
			return view{}, err
		}
		if len(resp.Kvs) == 1 && resp.Kvs[0].CreateRevision == v.queue[i].rev {
			v.rev = resp.Header.Revision
			return v, nil
		}
	}
	return s.readView(ctx, a)
}

// newer returns the events that are newer than the view. A watch starts at the revision of its
// member. If that member is behind, the watch reports deletions older than the view. A client may
// have created the same key again since.
func (v *view) newer(events []*mvccpb.Event) []*mvccpb.Event {
	for i, e := range events { // in the order of their revisions
		if e.Kv.ModRevision > v.rev {
			return events[i:]
		}
	}
	return nil
}

// removeDeleted removes deleted entries from a view's queue, and reports whether the entry with the
// key own may now be granted.
func (v *view) removeDeleted(events []*mvccpb.Event, own string) bool {
	for _, e := range events {
		if e.Type != mvccpb.Event_DELETE {
			continue
		}
		if i := v.queue.find(string(e.Kv.Key)); i >= 0 {
			v.queue = slices.Delete(v.queue, i, i+1)
		}
	}
	i := v.queue.find(own)
	return i < 0 || i < v.queue.granted()
}

// claim returns the grant of an entry that the rule grants. It ensures that enough of the lease is
// left, gives a permit its slot, and writes the owner that is now at the head of the core's queue.
func (s *store) claim(ctx context.Context, a *request, v view) (driver.Grant, error) {
	if err := a.e.renewIfOlder(ctx, a.e.ttl/3); err != nil {
		if a.e.isOver() {
			return driver.Grant{}, a.e.overError()
		}
		return driver.Grant{}, err
	}
	rev := a.rev.Load()
	rec := s.newRecord(a.r, time.Now())
	permit := a.isPermit()
	if !permit && rec.sameOwner(a.written) {
		return a.grant(rev, a.written), nil
	}
	prefix := s.lay.entries(a.r.Name)
	same := clientv3.Compare(clientv3.CreateRevision(a.key), "=", rev)
	for {
		// A late claim must not overwrite a later write, above all the lease of a grant that was
		// released and kept.
		cmps := []clientv3.Cmp{same, clientv3.Compare(clientv3.ModRevision(a.key), "<", v.rev+1)}
		if permit {
			slot := v.queue.freeSlot(a.key)
			rec.Slot = &slot
			// No other entry has taken the slot since.
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(prefix).WithPrefix(), "<", v.rev+1))
		}
		bounded, cancel := context.WithTimeout(ctx, a.e.timeout())
		resp, err := s.send.Txn(bounded).If(cmps...).
			Then(clientv3.OpPut(a.key, rec.encode(), clientv3.WithLease(a.e.lease))).
			Else(clientv3.OpGet(prefix, clientv3.WithPrefix())).Commit()
		cancel()
		if err != nil {
			// The entry exists, with the old value or the new one. A retry of claim covers both cases.
			return driver.Grant{}, err
		}
		if resp.Succeeded {
			return a.grant(rev, rec), nil
		}
		v = a.viewIn(resp.Header.Revision, newQueue(resp.Responses[0].GetResponseRange().Kvs, prefix))
		if !v.exists {
			return driver.Grant{}, s.entryGone(ctx, a)
		}
	}
}
