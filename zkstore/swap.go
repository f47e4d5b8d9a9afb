package zkstore

import (
	"context"
	"errors"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

var _ driver.Swapper = (*store)(nil)

// release is the release of a grant in the transaction that creates another request's first node. A
// nil release is none.
type release struct {
	g        *grant
	released func(error)
	reported bool // released was called
	// unanswered is set when an earlier transaction with this release had no answer.
	unanswered bool
	next       *entry // the grant was handed off to it
}

// Swap implements driver.Swapper: one transaction deletes the node of old and creates that of r.
func (s *store) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	if s.calls.Stopped() {
		return driver.Grant{}, errClosed()
	}
	g := s.grantOf(old)
	if g == nil {
		released(s.Release(ctx, old, 0))
		return s.Acquire(ctx, r)
	}
	o := &release{g: g, released: released}
	next, err := s.acquire(ctx, r, o)
	if !o.reported {
		unknown := err == nil || driver.CodeOf(err) == driver.CodeUnknown
		g.ss.mu.Lock()
		g.busy = false
		if !unknown && o.next == nil {
			g.ending = false // nothing of the release was applied: the grant can be renewed, and a loss is reported
		}
		g.ss.mu.Unlock()
		if unknown {
			o.report(s.fail(&zk.LostError{Err: errors.New("the release has no answer")}))
		}
	}
	return next, err
}

// report reports the outcome of the release.
func (o *release) report(err error) {
	o.reported = true
	o.released(err)
}

// pending reports whether the release still has to be made.
func (o *release) pending() bool { return o != nil && !o.reported }

// releaseAlone carries out the release in a transaction of its own.
func (o *release) releaseAlone(ctx context.Context) {
	o.report(o.g.ss.s.Release(ctx, o.g.Grant, 0))
}

// op returns the operation that deletes the node of the grant.
func (o *release) op() *zk.Call {
	ss := o.g.ss
	ss.mu.Lock()
	defer ss.mu.Unlock()
	o.g.ending, o.g.busy = true, true
	if o.next == nil {
		o.next = o.g.handOffLocked()
	}
	return zk.Delete(o.g.path, -1)
}

// done ends the release after the transaction was applied. names are the nodes of the directory dir
// after it, nil if they are unknown.
func (o *release) done(dir string, names []string) {
	g, ss := o.g, o.g.ss
	var err error
	ss.mu.Lock()
	g.busy = false
	if g.cause != "" {
		err = driver.NotHeld(g.Grant.Name, g.Grant.Token)
	}
	ss.forgetLocked(g)
	if names != nil && dir == g.dir {
		ss.wakeWaitersLocked(g.dir, g.path, names)
	}
	ss.mu.Unlock()
	o.report(err)
}

// readNext returns a read of the entry to which the grant was handed off. It returns nil if there is no
// such entry, or if the nodes of dir show it. (A semaphore has its queue and its leases in two
// directories.)
func (o *release) readNext(dir string) *zk.Call {
	if o == nil || o.next == nil || o.next.dir == dir {
		return nil
	}
	return zk.Get(o.next.path, false)
}

// checkNext ends a grant that was handed off to an entry whose node has gone. names are the nodes of
// the directory dir after the create, nil if they are unknown. read is the read that the method
// readNext has returned.
func (o *release) checkNext(dir string, names []string, read *zk.Call) {
	switch {
	case o == nil || o.next == nil:
	case read != nil && errors.Is(read.Err, zk.ErrNoNode),
		read == nil && names != nil && dir == o.next.dir && !slices.Contains(names, o.next.node.name):
		o.next.revokeHandoff()
	}
}

// notFound reports the outcome of a release whose grant had no node any more. After a lost answer an
// earlier transaction of the same release may have deleted it.
func (o *release) notFound() {
	g, ss := o.g, o.g.ss
	ss.mu.Lock()
	g.busy = false
	ss.forgetLocked(g)
	ss.mu.Unlock()
	if o.unanswered {
		o.report(ss.s.fail(&zk.LostError{Err: driver.NotHeld(g.Grant.Name, g.Grant.Token)}))
	} else {
		o.report(driver.NotHeld(g.Grant.Name, g.Grant.Token))
	}
}
