package sqlkit

import (
	"context"
	"errors"
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
// No clock token is kept after its grant. So if the clock is set back, or a server is promoted whose clock is
// behind, tokens are below earlier ones for as long as the clock is. A durable token is the new value of a committed
// counter: the larger of the clock and one more than its last value. Several tokens of a grant are the
// last values above the old one, from the reading of the clock on. So tokens rise then, too, and after a
// restart. The recipe optimistic does the same with the row of the name. A server that is promoted without the last
// commits has an older row. There the tokens rise if its clock is past the last token. That is so unless a clock was set
// back, or its clock is behind by more than the failover took.
//
// # A lock that is handed off
//
// Swap hands the lock of a session off to the next grant, if no other session
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
// nothing of the request stands or can appear. A wait that is given up ends in the same way. A
// request that has got the lock, but no durable token or no caller any more, releases the lock on
// its session. It ends in the same way only if the release fails.
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
	// MaxConns returns how many sessions the engine may have, at least 1. Its error has a code. Further
	// requests wait in the order in which they came. If MaxConns is nil, there is no limit.
	MaxConns func(context.Context) (int, error)
	// Durable makes the tokens durable.
	Durable bool

	recipe Recipe
	prefix []byte
	side   *Pool // links for statements about sessions
	idle   *Pool // sessions

	*calls.Calls
	limiting chan struct{} // a lock: holds one value while a request calls MaxConns
	mu       sync.Mutex
	slots    chan struct{}     // holds a value for each session in use; nil without a limit
	leases   map[string]*lease // by request: from its first statement to its end, or with an unknown outcome
	proving  bool              // prove runs
}

// lease is a request that has a session, from its first statement to its end.
type lease struct {
	request   LockRequest
	s         *Session
	from      driver.Requester
	wait      *wait          // while it waits
	sent      driver.Instant // of the last statement that confirmed the grant
	since     time.Time      // of the request, then of the grant
	heldSince time.Time      // of the first of the grants that the session has handed off
	proved    time.Time      // of the last ping for all sessions of the server
	due       time.Time      // when tend searches the server's queue for it or records its holder, zero if that is done
	granted   bool           // and neither lost nor being released
	closed    bool           // the client has closed the session
	ending    bool           // finish has closed the session, and waits until the server has ended it
	ping      *ping          // the present ping
	busy      chan struct{}  // a lock: holds one value while the session is in use
}

const (
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
	// busyAgain is the interval at which tend looks again at a session that is in use.
	busyAgain = 10 * time.Millisecond
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
	// SideLinks limits the connections that a store with sessions uses beside them, for each of two purposes:
	// statements about sessions, and commits.
	SideLinks = 4
)

// NewSessions makes the engine. idle bounds its idle sessions: there are none on a user's
// pool.
func NewSessions(dial func(context.Context) (Link, error), recipe Recipe, idle Idle, namespace string) *Sessions {
	few := min(idle.Max, 2)
	e := &Sessions{recipe: recipe, prefix: NamePrefix(namespace), Calls: calls.New(), limiting: make(chan struct{}, 1), leases: map[string]*lease{}}
	e.side = NewPool(Idle{Min: few, Max: few, EndIdle: idle.EndIdle}, dial)
	e.side.Limit(SideLinks)
	e.idle = NewPool(idle, func(ctx context.Context) (Link, error) { return e.begin(ctx, dial) })
	return e
}

// take returns an idle session or begins one.
func (e *Sessions) take(ctx context.Context, r *driver.Request) (*Session, error) {
	limited, err := e.reserve(ctx, r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := answerTimeout(ctx, r.Wait)
	defer cancel()
	l, _, err := e.idle.Get(ctx)
	if err != nil {
		if limited {
			<-e.slots
		}
		return nil, err
	}
	s := l.(*Session)
	e.mu.Lock()
	defer e.mu.Unlock()
	s.limited = limited
	return s, nil
}

// begin opens a session. A connection of a user's pool may lead to a demoted server. Then begin tries another one.
func (e *Sessions) begin(ctx context.Context, dial func(context.Context) (Link, error)) (Link, error) {
	ctx, end := e.Bind(ctx)
	defer end()
	s, err := e.beginOnce(ctx, dial)
	if errors.Is(err, ErrReadOnly) && e.side.limits.EndIdle != nil {
		e.side.Flush()
		s, err = e.beginOnce(ctx, dial)
	}
	if err != nil {
		return nil, err
	}
	if s.Gone() != nil && !e.Go(func() { e.watch(s) }) {
		s.Close()
		return nil, calls.ErrClosed
	}
	return s, nil
}

func (e *Sessions) beginOnce(ctx context.Context, dial func(context.Context) (Link, error)) (*Session, error) {
	l, err := dial(ctx)
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

// reserve returns when one of MaxConns sessions is free for a request, in the order of the requests. limited reports
// that there is such a limit. A first try, which another request follows, does not wait, and neither does a request for
// a lock that this engine holds: it is busy.
func (e *Sessions) reserve(ctx context.Context, r *driver.Request) (limited bool, err error) {
	slots, err := e.limit(ctx, r)
	if slots == nil || err != nil {
		return false, err
	}
	select {
	case slots <- struct{}{}:
		return true, nil
	default:
	}
	e.mu.Lock()
	holders := e.holdersLocked(r)
	e.mu.Unlock()
	if !r.Wait && holders != nil {
		return false, &driver.BusyError{Holders: holders}
	}
	full := driver.Errorf(driver.CodeUnavailable,
		"all %d connections that this process may use for locks and waiters are in use: raise max_conns", cap(slots))
	if r.First {
		return false, full
	}
	if d, ok := r.From.(driver.Delayer); ok {
		d.Delayed(full)
	} else if r.Wait {
		r.From.Queued(nil)
	}
	select {
	case slots <- struct{}{}: // a channel serves its senders in their order
		return true, nil
	case <-ctx.Done():
		return false, driver.Errorf(driver.CodeUnavailable, "%w: %w", full, ctx.Err())
	case <-e.Ctx.Done():
		return false, calls.ErrClosed
	}
}

// limit returns the channel slots, which it makes at the first request. MaxConns may connect to the server, so one request
// at a time calls it.
func (e *Sessions) limit(ctx context.Context, r *driver.Request) (chan struct{}, error) {
	slots := e.madeSlots()
	if slots != nil || e.MaxConns == nil {
		return slots, nil
	}
	ctx, end := e.Bind(ctx)
	defer end()
	ctx, cancel := answerTimeout(ctx, r.Wait)
	defer cancel()
	select {
	case e.limiting <- struct{}{}:
		defer func() { <-e.limiting }()
	case <-ctx.Done():
		return nil, driver.Errorf(driver.CodeUnavailable, "the server's limit of connections is unknown yet: %w", ctx.Err())
	}
	if slots = e.madeSlots(); slots != nil {
		return slots, nil
	}
	most, err := e.MaxConns(ctx)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots = make(chan struct{}, most)
	return e.slots, nil
}

// madeSlots returns the channel slots, nil if it is not made yet.
func (e *Sessions) madeSlots() chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.slots
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

// watch waits until the connection of a session ends.
func (e *Sessions) watch(s *Session) {
	select {
	case <-s.Gone():
		e.connectionEnded(s)
	case <-e.Ctx.Done():
	}
}

// put keeps a session without a grant for the next lock. Another request may have the session as soon as it is idle.
func (e *Sessions) put(s *Session) {
	limited := e.unlimit(s)
	e.idle.Put(s)
	if limited {
		<-e.slots
	}
}

// drop closes a session.
func (e *Sessions) drop(s *Session) {
	s.Close()
	if e.unlimit(s) {
		<-e.slots
	}
}

// unlimit reports whether a session has a slot, which the caller frees.
func (e *Sessions) unlimit(s *Session) (limited bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	limited, s.limited = s.limited, false
	return limited
}

// visit makes the alarm of a session call tend when its lease is due. The caller holds mu.
func (e *Sessions) visit(l *lease) {
	s := l.s // the alarm keeps it, and no lease
	s.alarm.set(l.due, func() { e.tend(s) })
}

// tend records the holder of a grant that has stood for recordAfter, and searches the server's queue for a
// request that has waited as long.
func (e *Sessions) tend(s *Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.alarm.reset()
	l := s.lease
	switch {
	case l == nil || l.closed || l.due.IsZero() || e.Stopped():
	case time.Now().Before(l.due):
		e.visit(l)
	case l.wait != nil:
		l.due = time.Time{}
		w := l.wait
		w.beside.Add(1)
		e.Tasks.Go(w.watch)
	case !l.granted:
	case !l.tryLock(): // the session is in use, and may be recording just now
		l.due = time.Now().Add(busyAgain)
		e.visit(l)
	default:
		recorded := l.request.Recorded
		l.request.Record = true
		l.unlock()
		l.due = time.Time{}
		if recorded {
			s.Watch()
		} else {
			e.pingLocked(l, true) // which calls Watch as well
		}
	}
}

// connectionEnded closes a session whose connection has ended, if it is idle, or reports the loss of its grant.
func (e *Sessions) connectionEnded(s *Session) {
	e.idle.end(func(i idleLink) bool { return i.link == s })
	e.mu.Lock()
	l := s.lease
	e.mu.Unlock()
	// A call that uses the session notices the end by itself, and frees busy.
	if l == nil || !e.has(l) || !l.lock(e.Ctx) {
		return
	}
	defer l.unlock()
	if !e.has(l) {
		return
	}
	cause, err := e.recipe.Cause(s, &l.request, e.side)
	e.lose(l, cause, err)
}

// has reports whether a lease has its grant.
func (e *Sessions) has(l *lease) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return l.granted
}

// lose reports to the holder that its session has ended. Only the first call has an effect.
func (e *Sessions) lose(l *lease, cause driver.Cause, err error) {
	e.mu.Lock()
	granted := l.granted
	l.granted, l.closed = false, true
	e.mu.Unlock()
	e.drop(l.s)
	if granted {
		l.from.Lost(cause, err)
	}
}

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
	var held []*lease
	for _, l := range e.leases {
		if l.wait == nil || l.closed { // else its call ends the session when the engine's context ends
			l.granted, l.closed = false, true
			held = append(held, l)
		}
	}
	e.mu.Unlock()
	e.Cancel()
	for _, l := range held {
		l.s.Close()
	}
	e.idle.Close()
	e.Running.Wait()
	e.Tasks.Wait()
	e.side.Close()
	return nil
}

// Classify returns the code that every error of the engine carries.
func (*Sessions) Classify(err error) driver.Code { return driver.CodeOf(err) }
