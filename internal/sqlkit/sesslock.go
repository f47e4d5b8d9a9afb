package sqlkit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Acquire asks on a session of the request's own.
func (e *Sessions) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ttl, err := e.recipe.Check(&r)
	if err != nil {
		if cerr := e.enter(); cerr != nil {
			return driver.Grant{}, cerr
		}
		e.tasks.Done()
		return driver.Grant{}, err
	}
	if err := e.enter(); err != nil {
		return driver.Grant{}, err
	}
	defer e.tasks.Done()
	if r.Wait { // the end of the store ends a session that does not wait
		var end func()
		ctx, end = e.bound(ctx)
		defer end()
	}
	for tries := 1; ; tries++ {
		if err := cmp.Or(ctx.Err(), e.ctx.Err()); err != nil {
			return driver.Grant{}, e.closedOr(&driver.Error{Code: driver.CodeWithdrawn, Err: err})
		}
		g, err := e.acquire(ctx, r, ttl)
		if err == nil {
			return g, nil
		}
		// The victim of a deadlock, or a wait that the server has ended, asks again.
		if _, again := errors.AsType[*againError](err); again {
			if pause(ctx, tries) == nil && (r.Wait || tries < 10) {
				continue
			}
			err = driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
		code := driver.CodeOf(err)
		if code == driver.CodeUnavailable && ctx.Err() != nil {
			err = &driver.Error{Code: driver.CodeWithdrawn, Err: err}
		}
		// The session of a request that a closed store cannot undo is closed as well.
		return driver.Grant{}, e.closedOr(err)
	}
}

// againError is an answered no that is no answer to the question.
type againError struct{ error }

func (e *againError) Unwrap() error { return e.error }

// bound ends a call with the store.
func (e *Sessions) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

func (e *Sessions) closedOr(err error) error {
	if e.ctx.Err() != nil {
		return ErrClosed
	}
	return err
}

func (e *Sessions) acquire(ctx context.Context, r driver.Request, ttl time.Duration) (driver.Grant, error) {
	s, err := e.takeFor(ctx, r.Wait)
	if err != nil {
		return driver.Grant{}, err
	}
	l := &lease{s: s, from: r.From, busy: make(chan struct{}, 1), done: make(chan struct{})}
	l.busy <- struct{}{}
	l.ask = Ask{Request: r, Key: slices.Concat(e.prefix, []byte(r.Name)), TTL: ttl, Owner: r.From.Owner(), Slot: driver.NoSlot}
	l.ask.Label = Label{Key: l.ask.Key, Owner: l.ask.Owner, Limit: r.Limit, TTL: ttl}
	w := &wait{e: e, l: l, ctx: ctx}
	l.since = time.Now()
	if r.Wait {
		l.wait = w
	}
	e.mu.Lock()
	e.leases[r.ID] = l
	s.lease = l
	e.tend()
	e.mu.Unlock()

	var got Got
	sent := driver.Now()
	if r.Wait {
		got, err = w.lock(ctx)
	} else {
		got, err = e.recipe.Lock(ctx, s, &l.ask)
	}
	switch {
	case err == nil && ctx.Err() != nil:
		// Nobody wants it any more: what was got is given back.
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWithin)
		ok, uerr := e.recipe.Unlock(brief, s, &l.ask)
		cancel()
		e.drop(s)
		if uerr != nil || !ok {
			return driver.Grant{}, e.unknown(l, uerr)
		}
		e.forget(l)
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: ctx.Err()}
	case err == nil:
	case err == error(ErrBusy):
		e.forget(l)
		busy := &driver.BusyError{}
		if r.First {
			e.put(s)
			return driver.Grant{}, busy
		}
		if sights, _, err := e.recipe.Survey(ctx, s, l.ask.Key, false); err == nil {
			busy.Holders = e.state(r.Name, sights).Holders
			e.put(s)
		} else {
			e.drop(s) // it has no lock, and nothing of the request is on its way
		}
		return driver.Grant{}, busy
	default:
		return driver.Grant{}, e.failed(ctx, l, w, err)
	}
	l.ask.Token, l.ask.Slot = got.Token, got.Slot
	if w.waited {
		// The statement that waited told who asked then: this one tells who has it.
		l.ask.Owner = r.From.Owner()
		l.ask.Label.Owner = l.ask.Owner
		// Trust runs from a statement that was sent when the wait was over.
		sent = driver.Now()
		if ok, err := e.confirm(ctx, l); err != nil || !ok {
			e.drop(s)
			if errors.Is(err, ErrReadOnly) {
				e.demoted(s.ID.Server)
			}
			return driver.Grant{}, e.unknown(l, err)
		}
	}
	return e.grant(l, sent)
}

// takeFor is take, bounded where the request has no end of its own.
func (e *Sessions) takeFor(ctx context.Context, wait bool) (*Session, error) {
	if wait {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, AnswerWithin)
		defer cancel()
	}
	return e.take(ctx)
}

// confirm asks whether a session has what it waited for. Later than the TTL the answer
// would be of no use.
func (e *Sessions) confirm(ctx context.Context, l *lease) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, min(l.ask.TTL, AnswerWithin))
	defer cancel()
	return e.recipe.Ping(ctx, l.s, &l.ask)
}

func (e *Sessions) grant(l *lease, sent driver.Instant) (driver.Grant, error) {
	e.mu.Lock()
	if e.closed {
		// Close leaves a session that waits to its call, which is this one.
		e.mu.Unlock()
		e.drop(l.s)
		return driver.Grant{}, e.unknown(l, errors.New("the store was closed meanwhile"))
	}
	l.granted, l.wait, l.since, l.sent = true, nil, time.Now(), sent
	e.mu.Unlock()
	l.unlock()
	if gone := l.s.Gone(); gone == nil {
		e.tasks.Go(func() { e.watchByPing(l) })
	} else if ended(l.s.Link) {
		// It ended before it was granted, and whoever watches it looked too soon.
		e.tasks.Go(func() { e.gone(l.s) })
	}
	r := &l.ask.Request
	return driver.Grant{ID: r.ID, Name: r.Name, Limit: r.Limit, Token: l.ask.Token, SentAt: sent, TTL: l.ask.TTL, Slot: l.ask.Slot}, nil
}

// failed finds out what an error of Lock leaves behind.
func (e *Sessions) failed(ctx context.Context, l *lease, w *wait, err error) error {
	coded, again := e.recipe.Sort(err)
	cleared := false
	if w.cancelled {
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelWithin)
		cleared = e.recipe.Clear(brief, l.s) == nil
		cancel()
	}
	e.drop(l.s) // a cancel may still be on its way to it
	switch {
	case cleared:
		e.forget(l)
		return &driver.Error{Code: driver.CodeWithdrawn, Err: ctx.Err()}
	case unsent(err) && !w.cancelled:
		e.forget(l)
		return &againError{err} // an idle session had ended
	case w.cancelled:
		return e.unknown(l, err)
	case errors.Is(coded, ErrReadOnly):
		e.forget(l)
		e.demoted(l.s.ID.Server)
		return &againError{err} // on a new connection, which may lead to another server
	case again:
		e.forget(l)
		return &againError{err}
	case driver.CodeOf(coded) == driver.CodeUnknown:
		return e.unknown(l, err)
	}
	e.forget(l)
	return coded
}

// unknown leaves a request for Undo.
func (e *Sessions) unknown(l *lease, err error) error {
	e.mu.Lock()
	l.over = true
	e.mu.Unlock()
	if err == nil {
		err = errors.New("the session has ended")
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}
}

// forget ends a request of which nothing is left.
func (e *Sessions) forget(l *lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leases[l.ask.ID] == l {
		delete(e.leases, l.ask.ID)
	}
	if l.s.lease == l {
		l.s.lease = nil
	}
	l.granted = false
	l.end()
}

// wait is a Lock that may block, and what goes on beside it.
type wait struct {
	e *Sessions
	l *lease
	// ctx is the request's.
	ctx context.Context

	mu        sync.Mutex
	over      bool
	waited    bool // the server has said that it stands in its queue
	cancelled bool
	beside    sync.WaitGroup
}

// lock blocks in the server. Beside it, the server is asked after a while whether
// the request stands in the queue; at the end of ctx the statement is cancelled.
func (w *wait) lock(ctx context.Context) (Got, error) {
	statement, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	w.l.ask.Waiting = func() {
		w.mu.Lock()
		first := !w.waited
		w.waited = true
		w.mu.Unlock()
		if first {
			w.tell(ctx)
		}
	}
	stop := context.AfterFunc(ctx, func() { w.begin(func() { w.cancel(cut) }) })
	got, err := w.e.recipe.Lock(statement, w.l.s, &w.l.ask)
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	stop()
	w.beside.Wait()
	return got, err
}

// begin does something beside the wait, unless that is over.
func (w *wait) begin(f func()) {
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return
	}
	w.beside.Add(1)
	w.mu.Unlock()
	defer w.beside.Done()
	f()
}

func (w *wait) isOver() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

// ask looks for the request in the server's queue until it is there.
func (w *wait) ask(ctx context.Context) {
	for d := time.Millisecond; !w.isOver(); d = min(2*d, 100*time.Millisecond) {
		bounded, cancel := context.WithTimeout(ctx, cancelWithin)
		sights, err := w.survey(bounded)
		cancel()
		if err == nil {
			for _, s := range sights {
				if s.Conn == w.l.s.ID.Conn && !s.Granted && !w.isOver() {
					w.mu.Lock()
					w.waited = true
					w.mu.Unlock()
					w.l.from.Queued(w.e.state(w.l.ask.Name, sights).Holders)
					return
				}
			}
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return
		}
	}
}

// tell says who holds, to one who asks again and again.
func (w *wait) tell(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, cancelWithin)
	defer cancel()
	sights, _ := w.survey(bounded)
	w.l.from.Queued(w.e.state(w.l.ask.Name, sights).Holders)
}

func (w *wait) survey(ctx context.Context) (sights []Sight, err error) {
	err = w.e.aside(ctx, func(side Link) error {
		sights, _, err = w.e.recipe.Survey(ctx, side, w.l.ask.Key, false)
		return err
	})
	return sights, err
}

// cancel ends the statement as politely as it can. The session is not used again.
func (w *wait) cancel(cut func()) {
	w.mu.Lock()
	w.cancelled = true
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), cancelWithin)
	defer cancel()
	for d := time.Millisecond; ; d *= 2 {
		if w.isOver() {
			return
		}
		// It may come before the statement: again, then.
		err := w.e.aside(ctx, func(side Link) error { return w.e.recipe.Cancel(ctx, side, w.l.s.ID) })
		if err != nil {
			break
		}
		select {
		case <-time.After(d):
			continue
		case <-ctx.Done():
		}
		break
	}
	cut()
	w.l.s.Close()
}

// aside does something on a link of its own.
func (e *Sessions) aside(ctx context.Context, f func(Link) error) error {
	for {
		l, reused, err := e.side.Get(ctx)
		if err != nil {
			return err
		}
		if err = f(l); err == nil {
			e.side.Put(l)
			return nil
		}
		l.Close()
		if coded, _ := e.recipe.Sort(err); errors.Is(coded, ErrReadOnly) {
			e.side.Flush()
		} else if !unsent(err) {
			return err
		}
		if !reused || ctx.Err() != nil {
			return err
		}
	}
}
