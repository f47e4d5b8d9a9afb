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
	"github.com/holdfast-go/holdfast/internal/fallback"
)

var errPlaceGone = &driver.Error{Code: driver.CodeUnavailable, Err: errors.New("the place in the queue was deleted")}

// queue takes a place and waits until it is granted.
func (s *Store) queue(ctx context.Context, a *attempt) (driver.Grant, error) {
	v, err := s.takePlace(ctx, a)
	if err != nil {
		return driver.Grant{}, err
	}
	if v.rev == 0 {
		v, err = s.look(ctx, a)
	}
	s.addWaiting(a)
	g, err := s.wait(ctx, a, v, err)
	s.dropWaiting(a)
	switch {
	case err == nil:
		return g, nil
	case err == errPlaceGone || err == errClosed || a.e.isGone():
		return driver.Grant{}, err
	}
	return driver.Grant{}, s.withdraw(ctx, a, err)
}

// retriable tells whether asking again may help a place that stands.
func retriable(err error) bool {
	return refused(err) == driver.CodeUnknown || errors.Is(err, rpctypes.ErrTooManyRequests)
}

// withdraw takes back a place that nobody wants any more or that cannot be kept,
// and tells why. The answer to its making has come, so its deletion needs no
// epoch.
func (s *Store) withdraw(ctx context.Context, a *attempt, why error) error {
	code := refused(why)
	if ctx.Err() != nil {
		code, why = driver.CodeWithdrawn, context.Cause(ctx)
	} else if code == driver.CodeUnknown {
		return why
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawWithin)
	defer cancel()
	made := clientv3.Compare(clientv3.CreateRevision(a.key), "=", a.rev.Load())
	if _, err := s.client.Txn(bounded).If(made).Then(clientv3.OpDelete(a.key)).Commit(); err != nil {
		return &driver.Error{Code: driver.CodeUnknown, Err: errors.Join(why, err)}
	}
	return &driver.Error{Code: code, Err: why}
}

// withdrawWithin bounds the deletion of a place on the time of a caller whose
// context has ended. What it leaves open, Undo settles.
const withdrawWithin = 500 * time.Millisecond

func (s *Store) addWaiting(a *attempt) {
	s.mu.Lock()
	s.waiting[a.r.Name] = append(s.waiting[a.r.Name], a)
	a.waits.Store(true)
	s.mu.Unlock()
}

func (s *Store) dropWaiting(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.waits.Store(false)
	w := s.waiting[a.r.Name]
	if i := slices.Index(w, a); i >= 0 {
		w = slices.Delete(w, i, i+1)
	}
	if len(w) == 0 {
		delete(s.waiting, a.r.Name)
	} else {
		s.waiting[a.r.Name] = w
	}
}

// waitingFor is a place of this store that waits for the name, nil if none.
func (s *Store) waitingFor(name string) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waiting[name]; len(w) > 0 {
		return w[0]
	}
	return nil
}

// The pauses after reads and watches that failed while a place waits.
const waitRetry, waitRetryMost = 20 * time.Millisecond, time.Second

const (
	// lookEvery is how often a waiter looks although its watch reports nothing, and unwatchedEvery
	// how often it looks while its watch does not stand.
	lookEvery      = 10 * time.Second
	unwatchedEvery = time.Second
)

// wait watches what stands before a place and looks again when that has changed.
// v is the last view, or lastErr says why there is none.
func (s *Store) wait(ctx context.Context, a *attempt, v view, lastErr error) (driver.Grant, error) {
	pause := waitRetry
	for {
		if lastErr == nil {
			switch {
			case v.granted:
				g, err := s.claim(ctx, a, v)
				if err == nil {
					return g, nil
				}
				lastErr = err
			case !v.stands:
				return driver.Grant{}, s.placeGone(ctx, a)
			default:
				a.r.From.Queued(v.line.holders())
				if v, lastErr = s.awaitChange(ctx, a, v); lastErr == nil {
					pause = waitRetry
				}
			}
		}
		if lastErr == nil {
			continue
		}
		if !retriable(lastErr) {
			return driver.Grant{}, lastErr
		}
		if err := s.pause(ctx, a, pause); err != nil {
			return driver.Grant{}, err
		}
		pause = min(2*pause, waitRetryMost)
		v, lastErr = s.look(ctx, a)
	}
}

// placeGone tells why a place that stood does not stand any more.
func (s *Store) placeGone(ctx context.Context, a *attempt) error {
	if a.e.fresh(ctx, 0) != nil && a.e.ended() {
		return &driver.Error{Code: driver.CodeUnavailable, Err: errLeaseGone.Err}
	}
	return errPlaceGone
}

// pause waits a little, or for the end.
func (s *Store) pause(ctx context.Context, a *attempt, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-a.passed: // seen by the look that follows
		return nil
	case <-ctx.Done():
		return &driver.Error{Code: driver.CodeUnknown, Err: context.Cause(ctx)}
	case <-s.ctx.Done():
		return errClosed
	case <-a.e.over:
		return a.e.why()
	}
}

// why tells a waiter that its session is over.
func (e *session) why() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == errLeaseGone {
		return &driver.Error{Code: driver.CodeUnavailable, Err: errLeaseGone.Err}
	}
	return e.err
}

// mailbox keeps what a watch reports until its reader comes.
type mailbox struct {
	full chan struct{}

	mu sync.Mutex
	u  watchUpdate
}

func (m *mailbox) put(u watchUpdate) {
	m.mu.Lock()
	switch {
	case u.err != nil:
		m.u.err = u.err
	case u.stands:
		m.u.stands, m.u.interrupted = true, false
	case u.interrupted:
		m.u.stands, m.u.interrupted = false, true
	}
	m.u.events = append(m.u.events, u.events...)
	m.mu.Unlock()
	signal(m.full)
}

func (m *mailbox) take() watchUpdate {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.u
	m.u = watchUpdate{}
	return u
}

// awaitChange waits until what v says to watch has gone, and looks again.
func (s *Store) awaitChange(ctx context.Context, a *attempt, v view) (view, error) {
	mail := &mailbox{full: make(chan struct{}, 1)}
	w := &watch{key: []byte(v.watch), update: mail.put}
	if v.watch == "" {
		w.setPrefix(s.lay.places(a.r.Name))
	}
	s.watch(w)
	defer s.unwatch(w)
	overdue := time.NewTimer(fallback.After(ctx, unwatchedEvery))
	defer overdue.Stop()
	for {
		select {
		case <-ctx.Done():
			return view{}, &driver.Error{Code: driver.CodeUnknown, Err: context.Cause(ctx)}
		case <-s.ctx.Done():
			return view{}, errClosed
		case <-a.e.over:
			return view{}, a.e.why()
		case rev := <-a.passed:
			if rev > 0 && a.r.Limit == driver.Exclusive {
				return view{rev: rev, stands: true, granted: true}, nil
			}
			return s.look(ctx, a)
		case <-overdue.C:
			return s.look(ctx, a)
		case <-mail.full:
		}
		u := mail.take()
		switch {
		case u.err != nil:
			return view{}, u.err
		case u.stands:
			overdue.Reset(fallback.After(ctx, lookEvery))
			// What has happened before the watch stood is not reported.
			now, err := s.since(ctx, a, v)
			if err != nil || now.granted || !now.stands || now.watch != v.watch {
				return now, err
			}
			v = now
		case u.interrupted:
			overdue.Reset(fallback.After(ctx, unwatchedEvery))
		}
		events := v.news(u.events)
		switch {
		case v.watch != "" && len(events) > 0:
			if v.next && a.r.Limit == driver.Exclusive {
				return s.confirm(ctx, a)
			}
			return s.look(ctx, a)
		case v.watch == "" && v.gone(events, a.key):
			return s.look(ctx, a)
		}
	}
}

// since brings a view up to date, at the least cost: where one place is watched, it
// asks whether that still stands.
func (s *Store) since(ctx context.Context, a *attempt, v view) (view, error) {
	if i := v.line.find(v.watch); i >= 0 {
		bounded, cancel := context.WithTimeout(ctx, a.e.within())
		resp, err := s.client.Get(bounded, v.watch, clientv3.WithKeysOnly())
		cancel()
		if err != nil {
			return view{}, err
		}
		if len(resp.Kvs) == 1 && resp.Kvs[0].CreateRevision == v.line[i].rev {
			v.rev = resp.Header.Revision
			return v, nil
		}
	}
	return s.look(ctx, a)
}

// confirm asks, when the only place before an exclusive one has gone, whether that
// still stands: an administrator may have ended its lease during the wait. All that
// could stand before it was made before it and has been seen, so it is then granted.
func (s *Store) confirm(ctx context.Context, a *attempt) (view, error) {
	bounded, cancel := context.WithTimeout(ctx, a.e.within())
	resp, err := s.client.Get(bounded, a.key, clientv3.WithKeysOnly())
	cancel()
	if err != nil {
		return view{}, err
	}
	stands := len(resp.Kvs) == 1 && resp.Kvs[0].CreateRevision == a.rev.Load()
	return view{rev: resp.Header.Revision, stands: stands, granted: stands}, nil
}

// news are the events of which the view does not know yet. A watch from now begins
// at the revision of the member that serves it; where that lags behind, it tells of
// deletions older than the view, after which the same key was made again.
func (v *view) news(events []*mvccpb.Event) []*mvccpb.Event {
	for i, e := range events { // in the order of their revisions
		if e.Kv.ModRevision > v.rev {
			return events[i:]
		}
	}
	return nil
}

// gone takes deletions out of a view's line, and tells whether the place may be
// granted now.
func (v *view) gone(events []*mvccpb.Event, own string) bool {
	for _, e := range events {
		if e.Type != mvccpb.Event_DELETE {
			continue
		}
		if i := v.line.find(string(e.Kv.Key)); i >= 0 {
			v.line = slices.Delete(v.line, i, i+1)
		}
	}
	i := v.line.find(own)
	return i < 0 || i < v.line.granted()
}

// claim turns a place that is granted into a grant: with enough of the lease
// left, with a slot where it needs one, and with the words of whoever is at the
// head of the core's queue now.
func (s *Store) claim(ctx context.Context, a *attempt, v view) (driver.Grant, error) {
	if err := a.e.fresh(ctx, a.e.ttl/3); err != nil {
		if a.e.ended() {
			return driver.Grant{}, a.e.why()
		}
		return driver.Grant{}, err
	}
	rev := a.rev.Load()
	rec := newRecord(a.r, time.Now())
	permit := a.r.Limit > driver.Exclusive && a.r.Limit <= driver.MaxLimit
	if !permit && rec.same(a.written) {
		return a.grant(rev, a.written), nil
	}
	prefix := s.lay.places(a.r.Name)
	stands := clientv3.Compare(clientv3.CreateRevision(a.key), "=", rev)
	for {
		// A claim that arrives late must not put back what has been written since: the
		// lease, above all, of a grant that was released to stand a while longer.
		cmps := []clientv3.Cmp{stands, clientv3.Compare(clientv3.ModRevision(a.key), "<", v.rev+1)}
		if permit {
			slot := v.line.freeSlot(a.key)
			rec.Slot = &slot
			// Nobody has taken a slot since.
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(prefix).WithPrefix(), "<", v.rev+1))
		}
		bounded, cancel := context.WithTimeout(ctx, a.e.within())
		resp, err := s.client.Txn(bounded).If(cmps...).
			Then(clientv3.OpPut(a.key, rec.encode(), clientv3.WithLease(a.e.lease))).
			Else(clientv3.OpGet(prefix, clientv3.WithPrefix())).Commit()
		cancel()
		if err != nil {
			// The place stands, with the old words or the new: asked again, the same
			// is found.
			return driver.Grant{}, err
		}
		if resp.Succeeded {
			return a.grant(rev, rec), nil
		}
		v = a.judge(resp.Header.Revision, newLine(resp.Responses[0].GetResponseRange().Kvs, prefix))
		if !v.stands {
			return driver.Grant{}, s.placeGone(ctx, a)
		}
	}
}
