package sqlkit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// Sessions is an engine that keeps each grant on a database session of its own.
//
// # Safety
//
// The database frees a lock when its session ends and not before, so a grant stands as long
// as its session. This client ends a session by closing it, and a grant by Unlock. The
// network or an operator may end a session, and so may the server's timer for idle
// sessions. The client sets this timer to the TTL before or with the lock. The timer runs
// from the end of the session's last statement. The validity runs from the send of that
// statement, so it ends first. A renewal is a statement on the session itself. After a
// wait, another statement confirms the grant.
//
// A session carries one grant at most and one request at a time. So its end frees nothing
// else, and no release is queued behind a wait. Database locks are re-entrant within a
// session; two requests never share one.
//
// A clock token is a reading of the server's clock while the session has the lock. A grant may
// have several tokens, for the holders to which its process hands it off. For these the recipe
// waits for as many microseconds and reads the clock again, before the answer and with the
// lock. The tokens are the microseconds from the first reading on and before the second one.
// Every earlier grant of the name has read the clock before the first reading. Every later one
// reads it after the second reading, whenever the session ends. So no other grant has a token
// between the two, and no row has to record the last token. If the clock is set back between
// them the grant has one token.
//
// A durable token is the new value of a committed counter. Several tokens of a grant are the
// last values above the old one, from the reading of the clock on.
//
// # A lock that is handed off
//
// Swap hands the lock of a session off to the next grant, if the recipe is a [Passer] and no other session
// waits for the lock. The session keeps the lock, and one statement makes the next grant of it. Exclusion
// holds because the lock does not change its session. Nothing uses the session meanwhile, and the statement
// proves, like a ping, that it still has the lock. Validity runs from the send of this statement, after which
// the timer starts anew.
//
// The tokens of the next grant are the last microseconds of the clock, as the statement reads
// it. They are larger than the tokens of the old grant. The session has had the lock since it
// read the clock for the old tokens. So no other grant has read the clock in between, and every
// later one reads it afterwards. If the clock was set back the lock is released.
//
// A session that waits announces itself to the holder until it has the lock. If the statement finds
// an announcement, the lock is released and the next request goes to the end of the server's queue.
// So no new grant overtakes a waiter that came before the statement. Programs that lock by hand
// announce nothing. For their sake a session hands a lock off for driver.HandoffTime at most, and
// then releases it.
//
// If the answer to a Swap is lost, its two halves end together. The session ends, as after any
// release without an answer, so that neither grant stands. The release has an unknown outcome, and
// the next request begins anew on another session.
//
// A request whose answer was lost had a session, which has an identity at the server. Undo
// closes the connection and waits, on another one, until that identity is gone. After that
// nothing of the request stands or can appear. A wait that is given up, and a request that has
// got the lock but no durable token, end in the same way.
//
// If a session ends before the answer to a release, the release may have been too late. The
// timer or an operator may have ended the session before, and another client may have held
// the lock. Release returns CodeNotHeld once the timer could have ended the session, and
// CodeUnknown before. In both cases the session has ended, so that no waiter is blocked.
//
// A connection may carry nothing any more and remain open. So the engine watches each session that waits, on another
// connection. It closes the session when the server has ended its statement and the answer has not come. If the session
// has got the lock, the server's timer ends it, or Undo does.
//
// The engine notices the end of a session by the end of its connection. On a connection of
// a user's pool, it notices the end by a ping every half second. A connection survives when
// its server becomes read-only because another one was promoted. So one session of each
// server with grants is pinged every half second, and if it finds the server demoted, all
// others are. Such a ping is no renewal: it sets the server's timer to the rest of the TTL.
type Sessions struct {
	// MaxConns returns how many sessions the engine may have, or 0 if there is no limit. Further requests wait in
	// the order in which they came. If MaxConns is nil, there is no limit.
	MaxConns func() int

	dial   func(context.Context) (Link, error)
	recipe Recipe
	prefix []byte
	side   *Pool         // links for statements about sessions
	lanes  chan struct{} // holds a value for each link of side in use

	*calls.Calls
	mu     sync.Mutex
	limits Idle                 // of idle
	ticker *time.Ticker         // of the goroutine that tends the sessions
	slow   bool                 // the ticker has the longer interval
	proved map[string]time.Time // by server: the last ping for all its sessions
	idle   []*Session
	opened int               // sessions that are being opened
	queue  []chan struct{}   // requests that wait for a session; each is closed when it shall look again
	leases map[string]*lease // by request: granted, or with an unknown outcome
	all    map[*Session]struct{}
}

// lease is a request that has a session, from its first statement to its end.
type lease struct {
	request   LockRequest
	s         *Session
	from      driver.Requester
	wait      *wait          // while it waits
	searched  bool           // the server's queue is searched for it
	sent      driver.Instant // of the last statement that confirmed the grant
	since     time.Time      // of the request, then of the grant
	heldSince time.Time      // of the first of the grants that the session has handed off
	proved    time.Time      // of the last ping for all sessions of the server
	recordAt  time.Time      // of the ping that records the holder, zero if none is due
	granted   bool           // and neither lost nor being released
	closed    bool           // the client has closed the session
	ending    bool           // finish has closed the session, and waits until the server has ended it
	renewal   *ping          // the present ping that renews the grant
	proof     *ping          // the present ping that proves the grant and does not renew it
	busy      chan struct{}  // a lock: holds one value while the session is in use
	done      chan struct{}  // closed at the end of the lease
	doneOnce  sync.Once
}

const (
	// tick is the interval at which young sessions are checked.
	tick = 10 * time.Millisecond
	// recordAfter is the age at which a grant is recorded, and at which the server's queue is
	// searched for a waiter. Most requests end before.
	recordAfter = 20 * time.Millisecond
	// VisibleAfter is the age from which an inspection shows a grant. It leaves time for the
	// record, which begins at recordAfter, and which takes longer on a slow link.
	VisibleAfter = 50 * time.Millisecond
	// breakTimeout is how long Break looks for a grant that may not be recorded yet. A failed
	// record may take most of it.
	breakTimeout = 3 * time.Second
	// recordAgain is the interval at which a failed record is tried again.
	recordAgain = time.Second
	// busyTimeout limits how long a release waits for a running ping.
	busyTimeout = 3 * time.Second
	// cancelTimeout limits how long a request waits for the end of its session at the server, and a watch for an answer.
	cancelTimeout = time.Second
	// watchEvery is the interval at which a wait is watched, and watchAgain that after a failure. Each time the engine
	// reads whether the statement still runs, and every reportEach times the holders, which costs the server more.
	watchEvery = 2 * time.Second
	watchAgain = 500 * time.Millisecond
	reportEach = 2
	// pingEvery limits how late a loss is noticed that the connection does not report.
	// Sessions without such a report, and one of each server that may be demoted, are
	// pinged at half of it.
	pingEvery  = time.Second
	proveAfter = pingEvery / 2
	// spareFor is how long an idle session is kept for the next lock.
	spareFor = 30 * time.Second
	// SideLinks limits the connections that a store with sessions uses beside them, for each of two purposes:
	// statements about sessions, and commits.
	SideLinks = 4
)

// NewSessions makes the engine. idle bounds its idle sessions: there are none on a user's
// pool.
func NewSessions(dial func(context.Context) (Link, error), recipe Recipe, idle Idle, namespace string) *Sessions {
	few := min(idle.Max, 2)
	e := &Sessions{dial: dial, recipe: recipe, prefix: NamePrefix(namespace), limits: idle, side: NewPool(Idle{Min: few, Max: few, EndIdle: idle.EndIdle}, dial),
		lanes: make(chan struct{}, SideLinks),
		Calls: calls.New(), proved: map[string]time.Time{}, leases: map[string]*lease{}, all: map[*Session]struct{}{}}
	return e
}

// take returns an idle session or begins one.
func (e *Sessions) take(ctx context.Context, r *driver.Request) (*Session, error) {
	if s, err := e.reserve(ctx, r); s != nil || err != nil {
		return s, err
	}
	ctx, cancel := answerTimeout(ctx, r.Wait)
	defer cancel()
	ctx, end := e.Bind(ctx)
	defer end()
	s, err := e.begin(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opened--
	if err != nil {
		e.limits.dialled(err)
		e.wakeLocked()
		return nil, err
	}
	l := s.Link
	if e.Stopped() {
		l.Close()
		return nil, calls.ErrClosed
	}
	e.all[s] = struct{}{}
	if s.Gone() != nil {
		e.Tasks.Go(func() { e.watch(s) })
	}
	return s, nil
}

// begin opens a session. A connection of a user's pool may lead to a demoted server. Then begin tries another one.
func (e *Sessions) begin(ctx context.Context) (*Session, error) {
	s, err := e.beginOnce(ctx)
	if errors.Is(err, ErrReadOnly) && e.limits.EndIdle != nil {
		e.side.Flush()
		return e.beginOnce(ctx)
	}
	return s, err
}

func (e *Sessions) beginOnce(ctx context.Context) (*Session, error) {
	l, err := e.dial(ctx)
	if err != nil {
		return nil, err
	}
	id, err := e.recipe.Begin(ctx, l)
	if err != nil {
		l.Close()
		return nil, Unreached(e.recipe, err)
	}
	return &Session{Link: l, ID: id}, nil
}

// reserve returns an idle session, or nil if the caller may open one. If the engine has MaxConns sessions, reserve
// waits until one is free. A first try, which another request follows, does not wait, and neither does a request for a
// lock that this engine holds: it is busy.
func (e *Sessions) reserve(ctx context.Context, r *driver.Request) (*Session, error) {
	most := 0
	if e.MaxConns != nil {
		most = e.MaxConns()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for woken := false; ; woken = true {
		if woken || len(e.queue) == 0 {
			if s := e.takeIdleLocked(); s != nil {
				return s, nil
			}
			if most == 0 || len(e.all)+e.opened < most {
				e.opened++
				return nil, nil
			}
		}
		if holders := e.holdersLocked(r); !r.Wait && holders != nil {
			return nil, &driver.BusyError{Holders: holders}
		}
		full := driver.Errorf(driver.CodeUnavailable,
			"all %d connections that this process may use for locks and waiters are in use: raise max_conns", most)
		if r.First {
			return nil, full
		}
		turn := make(chan struct{})
		if woken {
			e.queue = slices.Insert(e.queue, 0, turn)
		} else {
			e.queue = append(e.queue, turn)
		}
		e.mu.Unlock()
		if d, ok := r.From.(driver.Delayer); ok && !woken {
			d.Delayed(full)
		} else if r.Wait && !woken {
			r.From.Queued(nil)
		}
		var err error
		select {
		case <-turn:
		case <-ctx.Done():
			err = driver.Errorf(driver.CodeUnavailable, "%w: %w", full, ctx.Err())
		case <-e.Ctx.Done():
			err = calls.ErrClosed
		}
		e.mu.Lock()
		if err != nil {
			if i := slices.Index(e.queue, turn); i >= 0 {
				e.queue = slices.Delete(e.queue, i, i+1)
			} else {
				e.wakeLocked() // another request takes this turn
			}
			return nil, err
		}
	}
}

// holdersLocked returns the holders of this engine if they keep a request out: a grant of limit n never stands beside
// more than n-1 others. Else it returns nil. The caller holds mu.
func (e *Sessions) holdersLocked(r *driver.Request) (holders []driver.Holder) {
	least := r.Limit
	for _, l := range e.leases {
		if l.granted && l.request.Name == r.Name {
			is := &l.request
			least = min(least, is.Limit)
			holders = append(holders,
				driver.Holder{Owner: is.Owner, Token: is.Token, Tokens: is.Reserved, Limit: is.Limit, Slot: is.Slot})
		}
	}
	if len(holders) < least {
		return nil
	}
	return holders
}

// wakeLocked lets the next request look for a session. The caller holds mu.
func (e *Sessions) wakeLocked() {
	if len(e.queue) > 0 {
		close(e.queue[0])
		e.queue = e.queue[1:]
	}
}

// closeLocked closes a session and forgets it. The caller holds mu.
func (e *Sessions) closeLocked(s *Session) {
	delete(e.all, s)
	s.Close()
	e.wakeLocked()
}

// takeIdleLocked returns the session that became idle last, nil if there is none. The caller holds mu.
func (e *Sessions) takeIdleLocked() *Session {
	for len(e.idle) > 0 {
		s := e.idle[len(e.idle)-1]
		e.idle = e.idle[:len(e.idle)-1]
		if !ended(s.Link) {
			s.idleSince = time.Time{}
			return s
		}
		e.closeLocked(s)
	}
	return nil
}

// watch waits until the connection of a session ends.
func (e *Sessions) watch(s *Session) {
	select {
	case <-s.Gone():
		e.connectionEnded(s)
	case <-e.Ctx.Done():
	}
}

// put keeps a session without a grant for the next lock.
func (e *Sessions) put(s *Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Stopped() || len(e.idle) >= e.limits.current() || ended(s.Link) {
		e.closeLocked(s)
		return
	}
	s.idleSince = time.Now()
	e.idle = append(e.idle, s)
	e.wakeLocked()
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
		e.closeLocked(s)
	}
}

// tend starts the goroutine that serves all sessions, as long as there are any. A timer per
// session would cost more than a short lock itself. The caller holds mu.
func (e *Sessions) tend() {
	switch {
	case e.Stopped():
	case e.ticker == nil:
		e.ticker = time.NewTicker(tick)
		t := e.ticker
		e.Tasks.Go(func() { e.tendAll(t) })
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
		case <-e.Ctx.Done():
			return
		}
		if !e.tendOnce(time.Now()) {
			return
		}
	}
}

// tendOnce serves every session once. It returns false if there is none.
func (e *Sessions) tendOnce(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Stopped() {
		return false
	}
	if len(e.all) == 0 {
		e.ticker = nil
		return false
	}
	soon := false // a session needs the next tick
	for s := range e.all {
		if !s.idleSince.IsZero() {
			soon = e.tendIdleLocked(s, now) || soon
		} else if l := s.lease; l != nil && !l.closed {
			soon = e.tendLeaseLocked(l, now) || soon
		}
	}
	e.proveLocked(now)
	if !soon && !e.slow {
		e.slow = true
		e.ticker.Reset(10 * tick)
	}
	return true
}

// tendIdleLocked ends an idle session that was not needed, or watches its connection. It reports
// whether the session needs the next tick. The caller holds mu.
func (e *Sessions) tendIdleLocked(s *Session, now time.Time) bool {
	limit := spareFor
	if len(e.idle) > e.limits.Min {
		limit = surplusFor
	}
	if s.TTL > 0 {
		limit = min(limit, s.TTL/2) // before the server's timer ends it
	}
	switch idle := now.Sub(s.idleSince); {
	case idle > limit:
		e.retireLocked(s)
	case idle <= recordAfter:
		return true
	default:
		s.Watch()
	}
	return false
}

// tendLeaseLocked records the holder of a grant that has stood for recordAfter, and searches the
// server's queue for a request that has waited as long. It reports whether the lease needs the next
// tick. The caller holds mu.
func (e *Sessions) tendLeaseLocked(l *lease, now time.Time) bool {
	switch {
	case now.Sub(l.since) < recordAfter:
		return true
	case l.granted && !l.recordAt.IsZero() && !now.Before(l.recordAt):
		if !l.tryLock() {
			return true // the session is in use, and may be recording just now
		}
		recorded := l.request.Recorded
		l.request.Record = true
		l.unlock()
		l.recordAt = time.Time{}
		if recorded {
			l.s.Watch()
		} else {
			e.pingLocked(l, true) // which calls Watch as well
		}
	case l.wait != nil && !l.searched:
		l.searched = true
		w := l.wait // a grant sets it to nil
		e.Tasks.Go(func() { w.begin(w.watch) })
	}
	return false
}

// drop closes a session and forgets it.
func (e *Sessions) drop(s *Session) {
	e.mu.Lock()
	delete(e.all, s)
	e.wakeLocked()
	e.mu.Unlock()
	s.Close()
}

// connectionEnded retires a session whose connection has ended, or reports the loss of its grant.
func (e *Sessions) connectionEnded(s *Session) {
	e.mu.Lock()
	l := s.lease
	lost := l != nil && l.granted
	e.mu.Unlock()
	if !lost {
		e.retire(s)
		return
	}
	// A call that uses the session notices the end by itself, and frees busy.
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
	case <-l.done:
		return
	}
	cause, err := e.recipe.Cause(s, &l.request, e.side)
	e.lose(l, cause, err)
}

// lose reports to the holder that its session has ended. Only the first call has an effect.
func (e *Sessions) lose(l *lease, cause driver.Cause, err error) {
	e.mu.Lock()
	granted := l.granted
	l.granted, l.closed = false, true
	e.mu.Unlock()
	e.drop(l.s)
	if granted {
		l.end()
		l.from.Lost(cause, err)
	}
}

func (l *lease) end() { l.doneOnce.Do(func() { close(l.done) }) }

// lock reserves the session for the caller. It returns false if ctx ends first.
func (l *lease) lock(ctx context.Context) bool {
	if l.tryLock() {
		return true
	}
	select {
	case l.busy <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// tryLock reserves the session if it is not in use.
func (l *lease) tryLock() bool {
	select {
	case l.busy <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l *lease) unlock() { <-l.busy }

// Close ends every session. So it ends all grants and waits.
func (e *Sessions) Close(context.Context) error {
	if !e.Stop() {
		return nil
	}
	e.mu.Lock()
	e.idle = nil
	var held []*Session
	for s := range e.all {
		l := s.lease
		if l != nil && l.wait != nil && !l.closed {
			continue // its call ends the session when the engine's context ends
		}
		if l != nil {
			l.granted, l.closed = false, true
			l.end()
		}
		held = append(held, s)
	}
	e.mu.Unlock()
	e.Cancel()
	for _, s := range held {
		s.Close()
	}
	e.Running.Wait()
	e.Tasks.Wait()
	e.side.Close()
	return nil
}

// Classify returns the code that every error of the engine carries.
func (*Sessions) Classify(err error) driver.Code { return driver.CodeOf(err) }
