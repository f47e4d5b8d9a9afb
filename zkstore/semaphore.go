package zkstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// passTime is how long a try for a permit waits for other requests to pass the mutex. A request passes in two round
// trips, or when its answer was lost, after its client has connected again.
const passTime = time.Second

// acquirePermit acquires a permit. A try does not wait for a permit, but for those that pass the mutex before it.
func (ss *session) acquirePermit(ctx context.Context, r driver.Request, o *release) (driver.Grant, error) {
	pause := backoff.Backoff{First: 5 * time.Millisecond, Max: 100 * time.Millisecond}
	for began := time.Now(); ; {
		g, passing, err := ss.enterPermit(ctx, r, o)
		if !passing || time.Since(began) > passTime || pause.Sleep(ctx) != nil {
			return g, err
		}
	}
}

// enterPermit follows Curator's InterProcessSemaphoreV2. Clients queue for a mutex, the
// directory "locks". Its holder creates a node in the directory "leases", waits until its node
// is one of the first n, and releases the mutex. The lease node is the grant. passing: a try
// found a permit, and another request at the mutex.
func (ss *session) enterPermit(ctx context.Context, r driver.Request, o *release) (
	g driver.Grant, passing bool, err error) {
	base := ss.s.dir(r.Name)
	queue, leases := base+ss.s.recipe.queue, base+ss.s.recipe.leases
	if !r.Wait {
		if err := ss.refuseIfFull(ctx, queue, leases, r.Limit); err != nil {
			return driver.Grant{}, false, err
		}
	}
	data := ss.data(r)
	mutex, names, err := ss.enter(ctx, r, queue, markMutex, data, o)
	if mutex == nil {
		return driver.Grant{}, false, err
	}
	queued := false
	if err == nil {
		err = mutex.awaitGrant(ctx, names, &queued)
	}
	if err != nil {
		err = mutex.failed(ctx, err)
		return driver.Grant{}, !r.Wait && driver.CodeOf(err) == driver.CodeBusy, err
	}
	data = ss.data(r)
	lease, names, err := ss.enter(ctx, r, leases, markLease, data, nil)
	if err == nil {
		err = lease.awaitGrant(ctx, names, &queued)
	}
	if err != nil {
		return driver.Grant{}, false, ss.withdrawBoth(ctx, lease, mutex, err)
	}
	g, err = lease.granted(ctx)
	if err != nil {
		return driver.Grant{}, false, ss.withdrawBoth(ctx, nil, mutex, err)
	}
	ss.releaseMutex(mutex)
	return g, false, nil
}

// errLeaseDeleted is the error of a lease that another client has deleted.
var errLeaseDeleted = driver.Errorf(driver.CodeUnavailable, "another client has deleted the lease that was waited for")

// withdrawBoth withdraws both nodes. If one withdrawal has an unknown outcome, so has the request.
func (ss *session) withdrawBoth(ctx context.Context, lease, mutex *entry, err error) error {
	if lease != nil {
		err = lease.failed(ctx, err)
	}
	if err == errDeleted {
		err = errLeaseDeleted // the node of the mutex may still exist
	}
	if last := mutex.failed(ctx, err); driver.CodeOf(last) == driver.CodeUnknown || last == errSessionExpired {
		return last
	}
	return err
}

// releaseMutex releases the mutex after the grant. In the background it repeats the deletion
// until the server confirms it or the session has ended.
func (ss *session) releaseMutex(mutex *entry) {
	mutex.unregister()
	del := zk.Delete(mutex.path, -1)
	soon, cancel := context.WithTimeout(context.WithoutCancel(ss.s.calls.Ctx), cleanupTimeout)
	err := ss.zk.Send(soon, del)
	cancel()
	ss.s.calls.Go(func() { // after Close the session ends, and the mutex with it
		defer ss.wakeWaiters(mutex.dir, mutex.path, nil)
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
		_ = ss.remove(ss.s.calls.Ctx, mutex.path)
	})
}

// refuseIfFull returns an error if no permit is free. It writes nothing, so a request that
// does not wait costs other clients nothing.
func (ss *session) refuseIfFull(ctx context.Context, queue, leases string, limit int) error {
	waiting, err := ss.nodes(ctx, queue, mutexNode)
	var held []node
	if err == nil {
		held, err = ss.nodes(ctx, leases, ss.s.recipe.reader(leases, limit))
	}
	if err != nil {
		return ss.readFailed(err)
	}
	if len(withoutGranted(waiting, held))+len(held) < limit { // there is a permit for each node in the queue, too
		return nil
	}
	return ss.busy(ctx, leases, held)
}

// inspectSemaphore returns the leases as holders and the mutex's queue as waiters. The nodes of
// holdfast contain the number of permits. Without such a node, the number of leases is the limit.
func (ss *session) inspectSemaphore(ctx context.Context, dir string) ([]driver.Holder, []driver.Waiter, error) {
	queue, leases := dir+ss.s.recipe.queue, dir+ss.s.recipe.leases
	waiting, err := ss.nodes(ctx, queue, mutexNode)
	if err != nil {
		return nil, nil, err
	}
	held, err := ss.nodes(ctx, leases, ss.s.recipe.reader(leases, driver.Unlimited))
	if err == nil {
		held, err = ss.withLimit(ctx, leases, held)
	}
	if err != nil {
		return nil, nil, err
	}
	held = held[:countGrants(held)]
	holders, _, err := ss.describe(ctx, leases, held, len(held))
	if err != nil {
		return nil, nil, err
	}
	_, waiters, err := ss.describe(ctx, queue, withoutGranted(waiting, held), 0)
	return holders, waiters, err
}

// withoutGranted removes the holders whose release of the mutex is under way: they are no waiters.
func withoutGranted(waiting, held []node) []node {
	return slices.DeleteFunc(waiting, func(w node) bool {
		return slices.ContainsFunc(held, func(h node) bool { return sameRequest(w.name, h.name) })
	})
}

// withLimit reads the limit of a semaphore from the data of its leases, and sets it in held.
func (ss *session) withLimit(ctx context.Context, leases string, held []node) ([]node, error) {
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
	for i, c := range calls {
		if c.Err != nil && !errors.Is(c.Err, zk.ErrNoNode) {
			return nil, c.Err
		}
		if c.Err == nil {
			if h, _ := decodeOwner(held[i].name, c.Data, c.Stat); h.Limit <= driver.MaxLimit {
				limit = max(limit, h.Limit)
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
