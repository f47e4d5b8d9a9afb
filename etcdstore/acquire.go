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

// Acquire asks for a grant: see driver.Store.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := s.lay.checkName(r.Name); err != nil {
		return driver.Grant{}, err
	}
	for {
		if ctx.Err() != nil {
			return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: context.Cause(ctx)}
		}
		e, err := s.session(ctx, r.TTL)
		if err != nil {
			if ctx.Err() != nil && err != errClosed {
				err = &driver.Error{Code: driver.CodeWithdrawn, Err: context.Cause(ctx)}
			}
			return driver.Grant{}, err
		}
		a, err := s.begin(r, e)
		if err == errLeaseGone {
			continue
		}
		if err != nil {
			return driver.Grant{}, err
		}
		var g driver.Grant
		if r.Wait {
			g, err = s.queue(ctx, a)
		} else {
			g, err = s.try(ctx, a)
		}
		if err == nil {
			return g, nil
		}
		if err == rpctypes.ErrLeaseNotFound { // itself: the caller's reason may be such an error
			// The lease ran out while nobody used it, or at this moment: its places
			// are gone and no transaction that names it can be applied.
			s.forget(a)
			e.end(errLeaseGone)
			continue
		}
		if errors.Is(err, rpctypes.ErrNoSpace) {
			err = s.takeBack(ctx, a, err)
		}
		if s.Classify(err) != driver.CodeUnknown {
			s.forget(a)
		}
		return driver.Grant{}, err
	}
}

// takeBack deletes a place that may stand although the answer was that there is no
// space: the server applies the request that fills it. A deletion costs no space. No
// other request has the same words, so it ends nothing of a later one if it is late.
func (s *Store) takeBack(ctx context.Context, a *attempt, why error) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawWithin)
	defer cancel()
	ours := clientv3.Compare(clientv3.Value(a.key), "=", a.written.encode())
	if _, err := s.client.Txn(bounded).If(ours).Then(clientv3.OpDelete(a.key)).Commit(); err != nil {
		return &driver.Error{Code: driver.CodeUnknown, Err: errors.Join(why, err)}
	}
	return why
}

// unmade is for a transaction that makes a place. That the lease has ended is for
// Acquire, as it is.
func unmade(ctx context.Context, err error) error {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return rpctypes.ErrLeaseNotFound
	}
	return unknown(ctx, err)
}

// made is a condition of every transaction that makes a queue entry: it fails if an undo came
// before it. The epoch is what it compares with.
func (a *attempt) made(n int) (_ clientv3.Cmp, epoch int64) {
	a.e.mu.Lock()
	epoch = a.e.epochs[n]
	a.e.mu.Unlock()
	return clientv3.Compare(clientv3.ModRevision(a.e.s.lay.epoch(a.e.lease, n)), "=", epoch), epoch
}

// learnEpoch takes in what a transaction that compared with an epoch and failed has read of the
// epoch key. One that has been written stands as long as its lease does, and never goes back,
// unless the server was restored from an older copy.
func (e *session) learnEpoch(n int, compared int64, answer *etcdserverpb.ResponseOp) error {
	var read int64
	if kvs := answer.GetResponseRange().Kvs; len(kvs) > 0 {
		read = kvs[0].ModRevision
	}
	if read < compared {
		e.abandon()
		return rpctypes.ErrLeaseNotFound
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.epochs[n] = max(e.epochs[n], read)
	return nil
}

// sweep deletes what stands under the session's own lease and the attempt's key before
// the attempt knows of a place. No other request of this store has the number, so it is
// what nobody knows of: the place of the attempt itself, as a rule, where the client
// has sent the transaction twice. Left there, it would be in everybody's way.
func (s *Store) sweep(ctx context.Context, a *attempt, mod int64) error {
	ours := []clientv3.Cmp{
		clientv3.Compare(clientv3.LeaseValue(a.key), "=", a.e.lease),
		clientv3.Compare(clientv3.ModRevision(a.key), "=", mod),
	}
	if _, err := s.client.Txn(ctx).If(ours...).Then(clientv3.OpDelete(a.key)).Commit(); err != nil {
		return &driver.Error{Code: driver.CodeUnknown, Err: err} // it stands
	}
	return nil
}

// tryRounds is how often a try makes its place on the condition that nothing has
// changed: keys of deeper names count too, and may change all the time.
const tryRounds = 8

// try makes a place only where it is granted at once. It reads the queue and
// makes the place on the condition that nobody has come since.
func (s *Store) try(ctx context.Context, a *attempt) (driver.Grant, error) {
	prefix, n := s.lay.places(a.r.Name), shard(a.r.Name)
	epochKey := s.lay.epoch(a.e.lease, n)
	// At first it is taken to be free.
	var q line
	var rev int64
	permit := a.r.Limit > driver.Exclusive && a.r.Limit <= driver.MaxLimit // which needs a slot of its own
	for rounds := 0; ; rounds++ {
		if rounds >= tryRounds && !permit {
			return s.tryPlace(ctx, a)
		}
		rec := newRecord(a.r, time.Now())
		if permit {
			slot := q.freeSlot("")
			rec.Slot = &slot
		}
		a.written = rec
		nobody := clientv3.Compare(clientv3.ModRevision(prefix).WithPrefix(), "<", rev+1)
		absent := clientv3.Compare(clientv3.CreateRevision(a.key), "=", 0)
		made, epoch := a.made(n)
		resp, err := s.client.Txn(ctx).
			If(made, nobody, absent).
			Then(clientv3.OpPut(a.key, rec.encode(), clientv3.WithLease(a.e.lease))).
			Else(clientv3.OpGet(prefix, clientv3.WithPrefix()), clientv3.OpGet(epochKey, clientv3.WithKeysOnly())).
			Commit()
		if err != nil {
			return driver.Grant{}, unmade(ctx, err)
		}
		if resp.Succeeded {
			return a.grant(resp.Header.Revision, rec), nil
		}
		if err := a.e.learnEpoch(n, epoch, resp.Responses[1]); err != nil {
			return driver.Grant{}, err
		}
		rev = resp.Header.Revision
		q = newLine(resp.Responses[0].GetResponseRange().Kvs, prefix)
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
			return driver.Grant{}, &driver.BusyError{Holders: q.holders()}
		}
	}
}

// tryPlace takes a place, whatever changes, and gives it back unless it is granted.
func (s *Store) tryPlace(ctx context.Context, a *attempt) (driver.Grant, error) {
	v, err := s.takePlace(ctx, a)
	if err != nil {
		return driver.Grant{}, err
	}
	if v.rev == 0 {
		if v, err = s.look(ctx, a); err != nil {
			return driver.Grant{}, &driver.Error{Code: driver.CodeUnknown, Err: err} // the place stands
		}
	}
	if v.granted {
		return a.grant(a.rev.Load(), a.written), nil
	}
	made := clientv3.Compare(clientv3.CreateRevision(a.key), "=", a.rev.Load())
	if _, err := s.client.Txn(ctx).If(made).Then(clientv3.OpDelete(a.key)).Commit(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeUnknown, Err: err}
	}
	return driver.Grant{}, &driver.BusyError{Holders: v.line.holders()}
}

// grant is the store's yes, for a place that was found to stand and to be
// granted.
func (a *attempt) grant(rev int64, rec record) driver.Grant {
	a.rev.Store(rev)
	a.written = rec
	a.granted.Store(true)
	// Both report to those alone that were granted by then.
	if a.e.isGone() {
		a.r.From.Lost(driver.CauseSessionEnded, errLeaseGone)
	} else if a.deleted.Load() {
		a.r.From.Lost(driver.CauseTaken, errDeleted)
	}
	sent, ttl := a.e.trust()
	slot := driver.NoSlot
	if rec.Slot != nil {
		slot = *rec.Slot
	}
	return driver.Grant{
		ID: a.r.ID, Name: a.r.Name, Limit: a.r.Limit, Token: uint64(rev),
		SentAt: sent, TTL: ttl, Slot: slot, Handle: a,
	}
}

// takePlace makes a place at the end of the queue, whatever stands before it. Only
// where something does are the reads made that tell what.
func (s *Store) takePlace(ctx context.Context, a *attempt) (view, error) {
	prefix, n := s.lay.places(a.r.Name), shard(a.r.Name)
	epochKey := s.lay.epoch(a.e.lease, n)
	for {
		a.written = newRecord(a.r, time.Now())
		put := clientv3.OpPut(a.key, a.written.encode(), clientv3.WithLease(a.e.lease))
		made, epoch := a.made(n)
		absent := clientv3.Compare(clientv3.CreateRevision(a.key), "=", 0)
		resp, err := s.client.Txn(ctx).
			If(made, clientv3.Compare(clientv3.ModRevision(prefix).WithPrefix(), "<", 1)).
			Then(put).
			Else(clientv3.OpTxn(
				[]clientv3.Cmp{made, absent},
				append([]clientv3.Op{put}, a.reads(prefix)...),
				// A read of keys only does not tell of leases.
				[]clientv3.Op{clientv3.OpGet(epochKey, clientv3.WithKeysOnly()), clientv3.OpGet(a.key)},
			)).Commit()
		if err != nil {
			return view{}, unmade(ctx, err)
		}
		rev := resp.Header.Revision
		if resp.Succeeded {
			a.rev.Store(rev)
			return a.judge(rev, line{{key: a.key, rev: rev, mod: rev, lease: a.e.lease, record: a.written, ours: true}}), nil
		}
		inner := resp.Responses[0].GetResponseTxn()
		if !inner.Succeeded {
			if err := a.e.learnEpoch(n, epoch, inner.Responses[0]); err != nil {
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
		return a.see(rev, inner.Responses[1:], prefix), nil
	}
}

// view is what one read through the quorum says of a place.
type view struct {
	rev     int64
	stands  bool
	granted bool
	watch   string // what to watch if it is not granted; empty: every deletion
	next    bool   // what to watch is the only place before it
	line    line   // as much of it as was read
}

// reads are the reads that tell where a place is in the queue. An exclusive one
// needs the first and the last two keys alone.
func (a *attempt) reads(prefix string) []clientv3.Op {
	if a.r.Limit != driver.Exclusive {
		return []clientv3.Op{clientv3.OpGet(prefix, clientv3.WithPrefix())}
	}
	first := clientv3.OpGet(prefix, clientv3.WithFirstCreate()...)
	last := append(clientv3.WithLastCreate(), clientv3.WithLimit(2))
	if rev := a.rev.Load(); rev > 0 {
		last = append(last, clientv3.WithMaxCreateRev(rev))
	}
	return []clientv3.Op{first, clientv3.OpGet(prefix, last...)}
}

// see reads the answers to reads. Keys of deeper names may hide those that
// matter: then the view is not complete, and stands is false with rev 0.
func (a *attempt) see(rev int64, answers []*etcdserverpb.ResponseOp, prefix string) view {
	if a.r.Limit != driver.Exclusive {
		return a.judge(rev, newLine(answers[0].GetResponseRange().Kvs, prefix))
	}
	kvs := answers[0].GetResponseRange().Kvs
	kvs = append(kvs[:len(kvs):len(kvs)], answers[1].GetResponseRange().Kvs...)
	q := newLine(kvs, prefix)
	if len(q) != len(kvs) {
		return view{}
	}
	// The first may be among the last two.
	for i := 1; i < len(q); i++ {
		if q[i].key == q[i-1].key {
			q = append(q[:i:i], q[i+1:]...)
			break
		}
	}
	return a.judge(rev, q)
}

// judge finds the place in the line. For an exclusive place the line may have a
// gap before the last two.
func (a *attempt) judge(rev int64, q line) view {
	v := view{rev: rev, line: q}
	i := q.find(a.key)
	if i < 0 || q[i].rev != a.rev.Load() {
		return v
	}
	v.stands = true
	v.granted = i < q.granted() && (a.r.Limit != driver.Exclusive || i == 0)
	if !v.granted {
		v.watch = q.blocker(i)
		v.next = i == 1 && q[0].key == v.watch
	}
	return v
}

// look reads, through the quorum, where a place is.
func (s *Store) look(ctx context.Context, a *attempt) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, a.e.within())
	defer cancel()
	prefix := s.lay.places(a.r.Name)
	resp, err := s.client.Txn(ctx).Then(a.reads(prefix)...).Commit()
	if err != nil {
		return view{}, err
	}
	if v := a.see(resp.Header.Revision, resp.Responses, prefix); v.rev != 0 {
		return v, nil
	}
	all, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return view{}, err
	}
	return a.judge(all.Header.Revision, newLine(all.Kvs, prefix)), nil
}
