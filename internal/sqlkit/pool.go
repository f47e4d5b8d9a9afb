package sqlkit

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// Pool keeps idle links ready.
type Pool struct {
	dial  func(context.Context) (Link, error)
	lanes chan struct{} // holds a value for each call of use; nil if their number has no limit

	mu     sync.Mutex
	limits Idle
	idle   []idleLink
	alarm  alarm // calls tend
	closed bool
}

type idleLink struct {
	link    Link
	since   time.Time
	watched bool
}

const (
	// idleFor is how long an unused link is kept. A server or a firewall may end it sooner.
	idleFor = time.Minute
	// sessionIdleFor is how long an idle session is kept for the next lock.
	sessionIdleFor = 30 * time.Second
	// watchAfter is how long a link is idle before its end is noticed at once.
	watchAfter = 20 * time.Millisecond
)

// NewPool makes a pool that opens links by dial. idle limits its idle links.
func NewPool(idle Idle, dial func(context.Context) (Link, error)) *Pool {
	return &Pool{dial: dial, limits: idle}
}

// Limit makes at most n calls of Run and use at the same time have links of the pool. The others wait.
func (p *Pool) Limit(n int) { p.lanes = make(chan struct{}, n) }

// Get takes an idle link or opens one. reused reports that the link was idle: it may have
// ended unnoticed.
func (p *Pool) Get(ctx context.Context) (l Link, reused bool, err error) {
	p.mu.Lock()
	for len(p.idle) > 0 && !p.closed {
		i := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if ended(i.link) || time.Since(i.since) > i.spare() {
			i.link.Close()
			continue
		}
		p.mu.Unlock()
		return i.link, true, nil
	}
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, false, calls.ErrClosed
	}
	l, err = p.dial(ctx)
	if err != nil {
		p.mu.Lock()
		p.limits.dialled(err)
		p.mu.Unlock()
	}
	return l, false, err
}

func ended(l Link) bool {
	select {
	case <-l.Gone():
		return true
	default:
		return false
	}
}

// Put gives back a link that is in good order.
func (p *Pool) Put(l Link) {
	if p.limits.Max == 0 {
		giveBack(l)
		return
	}
	p.mu.Lock()
	if p.closed || ended(l) {
		p.mu.Unlock()
		l.Close()
		return
	}
	var old []idleLink
	if len(p.idle) >= p.limits.current() {
		old = p.takeOldest(1)
	}
	p.idle = append(p.idle, idleLink{link: l, since: time.Now()})
	p.alarm.set(time.Now().Add(watchAfter), p.tend)
	p.mu.Unlock()
	closeAll(old)
}

// tend closes links that were not needed, and watches the others. A link that is soon used again is not watched,
// since that would cost as much as a statement.
func (p *Pool) tend() {
	p.mu.Lock()
	p.alarm.reset()
	var old, kept []idleLink
	soon := idleFor
	for n, i := range p.idle { // the longest idle come first
		limit := i.spare()
		if n < len(p.idle)-p.limits.Min {
			limit = min(limit, surplusFor)
		}
		idle := time.Since(i.since)
		if idle >= limit || ended(i.link) {
			old = append(old, i)
			continue
		}
		if idle >= watchAfter && !i.watched {
			i.watched = true
			i.link.Watch()
		} else if !i.watched {
			limit = watchAfter
		}
		kept, soon = append(kept, i), min(soon, limit-idle)
	}
	if p.idle = kept; len(kept) > 0 && !p.closed {
		p.alarm.set(time.Now().Add(soon), p.tend)
	}
	p.mu.Unlock()
	closeAll(old)
}

// spare returns how long the link is kept. The server's timer may end a session after its TTL.
func (i idleLink) spare() time.Duration {
	s, ok := i.link.(*Session)
	switch {
	case !ok:
		return idleFor
	case s.TTL > 0:
		return min(sessionIdleFor, s.TTL/2)
	}
	return sessionIdleFor
}

// Run runs statements on a link of the pool.
func (p *Pool) Run(ctx context.Context, statements ...string) (a Answers, err error) {
	err = p.use(ctx, func(l Link) error {
		a, err = l.Run(ctx, statements...)
		return err
	})
	return a, err
}

// use calls f with a link of the pool. If an idle link had ended before anything was
// sent, use takes another one. If a server is read-only, use tries once more, because a new link may lead to the new
// primary. If a link does not answer in time, use also closes the
// links that were idle since the send: they may have fallen silent too. Otherwise each of the
// next calls would wait for another of them.
func (p *Pool) use(ctx context.Context, f func(Link) error) error {
	if p.lanes != nil {
		select {
		case p.lanes <- struct{}{}:
			defer func() { <-p.lanes }()
		case <-ctx.Done():
			return driver.Errorf(driver.CodeUnavailable, "%w", ctx.Err())
		}
	}
	for demoted := false; ; {
		l, reused, err := p.Get(ctx)
		if err != nil {
			return err
		}
		sent := time.Now()
		if err = f(l); err == nil {
			p.Put(l)
			return nil
		}
		l.Close()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.flush(sent)
		}
		switch {
		case errors.Is(err, ErrReadOnly) && !demoted && ctx.Err() == nil:
			p.Flush()
			demoted = true
		case !unsent(err):
			return err
		case !reused || ctx.Err() != nil:
			return driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
	}
}

// ErrUnsent is the error of a link that had ended before anything of a script was sent.
// Drivers of database/sql return driver.ErrBadConn in this case. An error that pgx reports
// as safe to retry is not such an error: pgx may report that for the second error of a
// connection.
var ErrUnsent = errors.New("the connection had ended before")

func unsent(err error) bool {
	return !partly(err) && (errors.Is(err, sqldriver.ErrBadConn) || errors.Is(err, ErrUnsent))
}

// Flush closes the idle links, for example those to a server that was demoted. It also closes those of a user's pool,
// which would otherwise lend them again and again.
func (p *Pool) Flush() {
	p.flush(time.Now())
	if p.limits.EndIdle != nil {
		p.limits.EndIdle()
	}
}

// RunAtPrimary runs statements at a server that accepts writes. Before them it asks whether the server does. The
// statements must have no effect at one that does not.
func (p *Pool) RunAtPrimary(ctx context.Context, faults Faults, d *Dialect, statements ...string) (Answers, error) {
	var a Answers
	err := p.use(ctx, func(l Link) (err error) {
		a, err = l.Run(ctx, append([]string{"SELECT " + d.ReadOnly}, statements...)...)
		if is := a.First(0).Text(0); err == nil && (is == "" || readOnly(is)) {
			return ErrReadOnly
		}
		return orReadOnly(faults, err)
	})
	if err != nil {
		return nil, err
	}
	return a[1:], nil
}

// orReadOnly returns err, with ErrReadOnly if it is the error of a read-only server.
func orReadOnly(f Faults, err error) error {
	if coded, _ := f.Sort(err); errors.Is(coded, ErrReadOnly) {
		return coded
	}
	return err
}

// flush closes the links that have been idle since that time or longer.
func (p *Pool) flush(since time.Time) {
	p.end(func(i idleLink) bool { return !i.since.After(since) })
}

// end closes the idle links for which is returns true.
func (p *Pool) end(is func(idleLink) bool) {
	var ending []idleLink
	p.mu.Lock()
	p.idle = slices.DeleteFunc(p.idle, func(i idleLink) bool {
		if is(i) {
			ending = append(ending, i)
			return true
		}
		return false
	})
	p.mu.Unlock()
	closeAll(ending)
}

// takeOldest removes the n links that were idle for longest. The caller holds mu.
func (p *Pool) takeOldest(n int) []idleLink {
	old := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	return old
}

func closeAll(links []idleLink) {
	for _, i := range links {
		i.link.Close()
	}
}

// Close closes the idle links, and every link that is put back later.
func (p *Pool) Close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	closeAll(idle)
}
