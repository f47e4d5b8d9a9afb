package etcdstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/gather"
)

var errNotHeld = &driver.Error{Code: driver.CodeNotHeld, Err: errors.New("the grant does not stand")}

// requestOf returns the request of a grant, nil if it is not one of this store.
func (s *store) requestOf(g driver.Grant) *request {
	a, ok := g.Handle.(*request)
	if !ok || a == nil || a.e.s != s || a.r.ID != g.ID || s.token(a.rev.Load()) != g.Token {
		return nil
	}
	return a
}

// Release deletes the entry if it is still the one that was granted.
func (s *store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if s.calls.Stopped() {
		return errClosed
	}
	a := s.requestOf(g)
	if a == nil || s.request(g.ID) != a {
		return errNotHeld
	}
	// From here on a deletion is no loss.
	a.granted.Store(false)
	same := clientv3.Compare(clientv3.CreateRevision(a.key), "=", a.rev.Load())
	if keep > 0 {
		return s.keepEntry(ctx, a, same, keep)
	}
	ops := []clientv3.Op{clientv3.OpDelete(a.key)}
	next := s.waitingFor(g.Name)
	if next != nil {
		ops = append(ops, clientv3.OpGet(s.lay.entries(g.Name), append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())...))
	}
	resp, err := s.send.Txn(ctx).If(same).Then(ops...).Commit()
	if err != nil {
		return unknown(ctx, err)
	}
	s.forget(a)
	if !resp.Succeeded {
		return errNotHeld
	}
	if next != nil {
		if kvs := resp.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 && string(kvs[0].Key) == next.key && kvs[0].CreateRevision == next.rev.Load() {
			// This deletion has made next the first entry, so next need not wait for its watch.
			next.wake(resp.Header.Revision)
		}
	}
	return nil
}

// keepEntry moves the entry of a released grant to a lease of its own, which is not renewed. The
// transaction has the condition same.
func (s *store) keepEntry(ctx context.Context, a *request, same clientv3.Cmp, keep time.Duration) error {
	lease, err := s.send.Grant(ctx, int64((keep+time.Second-1)/time.Second))
	if err != nil {
		return unavailable(ctx, err) // the lease, if there is one, expires
	}
	rec := a.written
	rec.Kept = true
	resp, err := s.send.Txn(ctx).If(same).
		Then(clientv3.OpPut(a.key, rec.encode(), clientv3.WithLease(lease.ID))).Commit()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return unavailable(ctx, err) // the lease has expired meanwhile
	}
	if err != nil {
		return unknown(ctx, err)
	}
	s.forget(a)
	if !resp.Succeeded {
		_, _ = s.send.Revoke(ctx, lease.ID)
		return errNotHeld
	}
	s.endKept(lease.ID, keep)
	return nil
}

// endKept revokes the lease of a kept entry when keep has passed. The server ends the lease by itself, but a new
// leader gives every lease its whole TTL again. So without the revocation an entry would be kept for longer after
// each change of the leader. A request that a bad connection has lost must not delay the end for long, so each one has
// little time.
func (s *store) endKept(lease clientv3.LeaseID, keep time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls.Stopped() {
		return
	}
	s.kept[lease] = time.AfterFunc(keep, func() {
		s.mu.Lock()
		delete(s.kept, lease)
		s.mu.Unlock()
		s.calls.Go(func() {
			for pause := (backoff.Backoff{First: 100 * time.Millisecond, Max: time.Second}); ; {
				ctx, cancel := context.WithTimeout(s.calls.Ctx, time.Second)
				_, err := s.send.Revoke(ctx, lease)
				cancel()
				if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) || pause.Sleep(s.calls.Ctx) != nil {
					return
				}
			}
		})
	})
}

// Undo deletes the entry of a request, and ensures that none can appear.
func (s *store) Undo(ctx context.Context, r driver.Request) error {
	if s.calls.Stopped() {
		return errClosed
	}
	a := s.request(r.ID)
	if a == nil {
		return nil // nothing was sent, or etcd has answered
	}
	a.granted.Store(false)
	var full error // the error of a server without space
	for {
		// The key may belong to a later request once an undo was confirmed. A later undo finds
		// another epoch. A key with another lease is a grant that was released and kept.
		ours := clientv3.Compare(clientv3.LeaseValue(a.key), "=", a.e.lease)
		ops := []clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{ours}, []clientv3.Op{clientv3.OpDelete(a.key)}, nil)}
		if full == nil {
			ops = append(ops, clientv3.OpPut(a.epochKey(), "", clientv3.WithLease(a.e.lease)))
		}
		notUndone, epoch := a.notUndone()
		resp, err := s.send.Txn(ctx).If(notUndone).Then(ops...).Else(a.readEpoch()).Commit()
		switch {
		case errors.Is(err, rpctypes.ErrNoSpace) && full == nil:
			// The write of the epoch needs space, and the deletion of the entry does not: delete
			// the entry alone.
			full = err
			continue
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			// The entries of the lease are gone, and no transaction that names the lease can be
			// applied.
			a.e.end(errLeaseEnded)
		case err != nil:
			return unknown(ctx, err)
		case !resp.Succeeded:
			if a.learnEpoch(epoch, resp.Responses[0]) == nil {
				continue
			}
			a.e.end(errLeaseEnded)
		case full != nil:
			return unknown(ctx, full)
		default:
			a.raiseEpoch(resp.Header.Revision)
		}
		s.forget(a)
		return nil
	}
}

// Renew sends one keepalive for each lease, and reads through the quorum whether the entries
// exist.
func (s *store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	closed := s.calls.Stopped()
	var entries []*request
	var index []int                     // the index in grants of each entry
	keepalives := map[*session]*error{} // the outcome of each session's keepalive
	for i, g := range grants {
		a := s.requestOf(g)
		switch {
		case closed:
			answers[i].Err = errClosed
		case a == nil || s.request(g.ID) != a:
			answers[i].Err = errNotHeld
		default:
			entries, index = append(entries, a), append(index, i)
			if keepalives[a.e] == nil {
				keepalives[a.e] = new(error)
			}
		}
	}
	if len(entries) == 0 {
		return answers
	}
	var renewing sync.WaitGroup
	for e, err := range keepalives {
		// Concurrent batches of one lease share a keepalive.
		renewing.Go(func() { *err = e.renewIfOlder(ctx, e.ttl/64) })
	}
	found := s.readEntries(ctx, entries)
	renewing.Wait()
	for n, a := range entries {
		r := &answers[index[n]]
		switch renewErr := *keepalives[a.e]; {
		case a.e.leaseEnded():
			r.Err, r.Cause = errLeaseEnded, driver.CauseSessionEnded
		case found[n].err == nil && !found[n].exists:
			r.Err, r.Cause = errDeleted, driver.CauseTaken
		case renewErr != nil:
			r.Err = unavailable(ctx, renewErr)
		case found[n].err != nil:
			r.Err = unavailable(ctx, found[n].err)
		default:
			r.SentAt, r.TTL = a.e.validity()
		}
	}
	return answers
}

const (
	// perTxn is the number of operations of one transaction: servers allow 128 unless configured
	// otherwise.
	perTxn = 100
	// readsAtOnce is the number of concurrent requests of one read: over a slow link, one after another
	// would take longer than a TTL.
	readsAtOnce = 16
)

// entryState is what a read has shown about an entry.
type entryState struct {
	exists bool
	err    error
}

// readEntries reads through the quorum which entries exist. A transaction that fails does not affect
// the answers of the others.
func (s *store) readEntries(ctx context.Context, entries []*request) []entryState {
	found := make([]entryState, len(entries))
	gather.Each((len(entries)+perTxn-1)/perTxn, readsAtOnce, func(n int) {
		part, answers := entries[n*perTxn:min((n+1)*perTxn, len(entries))], found[n*perTxn:]
		ops := make([]clientv3.Op, len(part))
		for i, a := range part {
			ops[i] = clientv3.OpGet(a.key, clientv3.WithKeysOnly())
		}
		resp, err := s.send.Txn(ctx).Then(ops...).Commit()
		for i, a := range part {
			if err != nil {
				answers[i].err = err
				continue
			}
			kvs := resp.Responses[i].GetResponseRange().Kvs
			answers[i].exists = len(kvs) == 1 && kvs[0].CreateRevision == a.rev.Load()
		}
	})
	return found
}
