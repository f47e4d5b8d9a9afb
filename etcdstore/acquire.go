package etcdstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// Acquire requests a grant: see driver.Store.
func (s *store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return s.acquire(ctx, r, nil)
}

// acquire implements Acquire. The transaction that makes the queue entry also carries out the
// release old, unless that is nil.
func (s *store) acquire(ctx context.Context, r driver.Request, old *release) (driver.Grant, error) {
	if err := s.lay.checkName(r.Name); err != nil {
		return driver.Grant{}, err
	}
	for {
		var a *request
		var err error
		if a, old, err = s.prepare(ctx, r, old); err != nil {
			return driver.Grant{}, err
		}
		var g driver.Grant
		if r.Wait {
			g, err = s.enqueueAndWait(ctx, a, old)
		} else {
			g, err = s.try(ctx, a)
		}
		if err == nil {
			return g, nil
		}
		if err == rpctypes.ErrLeaseNotFound { // not errors.Is: the cause of ctx may wrap such an error
			// The lease expired while it was idle, or just now: its entries are gone, and no
			// transaction that names it can be applied.
			s.forget(a)
			a.e.end(errLeaseEnded)
			continue
		}
		if errors.Is(err, rpctypes.ErrNoSpace) {
			// The server still applies the request that exceeds the space, so the entry may exist. A deletion needs no
			// space. The value is unique to the request, so a late deletion ends no entry of a later request.
			err = s.remove(ctx, a, err, clientv3.Compare(clientv3.Value(a.key), "=", a.written.encode()))
		}
		if s.Classify(err) != driver.CodeUnknown {
			s.forget(a)
		}
		return driver.Grant{}, err
	}
}

// prepare begins a request in a session with enough time left. It returns the release old if the
// request's transaction can carry it out. Otherwise it returns a nil release, and the outcome of old
// is reported.
func (s *store) prepare(ctx context.Context, r driver.Request, old *release) (*request, *release, error) {
	for {
		if old != nil && old.reported {
			old = nil // its key may belong to another request now
		}
		if ctx.Err() != nil {
			return nil, nil, &driver.Error{Code: driver.CodeWithdrawn, Err: context.Cause(ctx)}
		}
		if old != nil && !s.ready(r.TTL) {
			// The request needs a keepalive or a new lease first. The release does not.
			old.report(s.releaseAlone(ctx, old))
			old = nil
		}
		e, err := s.session(ctx, r.TTL)
		if err != nil {
			if ctx.Err() != nil && err != errClosed {
				err = &driver.Error{Code: driver.CodeWithdrawn, Err: context.Cause(ctx)}
			}
			return nil, nil, err
		}
		a, err := s.begin(r, e)
		if err == errLeaseEnded {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if old != nil && s.request(old.g.ID) != old.a {
			// Another release was confirmed, and the new request may have its key.
			old.report(errNotHeld)
			old = nil
		}
		return a, old, nil
	}
}

// createError returns the error of a transaction that creates an entry. It does not wrap
// ErrLeaseNotFound, because acquire compares with it.
func createError(ctx context.Context, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return rpctypes.ErrLeaseNotFound
	}
	return unknown(ctx, err)
}

// notUndone returns a condition of every transaction that creates an entry. The condition fails if
// an undo came before the transaction. It compares the revision of the epoch key with epoch.
func (a *request) notUndone() (_ clientv3.Cmp, epoch int64) {
	a.e.mu.Lock()
	epoch = a.e.epochs[a.shard]
	a.e.mu.Unlock()
	return clientv3.Compare(clientv3.ModRevision(a.epochKey()), "=", epoch), epoch
}

// epochKey returns the epoch key of the request's name.
func (a *request) epochKey() string { return a.e.s.lay.epoch(a.e.lease, a.shard) }

// readEpoch returns the operation that reads the epoch key when the comparison of a transaction has
// failed.
func (a *request) readEpoch() clientv3.Op {
	return clientv3.OpGet(a.epochKey(), clientv3.WithKeysOnly())
}

// learnEpoch records the revision of the epoch key from the answer to readEpoch. The key exists as long
// as its lease, and its revision never falls, unless the server was restored from an older copy.
func (a *request) learnEpoch(compared int64, answer *etcdserverpb.ResponseOp) error {
	var read int64
	if kvs := answer.GetResponseRange().Kvs; len(kvs) > 0 {
		read = kvs[0].ModRevision
	}
	if read < compared {
		a.e.abandon()
		return rpctypes.ErrLeaseNotFound
	}
	a.raiseEpoch(read)
	return nil
}

func (a *request) raiseEpoch(rev int64) {
	a.e.mu.Lock()
	defer a.e.mu.Unlock()
	a.e.epochs[a.shard] = max(a.e.epochs[a.shard], rev)
}

// sweep deletes an entry under the session's own lease and the request's key. The store calls it
// before the request has an entry. No other request of this store has the number of that key. As a
// rule the request itself has made the entry: the client library has sent the transaction twice.
// The entry would block all other requests.
func (s *store) sweep(ctx context.Context, a *request, mod int64) error {
	ours := []clientv3.Cmp{
		clientv3.Compare(clientv3.LeaseValue(a.key), "=", a.e.lease),
		clientv3.Compare(clientv3.ModRevision(a.key), "=", mod),
	}
	if err := s.deleteIf(ctx, a.key, ours...); err != nil {
		return &driver.Error{Code: driver.CodeUnknown, Err: err} // the entry remains
	}
	return nil
}

func (s *store) deleteIf(ctx context.Context, key string, conditions ...clientv3.Cmp) error {
	_, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.send.Txn(ctx).If(conditions...).Then(clientv3.OpDelete(key)).Commit()
	})
	return err
}

// tryRounds limits the attempts of try to create its entry on the condition that nothing has
// changed. Keys of longer names count as changes, and may change all the time.
const tryRounds = 8

// try creates an entry only if it is granted at once. It reads the queue and creates the entry on
// the condition that no other entry has been added since.
func (s *store) try(ctx context.Context, a *request) (driver.Grant, error) {
	prefix := s.lay.entries(a.r.Name)
	// The first transaction assumes that the name is free.
	var q queue
	var rev int64
	permit := a.isPermit()
	for rounds := 0; ; rounds++ {
		if rounds >= tryRounds && !permit {
			return s.tryEntry(ctx, a)
		}
		rec := s.newRecord(a.r, time.Now())
		if permit {
			slot := q.freeSlot("")
			rec.Slot = &slot
		}
		a.written = rec
		unchanged := clientv3.Compare(clientv3.ModRevision(prefix).WithPrefix(), "<", rev+1)
		absent := clientv3.Compare(clientv3.CreateRevision(a.key), "=", 0)
		notUndone, epoch := a.notUndone()
		resp, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			return s.send.Txn(ctx).
				If(notUndone, unchanged, absent).
				Then(clientv3.OpPut(a.key, rec.encode(), clientv3.WithLease(a.e.lease))).
				Else(clientv3.OpGet(prefix, clientv3.WithPrefix()), a.readEpoch()).
				Commit()
		})
		if err != nil {
			return driver.Grant{}, createError(ctx, err)
		}
		if resp.Succeeded {
			return a.grant(resp.Header.Revision, rec), nil
		}
		if err := a.learnEpoch(epoch, resp.Responses[1]); err != nil {
			return driver.Grant{}, err
		}
		rev = resp.Header.Revision
		q = newQueue(resp.Responses[0].GetResponseRange().Kvs, prefix)
		for i := q.find(a.key); i >= 0; i = q.find(a.key) {
			if q[i].lease != a.e.lease {
				a.renumber()
				continue
			}
			if err := s.sweep(ctx, a, q[i].mod); err != nil {
				return driver.Grant{}, err
			}
			q = slices.Delete(q, i, i+1)
		}
		if !q.admits(a.r.Limit) {
			if err := q.broken(); err != nil {
				return driver.Grant{}, err
			}
			return driver.Grant{}, &driver.BusyError{Holders: s.holders(q)}
		}
	}
}

// tryEntry creates an entry although other entries may change, and deletes it unless it is granted.
func (s *store) tryEntry(ctx context.Context, a *request) (driver.Grant, error) {
	v, err := s.enqueue(ctx, a, nil)
	if err != nil {
		return driver.Grant{}, err
	}
	if v.rev == 0 {
		if v, err = s.readView(ctx, a); err != nil {
			return driver.Grant{}, &driver.Error{Code: driver.CodeUnknown, Err: err} // the entry remains
		}
	}
	if v.granted {
		return a.grant(a.rev.Load(), a.written), nil
	}
	same := clientv3.Compare(clientv3.CreateRevision(a.key), "=", a.rev.Load())
	if err := s.deleteIf(ctx, a.key, same); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeUnknown, Err: err}
	}
	if v.broken != nil {
		return driver.Grant{}, v.broken
	}
	return driver.Grant{}, &driver.BusyError{Holders: s.holders(v.queue)}
}

// isPermit reports whether the request is for a permit of a semaphore, which has a slot.
func (a *request) isPermit() bool {
	return a.r.Limit > driver.Exclusive && a.r.Limit <= driver.MaxLimit
}

// grant returns the grant of an entry that exists and is granted.
func (a *request) grant(rev int64, rec record) driver.Grant {
	a.rev.Store(rev)
	a.written = rec
	a.granted.Store(true)
	// The store reports a loss only to granted entries, so an earlier loss of this entry is
	// reported here.
	if a.e.leaseEnded() {
		a.r.From.Lost(driver.CauseSessionEnded, errLeaseEnded)
	} else if a.deleted.Load() {
		a.r.From.Lost(driver.CauseTaken, errDeleted)
	}
	sent, ttl := a.e.validity()
	slot := driver.NoSlot
	if rec.Slot != nil {
		slot = *rec.Slot
	}
	return driver.Grant{
		ID: a.r.ID, Name: a.r.Name, Limit: a.r.Limit, Token: a.e.s.token(rev), Tokens: rec.Tokens,
		SentAt: sent, TTL: ttl, Slot: slot, Handle: a,
	}
}

// enqueue adds an entry to the end of the queue. If there are other entries, the same transaction
// reads them. The first transaction also carries out the release old, unless that is nil.
func (s *store) enqueue(ctx context.Context, a *request, old *release) (view, error) {
	prefix := s.lay.entries(a.r.Name)
	for {
		a.written = s.newRecord(a.r, time.Now())
		put := clientv3.OpPut(a.key, a.written.encode(), clientv3.WithLease(a.e.lease))
		notUndone, epoch := a.notUndone()
		absent := clientv3.Compare(clientv3.CreateRevision(a.key), "=", 0)
		behind := clientv3.OpTxn(
			[]clientv3.Cmp{notUndone, absent},
			append([]clientv3.Op{put}, a.reads(prefix)...),
			// A read of keys only does not return leases.
			[]clientv3.Op{a.readEpoch(), clientv3.OpGet(a.key)},
		)
		resp, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			if old != nil {
				// The reads see the queue after the release.
				return s.send.Txn(ctx).Then(old.op(), behind).Commit()
			}
			return s.send.Txn(ctx).
				If(notUndone, clientv3.Compare(clientv3.ModRevision(prefix).WithPrefix(), "<", 1)).
				Then(put).Else(behind).Commit()
		})
		if old != nil {
			s.reportRelease(ctx, old, resp, err)
		}
		if err != nil {
			return view{}, createError(ctx, err)
		}
		rev := resp.Header.Revision
		answer := resp.Responses[0]
		if old != nil {
			answer, old = resp.Responses[1], nil // a repeated transaction executes no release
		} else if resp.Succeeded {
			a.rev.Store(rev)
			return a.viewIn(rev, queue{{key: a.key, rev: rev, mod: rev, lease: a.e.lease, record: a.written, ours: true}}), nil
		}
		inner := answer.GetResponseTxn()
		if !inner.Succeeded {
			if err := a.learnEpoch(epoch, inner.Responses[0]); err != nil {
				return view{}, err
			}
			if kvs := inner.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
				if clientv3.LeaseID(kvs[0].Lease) != a.e.lease {
					a.renumber()
				} else if err := s.sweep(ctx, a, kvs[0].ModRevision); err != nil {
					return view{}, err
				}
			}
			continue
		}
		a.rev.Store(rev)
		return a.viewOf(rev, inner.Responses[1:], prefix), nil
	}
}

// view is the state of an entry, from one read through the quorum.
type view struct {
	rev     int64
	exists  bool
	granted bool
	watch   string // the key to watch if the entry is not granted; if empty, every deletion
	counted bool   // the queue has every entry before it, and all deletions are watched
	queue   queue  // the part of the queue that was read
	broken  error  // of a broken record before the entry, which is not granted
}

// reads returns the reads that show the position of an entry. An exclusive entry needs only the
// first key and the last ones.
func (a *request) reads(prefix string) []clientv3.Op {
	if a.r.Limit != driver.Exclusive {
		return []clientv3.Op{clientv3.OpGet(prefix, clientv3.WithPrefix())}
	}
	first := clientv3.OpGet(prefix, clientv3.WithFirstCreate()...)
	last := append(clientv3.WithLastCreate(), clientv3.WithLimit(maxCounted+1))
	if rev := a.rev.Load(); rev > 0 {
		last = append(last, clientv3.WithMaxCreateRev(rev))
	}
	return []clientv3.Op{first, clientv3.OpGet(prefix, last...)}
}

// viewOf returns the view from the answers to reads. If a read has returned keys of longer names, it may lack
// entries of this name. Then the view is incomplete, and its rev is 0.
func (a *request) viewOf(rev int64, answers []*etcdserverpb.ResponseOp, prefix string) view {
	if a.r.Limit != driver.Exclusive {
		return a.viewIn(rev, newQueue(answers[0].GetResponseRange().Kvs, prefix))
	}
	kvs := answers[0].GetResponseRange().Kvs
	kvs = append(kvs[:len(kvs):len(kvs)], answers[1].GetResponseRange().Kvs...)
	q := newQueue(kvs, prefix)
	if len(q) != len(kvs) {
		return view{}
	}
	// If the first key is also among the last keys, these are the whole queue.
	for i := 1; i < len(q); i++ {
		if q[i].key == q[i-1].key {
			return a.viewIn(rev, append(q[:i:i], q[i+1:]...)).count(a)
		}
	}
	v := a.viewIn(rev, q)
	if i := q.find(a.key); v.watch != "" && i >= 2 {
		v.watch = q[i-2].key // so that the waiter reads the queue again before its entry is the first
	}
	return v
}

// maxCounted is the largest number of earlier entries whose deletions an exclusive entry counts.
const maxCounted = 3

// count makes a view of the whole queue count the deletions of the entries before that of a, if they
// are few.
func (v view) count(a *request) view {
	if v.exists && !v.granted && a.r.Limit == driver.Exclusive && v.queue.find(a.key) <= maxCounted {
		v.counted, v.watch = true, ""
	}
	return v
}

// viewIn returns the view of the entry in a queue. For an exclusive entry the queue may have a gap
// between its first entry and its last ones.
func (a *request) viewIn(rev int64, q queue) view {
	v := view{rev: rev, queue: q}
	i := q.find(a.key)
	if i < 0 || q[i].rev != a.rev.Load() {
		return v
	}
	v.exists = true
	v.granted = i < q.granted() && (a.r.Limit != driver.Exclusive || i == 0)
	if !v.granted {
		v.watch, v.broken = q.blocker(i), q[:i].broken()
	}
	return v
}

// readView reads the position of an entry through the quorum.
func (s *store) readView(ctx context.Context, a *request) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, a.e.timeout())
	defer cancel()
	prefix := s.lay.entries(a.r.Name)
	resp, err := s.send.Txn(ctx).Then(a.reads(prefix)...).Commit()
	if err != nil {
		return view{}, err
	}
	if v := a.viewOf(resp.Header.Revision, resp.Responses, prefix); v.rev != 0 {
		return v, nil
	}
	all, err := s.send.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return view{}, err
	}
	return a.viewIn(all.Header.Revision, newQueue(all.Kvs, prefix)).count(a), nil
}
