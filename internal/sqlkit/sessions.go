package sqlkit

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Sessions is a store's engine that keeps each grant on a database session of its
// own.
//
// # Safety
//
// The database frees a lock when its session ends and not sooner, so a grant
// stands as long as its session does. Three things end one: this store, by Unlock or
// by closing it; the network or an operator; and the server's own timer for idle
// sessions, which is set to the TTL before or with the lock. The timer runs from the
// end of the session's last statement, which is later than that statement's send, so
// trust that runs from the send ends first. A renewal is a statement on the session
// itself. After a wait, a statement is sent that confirms the grant.
//
// A session carries one grant at most, and one request at a time, so that its end
// takes nothing else along, and no release waits behind a wait. Database locks are
// re-entrant within a session; two requests never share one.
//
// A request whose answer was lost had a session, which has a number at the server.
// Undo closes the connection and asks the server, on another, until the number is
// gone: then nothing of the request stands, and nothing of it can appear any more.
//
// A release whose session ends instead of answering may have come too late: the timer
// or an operator may have ended the session before, and another may have held the
// lock. It is answered CodeNotHeld once the timer could have run out, and Unknown before;
// the session is seen gone in either case, so that nobody is shut out.
//
// That a session has ended is seen by its connection's end, where this store has
// dialled; on a connection of a user's pool by a ping every half second. A connection
// lives on where its server becomes read-only because another one was promoted: one
// session of each server that has grants is pinged every half second, and when it finds
// the server demoted all others are. Such a ping is no renewal: it sets the server's timer
// to what is left of the TTL.
type Sessions struct {
	dial   func(context.Context) (Link, error)
	recipe Recipe
	prefix []byte
	side   *Pool // links for questions about sessions

	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	bounds Idle // of idle
	closed bool
	ticker *time.Ticker // of the goroutine that tends the sessions
	slow   bool
	looked map[string]time.Time // when a session of a server was last pinged for all
	idle   []*Session
	leases map[string]*lease // by request: granted, or of unknown outcome
	all    map[*Session]struct{}
}

// lease is a request that has a session, from its first statement to its end.
type lease struct {
	ask     Ask
	s       *Session
	from    driver.Requester
	wait    *wait          // while it waits
	asked   bool           // whether the wait stands in the server's queue
	pinged  bool           // soon after the grant
	sent    driver.Instant // of the last statement that confirmed the grant
	since   time.Time      // of the request, then of the grant
	looked  time.Time      // when it was last pinged for all of its server
	again   time.Time      // when it is pinged next to be written down, as that has failed
	granted bool           // and not lost, nor being released
	over    bool           // the session has been closed
	given   bool           // by this store, which has yet to see it gone
	ping    *ping          // a renewal on its way
	look    *ping          // a look on its way
	busy    chan struct{}  // holds one: who uses the session
	done    chan struct{}  // closed at its end
	doneOne sync.Once
}

// ping is a renewal on its way. It outlives the call that began it.
type ping struct {
	sent driver.Instant
	done chan struct{}
	ok   bool
	err  error
}

const (
	// tick is how often young sessions are looked at.
	tick = 10 * time.Millisecond
	// tellAfter is how long a grant stands before it is written down who holds it,
	// and a wait before the server is asked whether it stands in its queue. Most are
	// over by then.
	tellAfter = 20 * time.Millisecond
	// tellWithin bounds the wait of an inspection for those who have yet to do it.
	tellWithin = time.Second
	// recordAgain is how long after a failure it is written down who holds a grant.
	recordAgain = time.Second
	// busyWithin bounds the wait of a release for a ping that is on its way.
	busyWithin = 3 * time.Second
	// cancelWithin bounds the polite end of a wait.
	cancelWithin = time.Second
	// pingEvery bounds how late a loss is noticed that the connection does not show;
	// such sessions, and one of each server that can be demoted, are pinged twice as
	// often.
	pingEvery = time.Second
	lookAfter = pingEvery / 2
	// spareFor is how long a session is kept for the next lock.
	spareFor = 30 * time.Second
)

// NewSessions makes the engine. It keeps so many idle sessions; on a user's pool that is
// none.
func NewSessions(dial func(context.Context) (Link, error), recipe Recipe, idle Idle, namespace string) *Sessions {
	few := min(idle.Most, 2)
	e := &Sessions{dial: dial, recipe: recipe, prefix: NamePrefix(namespace), bounds: idle, side: NewPool(Idle{Least: few, Most: few}, dial),
		looked: map[string]time.Time{}, leases: map[string]*lease{}, all: map[*Session]struct{}{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// enter begins a call; the caller ends it with tasks.Done.
func (e *Sessions) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	e.tasks.Add(1)
	return nil
}

// take finds an idle session or begins one.
func (e *Sessions) take(ctx context.Context) (*Session, error) {
	e.mu.Lock()
	for len(e.idle) > 0 {
		s := e.idle[len(e.idle)-1]
		e.idle = e.idle[:len(e.idle)-1]
		if !ended(s.Link) {
			s.resting = time.Time{}
			e.mu.Unlock()
			return s, nil
		}
		delete(e.all, s)
		s.Close()
	}
	e.mu.Unlock()
	ctx, end := e.bound(ctx)
	defer end()
	l, err := e.dial(ctx)
	if err != nil {
		e.mu.Lock()
		e.bounds.dialled(err)
		e.mu.Unlock()
		return nil, err
	}
	id, err := e.recipe.Begin(ctx, l)
	if err != nil {
		l.Close()
		coded, _ := e.recipe.Sort(err)
		if driver.CodeOf(coded) == driver.CodeUnknown { // of a lock there was no word yet
			coded = driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
		return nil, coded
	}
	s := &Session{Link: l, ID: id}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		l.Close()
		return nil, ErrClosed
	}
	e.all[s] = struct{}{}
	if gone := l.Gone(); gone != nil {
		e.tasks.Go(func() {
			select {
			case <-gone:
				e.gone(s)
			case <-e.ctx.Done():
			}
		})
	}
	return s, nil
}

// put keeps a session for the next lock. It is in good order and has no grant.
func (e *Sessions) put(s *Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.idle) >= e.bounds.limit() || ended(s.Link) {
		delete(e.all, s)
		s.Close()
		return
	}
	s.resting = time.Now()
	e.idle = append(e.idle, s)
	e.tend()
}

// retire closes an idle session whose connection has ended.
func (e *Sessions) retire(s *Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.retireLocked(s)
}

func (e *Sessions) retireLocked(s *Session) {
	if i := slices.Index(e.idle, s); i >= 0 {
		e.idle = slices.Delete(e.idle, i, i+1)
		delete(e.all, s)
		s.Close()
	}
}

// tend has a goroutine see to the sessions, one for all, while there are any: mu is
// held. Timers of their own would cost a short lock more than anything else.
func (e *Sessions) tend() {
	switch {
	case e.closed:
	case e.ticker == nil:
		e.ticker = time.NewTicker(tick)
		t := e.ticker
		e.tasks.Go(func() { e.tendAll(t) })
	case e.slow:
		e.slow = false
		e.ticker.Reset(tick)
	}
}

func (e *Sessions) tendAll(t *time.Ticker) {
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-e.ctx.Done():
			return
		}
		if !e.tendOnce(time.Now()) {
			return
		}
	}
}

// tendOnce looks at every session once; false if there is none.
func (e *Sessions) tendOnce(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	if len(e.all) == 0 {
		e.ticker = nil
		return false
	}
	young := false // there is something to do soon
	for s := range e.all {
		l := s.lease
		switch {
		case !s.resting.IsZero():
			rested := now.Sub(s.resting)
			most := spareFor
			if len(e.idle) > e.bounds.Least {
				most = surplusFor
			}
			if s.TTL > 0 {
				most = min(most, s.TTL/2) // before the server's timer ends it
			}
			switch {
			case rested > most:
				e.retireLocked(s)
			case rested > tellAfter && s.Untold:
				e.restLocked(s)
			case rested > tellAfter:
				s.Watch()
			default:
				young = true
			}
		case l == nil || l.over:
		case now.Sub(l.since) < tellAfter:
			young = true
		case l.granted && !l.pinged:
			select {
			case l.busy <- struct{}{}:
			default:
				young = true // whoever is at it may be telling: at the next look
				continue
			}
			told := l.ask.Told
			l.ask.Record = true
			l.unlock()
			l.pinged = true
			if told {
				s.Watch()
			} else {
				e.pingLocked(l, false) // which has it watched
			}
		case l.granted && !l.again.IsZero():
			if now.After(l.again) {
				l.again = time.Time{}
				e.pingLocked(l, true)
			}
		case l.wait != nil && !l.asked:
			l.asked = true
			w := l.wait // which a grant takes away
			e.tasks.Go(func() { w.begin(func() { w.ask(w.ctx) }) })
		}
	}
	e.lookLocked(now)
	if !young && !e.slow {
		e.slow = true
		e.ticker.Reset(10 * tick)
	}
	return true
}

// restLocked has an idle session say that it holds nothing. Nobody can take it
// meanwhile.
func (e *Sessions) restLocked(s *Session) {
	r, ok := e.recipe.(Rester)
	i := slices.Index(e.idle, s)
	if !ok || i < 0 {
		return
	}
	e.idle = slices.Delete(e.idle, i, i+1)
	since := s.resting
	s.resting = time.Time{}
	e.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(e.ctx, cancelWithin)
		defer cancel()
		err := r.Rest(ctx, s)
		e.mu.Lock()
		defer e.mu.Unlock()
		if err != nil || e.closed || len(e.idle) >= e.bounds.limit() || ended(s.Link) {
			delete(e.all, s)
			s.Close()
			return
		}
		s.resting = since
		e.idle = slices.Insert(e.idle, 0, s)
	})
}

// drop closes a session.
func (e *Sessions) drop(s *Session) {
	e.mu.Lock()
	delete(e.all, s)
	e.mu.Unlock()
	s.Close()
}

// gone is told that a session's connection has ended.
func (e *Sessions) gone(s *Session) {
	e.mu.Lock()
	l := s.lease
	lost := l != nil && l.granted
	e.mu.Unlock()
	if !lost {
		e.retire(s)
		return
	}
	// Whoever uses the session finds out by itself and lets go.
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
	case <-l.done:
		return
	}
	cause, err := e.recipe.Cause(s, &l.ask, e.side)
	e.lose(l, cause, err)
}

// lose tells a holder that its session has ended. Only the first call counts.
func (e *Sessions) lose(l *lease, cause driver.Cause, err error) {
	e.mu.Lock()
	was := l.granted
	l.granted, l.over = false, true
	e.mu.Unlock()
	e.drop(l.s)
	if was {
		l.end()
		l.from.Lost(cause, err)
	}
}

func (l *lease) end() {
	l.doneOne.Do(func() {
		close(l.done)
	})
}

// lock is who may use the session; false if ctx ends first.
func (l *lease) lock(ctx context.Context) bool {
	select {
	case l.busy <- struct{}{}:
		return true
	default:
	}
	select {
	case l.busy <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *lease) unlock() { <-l.busy }

// Close ends every session of the store, and with it its grants and waits.
func (e *Sessions) Close(context.Context) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	e.idle = nil
	var held []*Session
	for s := range e.all {
		l := s.lease
		if l != nil && l.wait != nil && !l.over {
			continue // its call ends it, now that the store's context ends
		}
		if l != nil {
			l.granted, l.over = false, true
			l.end()
		}
		held = append(held, s)
	}
	e.mu.Unlock()
	e.cancel()
	for _, s := range held {
		s.Close()
	}
	e.tasks.Wait()
	e.side.Close()
	return nil
}
