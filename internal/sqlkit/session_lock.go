package sqlkit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// Acquire requests a grant on a session of its own.
func (e *Sessions) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ttl, invalid := e.recipe.Check(&r)
	if err := e.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer e.Leave()
	if invalid != nil {
		return driver.Grant{}, invalid
	}
	if r.Wait { // Close closes the session of a request that does not wait
		var end func()
		ctx, end = e.Bind(ctx)
		defer end()
	}
	for tries := 1; ; tries++ {
		if err := cmp.Or(ctx.Err(), e.Ctx.Err()); err != nil {
			return driver.Grant{}, e.closedOr(&driver.Error{Code: driver.CodeWithdrawn, Err: err})
		}
		g, err := e.acquire(ctx, r, ttl)
		if err == nil {
			return g, nil
		}
		if _, again := errors.AsType[*againError](err); again {
			if backoff.Yield(ctx, tries) == nil && (r.Wait || tries < maxTries) {
				continue
			}
			err = driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
		if driver.CodeOf(err) == driver.CodeUnavailable && ctx.Err() != nil {
			err = &driver.Error{Code: driver.CodeWithdrawn, Err: err}
		}
		// Close has ended the session of a request that can no longer be undone.
		return driver.Grant{}, e.closedOr(err)
	}
}

// maxTries limits the tries of a request that does not wait.
const maxTries = 10

// againError is an error after which the request is tried again, for example that of the victim of a
// deadlock.
type againError struct{ error }

func (e *againError) Unwrap() error { return e.error }

// closedOr returns calls.ErrClosed instead of err if the engine was closed.
func (e *Sessions) closedOr(err error) error {
	if e.Ctx.Err() != nil {
		return calls.ErrClosed
	}
	return err
}

// acquire makes one try to get the grant, on a session of its own.
func (e *Sessions) acquire(ctx context.Context, r driver.Request, ttl time.Duration) (driver.Grant, error) {
	s, err := e.take(ctx, &r)
	if err != nil {
		return driver.Grant{}, err
	}
	l := e.newLease(s, r, ttl)
	l.since = time.Now()
	var w *wait
	if r.Wait {
		w = &wait{e: e, l: l, ctx: ctx}
		w.watching, w.over = context.WithCancel(ctx)
	}
	e.mu.Lock()
	if e.Stopped() {
		e.mu.Unlock()
		e.drop(s)
		return driver.Grant{}, calls.ErrClosed
	}
	e.leases[r.ID], s.lease = l, l
	if r.Wait {
		l.wait, l.due = w, l.since.Add(recordAfter)
		e.visit(l)
	}
	e.mu.Unlock()

	var got Got
	sent := driver.Now()
	if r.Wait {
		got, err = w.lock()
	} else {
		got, err = e.recipe.Lock(ctx, s, &l.request)
	}
	switch {
	case err == error(ErrBusy):
		return driver.Grant{}, e.busy(ctx, l)
	case ctx.Err() != nil && err == nil: // the session is alive, and has the lock
		err = e.undoLock(ctx, l)
		e.drop(s)
		if err != nil {
			return driver.Grant{}, err
		}
		e.forget(l)
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: ctx.Err()}
	case ctx.Err() != nil && r.Wait:
		return driver.Grant{}, e.withdraw(ctx, l, &driver.Error{Code: driver.CodeWithdrawn, Err: ctx.Err()})
	case err != nil:
		return driver.Grant{}, e.failed(ctx, l, err)
	}
	l.set(got)
	if r.Wait && w.waited.Load() {
		// The owner may have changed since the statement that waited was sent.
		l.request.Owner = r.From.Owner()
		l.request.Label.Owner = l.request.Owner
		// The validity runs from a statement that was sent after the wait.
		sent = driver.Now()
		if err := e.confirm(ctx, l); err != nil {
			return driver.Grant{}, err
		}
	}
	return e.grant(l, sent)
}

// busy ends a request for a lock that is held. Its error names the holders, unless the request is
// only the first try.
func (e *Sessions) busy(ctx context.Context, l *lease) error {
	busy := &driver.BusyError{}
	if !l.request.First {
		sights, _, err := e.recipe.Survey(ctx, l.s, l.request.Key, false)
		if err != nil {
			e.drop(l.s) // the session has no lock and no pending statement
			e.forget(l)
			return busy
		}
		busy.Holders = e.state(l.request.Name, sights).Holders
	}
	e.forget(l)
	e.put(l.s)
	return busy
}

// withdraw ends the session of a request, which may wait for the lock or have it, and returns outcome. If the server
// does not confirm that in time, the outcome is unknown. It does so also while the engine is being closed: a server may
// not notice that the connection of a waiter is closed.
func (e *Sessions) withdraw(ctx context.Context, l *lease, outcome error) error {
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	if err := e.finishOn(brief, l, nil); err != nil {
		return e.unknown(l, err)
	}
	return outcome
}

// undoLock releases the lock of a request that has failed, or ends its session if that does not answer.
func (e *Sessions) undoLock(ctx context.Context, l *lease) error {
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	if unlocked, err := e.recipe.Unlock(brief, l.s, &l.request); unlocked && err == nil {
		return nil
	}
	return e.withdraw(ctx, l, nil)
}

// newLease returns a locked lease for a request.
func (e *Sessions) newLease(s *Session, r driver.Request, ttl time.Duration) *lease {
	l := &lease{s: s, from: r.From, busy: make(chan struct{}, 1)}
	l.busy <- struct{}{}
	l.request = LockRequest{Request: r, Key: slices.Concat(e.prefix, []byte(r.Name)), TTL: ttl, Left: ttl, Owner: r.From.Owner(), Slot: driver.NoSlot, Durable: e.Durable}
	l.request.Label = Label{Key: l.request.Key, Owner: l.request.Owner, Limit: r.Limit, TTL: ttl}
	l.request.Tokens = tokens(&r)
	return l
}

// set sets what a recipe has granted.
func (l *lease) set(got Got) {
	l.request.Token, l.request.Reserved, l.request.Slot = got.Token, got.Tokens, got.Slot
	l.request.Label.Tokens, l.request.Label.Waited = got.Tokens, 0
}

// confirm returns an error unless a ping proves that the session has the lock that it waited for.
// The timeout is at most the TTL, since a later grant would be useless.
func (e *Sessions) confirm(ctx context.Context, l *lease) error {
	ctx, cancel := context.WithTimeout(ctx, min(l.request.TTL, AnswerWithin))
	defer cancel()
	held, err := e.recipe.Ping(ctx, l.s, &l.request)
	if err == nil && held {
		return nil
	}
	e.drop(l.s)
	if errors.Is(err, ErrReadOnly) {
		e.demoted(l.s.ID.Server)
	}
	return e.unknown(l, err)
}

// grant returns the grant of a lease whose session has the lock. sent is the time at which the client
// sent the statement that proves it. grant unlocks the lease.
func (e *Sessions) grant(l *lease, sent driver.Instant) (driver.Grant, error) {
	e.mu.Lock()
	if e.Stopped() {
		// Close does not close a session that waits. The call does, here.
		e.mu.Unlock()
		e.drop(l.s)
		return driver.Grant{}, e.unknown(l, errors.New("the store was closed meanwhile"))
	}
	l.granted, l.since, l.sent = true, time.Now(), sent
	l.due = l.since.Add(recordAfter)
	if l.heldSince.IsZero() {
		l.heldSince = l.since
	}
	e.visit(l)
	if !e.proving && (l.s.Gone() == nil || l.s.ID.Server != "") {
		e.proving = true
		e.Tasks.Go(e.prove)
	}
	e.mu.Unlock()
	l.unlock()
	if ended(l.s.Link) {
		// The session ended before the grant, when the goroutine that watches it found no
		// grant to report.
		e.Tasks.Go(func() { e.connectionEnded(l.s) })
	}
	r := &l.request.Request
	return driver.Grant{ID: r.ID, Name: r.Name, Limit: r.Limit, Token: l.request.Token, Tokens: l.request.Reserved, SentAt: sent, TTL: l.request.TTL, Slot: l.request.Slot}, nil
}

// failed returns the error of a Lock. Its code depends on what may be left at the server.
func (e *Sessions) failed(ctx context.Context, l *lease, err error) error {
	coded, retry := e.recipe.Sort(err)
	_, locked := errors.AsType[*lockedError](err)
	if locked {
		if unended := e.undoLock(ctx, l); unended != nil {
			// Neither error is wrapped: an error of a link does not prove the state of the lock.
			return driver.Errorf(driver.CodeUnknown, "%v, and the server has not confirmed that the lock is given back: %v", err, unended)
		}
		if !retry && driver.CodeOf(coded) == driver.CodeUnknown { // the end of the session makes the outcome known
			coded = driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
	}
	e.drop(l.s)
	switch {
	case unsent(err) && l.request.Label.Waited == 0:
		e.forget(l)
		return &againError{err} // the idle session had ended
	case errors.Is(coded, ErrReadOnly):
		e.forget(l)
		e.demoted(l.s.ID.Server)
		return &againError{err} // on a new connection, which may lead to another server
	case retry:
		e.forget(l)
		return &againError{err}
	case driver.CodeOf(coded) == driver.CodeUnknown:
		return e.unknown(l, err)
	}
	e.forget(l)
	return coded
}

// unknown returns an error with CodeUnknown, after which Undo ends the session of the
// request.
func (e *Sessions) unknown(l *lease, err error) error {
	e.mu.Lock()
	l.closed = true
	e.mu.Unlock()
	if err == nil {
		err = errors.New("the session has ended")
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}
}

// forget ends a request that has left nothing at the server.
func (e *Sessions) forget(l *lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leases[l.request.ID] == l {
		delete(e.leases, l.request.ID)
	}
	if l.s.lease == l {
		l.s.lease = nil
	}
	l.granted = false
}

// wait runs a Lock that may block, and the goroutine beside it.
type wait struct {
	e *Sessions
	l *lease
	// ctx is the context of the request, and watching that of watch. It ends when Lock has returned.
	ctx, watching context.Context
	over          func() // ends watching

	waited atomic.Bool // the server has confirmed that the request is in its queue
	polls  atomic.Bool // no statement waits
	beside sync.WaitGroup
}

// lock calls the recipe's Lock, which may block in the server. After recordAfter another
// goroutine watches the wait.
func (w *wait) lock() (got Got, err error) {
	w.l.request.Waiting = func() {
		w.waited.Store(true)
		w.polls.Store(true)
	}
	for {
		got, err = w.e.recipe.Lock(w.ctx, w.l.s, &w.l.request)
		if err != ErrWaitAgain || w.ctx.Err() != nil {
			break
		}
		w.waited.Store(true)
		w.l.request.Label.Waited = time.Since(w.l.since)
	}
	w.e.mu.Lock()
	w.l.wait = nil
	w.e.mu.Unlock()
	w.over()
	w.beside.Wait()
	return got, err
}

// watch searches the server's queue until it finds the request. If the user has no right to see the queue, the server
// is alive and has not answered the request yet, so the request waits. From then on watch reports the present holders,
// and closes the session if it runs no statement, twice. The answer of the statement that waited is lost then: a proxy
// may have dropped the connection, and continue to answer the probes of TCP.
func (w *wait) watch() {
	defer w.beside.Done()
	poll := backoff.Backoff{First: time.Millisecond, Max: 100 * time.Millisecond}
	for {
		sights, refused, _ := w.survey()
		if w.watching.Err() != nil {
			return
		}
		if refused || w.polls.Load() || slices.ContainsFunc(sights, func(s Sight) bool { return s.Conn == w.l.s.ID.Conn && !s.Granted }) {
			w.waited.Store(true)
			w.report(sights)
			w.announce()
			break
		}
		if poll.Sleep(w.watching) != nil {
			return
		}
	}
	pause, silent := watchEvery, false
	for turn := 1; backoff.Sleep(w.watching, pause) == nil; turn++ {
		if turn%reportEach == 0 {
			if sights, _, err := w.survey(); err == nil && w.watching.Err() == nil {
				w.report(sights)
			}
		}
		if w.polls.Load() {
			continue
		}
		runs, err := w.runs()
		if err == nil && !runs && silent {
			w.l.s.Close()
			return
		}
		pause, silent = watchEvery, err == nil && !runs
		if silent || err != nil {
			pause = watchAgain
		}
	}
}

// report reports that the request is queued, and the holders.
func (w *wait) report(sights []Sight) {
	w.l.from.Queued(w.e.state(w.l.request.Name, sights).Holders)
}

// Announcer is a recipe that can notify the clients that watch a key for waiters.
type Announcer interface {
	// Announce notifies these clients, if there are any, that a request waits. It uses another link.
	Announce(ctx context.Context, side Link, key []byte) error
}

// announce notifies the clients that watch the name. They also read the state once a second, so an error does not matter.
// It ends with the wait, so that a grant does not wait for another link.
func (w *wait) announce() {
	r, ok := w.e.recipe.(Announcer)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(w.watching, cancelTimeout)
	defer cancel()
	_ = w.e.withSideLink(ctx, func(side Link) error { return r.Announce(ctx, side, w.l.request.Key) })
}

// runs reports whether the session runs a statement.
func (w *wait) runs() (runs bool, err error) {
	ctx, cancel := context.WithTimeout(w.ctx, cancelTimeout)
	defer cancel()
	err = w.e.withSideLink(ctx, func(side Link) error {
		runs, err = w.e.recipe.Runs(ctx, side, w.l.s.ID)
		return err
	})
	return runs, err
}

// survey searches the server's queue. refused reports that the server has refused the search. The error of
// a read-only server does not count, and that of a new connection does not either. They may come from
// another server, while the session's server is silent.
func (w *wait) survey() (sights []Sight, refused bool, err error) {
	ctx, cancel := context.WithTimeout(w.ctx, cancelTimeout)
	defer cancel()
	err = w.e.withSideLink(ctx, func(side Link) error {
		sights, _, err = w.e.recipe.Survey(ctx, side, w.l.request.Key, false)
		coded, _ := w.e.recipe.Sort(err)
		refused = driver.CodeOf(coded) == driver.CodeRefused && !errors.Is(coded, ErrReadOnly)
		return err
	})
	return sights, refused, err
}

// withSideLink calls f with a link that no session uses.
func (e *Sessions) withSideLink(ctx context.Context, f func(Link) error) error {
	return e.side.use(ctx, func(l Link) error { return orReadOnly(e.recipe, f(l)) })
}
