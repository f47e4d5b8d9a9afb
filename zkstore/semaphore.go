package zkstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// acquirePermit is Curator's InterProcessSemaphoreV2. The client that has the mutex below locks
// creates a node below leases, waits until it is one of the first n there, and releases the
// mutex. The queue is the mutex's, and the grant is the lease.
func (ss *session) acquirePermit(ctx context.Context, r driver.Request, o *release) (driver.Grant, error) {
	base := ss.s.dir(r.Name)
	queue, leases := base+ss.s.recipe.queue, base+ss.s.recipe.leases
	if !r.Wait {
		if err := ss.lookForPermit(ctx, queue, leases, r.Limit); err != nil {
			return driver.Grant{}, err
		}
	}
	data := encodeOwner(r.From.Owner(), ss.ttl, r.Limit)
	turn, names, err := ss.enter(ctx, r, queue, markMutex, data, o)
	if turn == nil {
		return driver.Grant{}, err
	}
	queued := false
	if err == nil {
		err = turn.stand(ctx, names, &queued)
	}
	if err != nil {
		return driver.Grant{}, turn.failed(ctx, err)
	}
	data = encodeOwner(r.From.Owner(), ss.ttl, r.Limit)
	lease, names, err := ss.enter(ctx, r, leases, markLease, data, nil)
	if err == nil {
		err = lease.stand(ctx, names, &queued)
	}
	if err != nil {
		return driver.Grant{}, ss.giveUp(ctx, lease, turn, err)
	}
	g, err := lease.granted(ctx)
	if err != nil {
		return driver.Grant{}, ss.giveUp(ctx, nil, turn, err)
	}
	ss.pass(turn)
	return g, nil
}

// errLeaseDeleted is the error of a lease that another client has deleted.
var errLeaseDeleted = driver.Errorf(driver.CodeUnavailable, "another client has deleted the lease that was waited for")

// giveUp withdraws both nodes. If the outcome of one is unknown, that of the request is.
func (ss *session) giveUp(ctx context.Context, lease, turn *entry, err error) error {
	if lease != nil {
		err = lease.failed(ctx, err)
	}
	if err == errDeleted {
		err = errLeaseDeleted // the node of the mutex may still exist
	}
	if last := turn.failed(ctx, err); driver.CodeOf(last) == driver.CodeUnknown || last == errOver {
		return last
	}
	return err
}

// pass releases the mutex after the grant, in the background, until the server confirms it or
// the session is over.
func (ss *session) pass(turn *entry) {
	unwatched := turn.unregister()
	del := zk.Delete(turn.path, -1)
	calls := []*zk.Call{del}
	for _, path := range unwatched {
		calls = append(calls, zk.RemoveWatches(path, zk.WatchData))
	}
	soon, cancel := ss.s.cleanupContext(ss.s.end)
	err := ss.zk.Send(soon, calls...)
	cancel()
	ss.unwatched(unwatched)
	ss.s.background.Go(func() {
		defer ss.gone(turn.dir, turn.path, nil)
		for {
			if err == nil {
				select {
				case <-del.Done():
				case <-ss.over:
					return
				}
				if _, lost := del.Err.(*zk.LostError); !lost {
					return
				}
			}
			if ss.zk.Ended() != nil || ss.s.end.Err() != nil {
				return
			}
			del = zk.Delete(turn.path, -1)
			trying, cancel := context.WithTimeout(ss.s.end, time.Second)
			err = ss.zk.Send(trying, del)
			cancel()
		}
	})
}

// lookForPermit is for a request that does not wait: if no permit is free it writes nothing.
func (ss *session) lookForPermit(ctx context.Context, queue, leases string, limit int) error {
	waiting, err := ss.nodes(ctx, queue, mutexNode)
	var held []node
	if err == nil {
		held, err = ss.nodes(ctx, leases, ss.s.recipe.reader(leases, limit))
	}
	if err != nil {
		return ss.readFailed(err)
	}
	if len(waiting) == 0 && len(held) < limit {
		return nil
	}
	return ss.busy(ctx, leases, held)
}

// inspectSemaphore returns the leases as holders and the mutex's queue as waiters. Only the
// nodes of holdfast show the number of permits; without one it is the number of leases.
func (ss *session) inspectSemaphore(ctx context.Context, name string) (driver.State, error) {
	st := driver.State{Name: name}
	base := ss.s.dir(name)
	queue, leases := base+ss.s.recipe.queue, base+ss.s.recipe.leases
	waiting, err := ss.nodes(ctx, queue, mutexNode)
	var held []node
	if err == nil {
		held, err = ss.nodes(ctx, leases, ss.s.recipe.reader(leases, driver.Unlimited))
	}
	if err == nil {
		held, err = ss.permits(ctx, leases, held)
	}
	if err == nil {
		st.Holders, _, err = ss.describe(ctx, leases, held[:holding(held)])
	}
	if err == nil {
		// The turn of a holder at the mutex may not be over yet.
		waiting = slices.DeleteFunc(waiting, func(w node) bool {
			return slices.ContainsFunc(held[:holding(held)], func(h node) bool {
				return len(w.name) >= 40 && strings.HasPrefix(h.name, w.name[:40])
			})
		})
		for i := range waiting {
			waiting[i].limit = driver.Exclusive
		}
		var first []driver.Holder
		first, st.Waiters, err = ss.describe(ctx, queue, waiting)
		st.Waiters = append(asWaiters(first), st.Waiters...)
	}
	if err != nil {
		return driver.State{}, ss.s.fail(err)
	}
	slices.SortFunc(st.Holders, byToken)
	return st, nil
}

func asWaiters(all []driver.Holder) []driver.Waiter {
	var w []driver.Waiter
	for _, h := range all {
		w = append(w, driver.Waiter{Owner: h.Owner, Limit: h.Limit})
	}
	return w
}

// permits reads the limit of a semaphore from the data of its leases.
func (ss *session) permits(ctx context.Context, leases string, held []node) ([]node, error) {
	if len(held) == 0 {
		return nil, nil
	}
	calls := make([]*zk.Call, len(held))
	for i, n := range held {
		calls[i] = zk.Get(leases+"/"+n.name, false)
	}
	if err := ss.zk.Do(ctx, calls...); err != nil {
		return nil, err
	}
	limit := 0
	for _, c := range calls {
		if c.Err != nil && !errors.Is(c.Err, zk.ErrNoNode) {
			return nil, c.Err
		}
		if c.Err == nil {
			if _, _, n := owner(c.Data, c.Stat); n > 0 && n <= driver.MaxLimit {
				limit = max(limit, n)
			}
		}
	}
	if limit == 0 {
		limit = len(held)
	}
	for i := range held {
		held[i].limit = limit
	}
	return held, nil
}
