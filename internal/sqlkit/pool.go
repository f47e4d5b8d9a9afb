package sqlkit

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Pool keeps idle links ready.
type Pool struct {
	dial func(context.Context) (Link, error)

	mu      sync.Mutex
	bounds  Idle
	idle    []idleLink
	surplus *time.Timer // ends links that are idle beyond bounds.Min
	closed  bool
}

type idleLink struct {
	link  Link
	since time.Time
}

// idleFor is how long an unused link is kept. A server or a firewall may end it sooner.
const idleFor = time.Minute

// NewPool makes a pool that opens links by dial. idle bounds its idle links.
func NewPool(idle Idle, dial func(context.Context) (Link, error)) *Pool {
	return &Pool{dial: dial, bounds: idle}
}

// ErrClosed is the error of a closed store.
var ErrClosed = driver.Errorf(driver.CodeClosed, "the store is closed")

// Get takes an idle link or opens one. reused reports that the link was idle: it may have
// ended unnoticed.
func (p *Pool) Get(ctx context.Context) (l Link, reused bool, err error) {
	p.mu.Lock()
	for len(p.idle) > 0 && !p.closed {
		i := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if ended(i.link) || time.Since(i.since) > idleFor {
			i.link.Close()
			continue
		}
		p.mu.Unlock()
		return i.link, true, nil
	}
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, false, ErrClosed
	}
	l, err = p.dial(ctx)
	if err != nil {
		p.mu.Lock()
		p.bounds.dialled(err)
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
	p.mu.Lock()
	var old Link
	switch {
	case p.closed || p.bounds.Max == 0 || ended(l):
		old = l
	case len(p.idle) >= p.bounds.limit():
		old = p.idle[0].link
		p.idle = append(slices.Delete(p.idle, 0, 1), idleLink{l, time.Now()})
	default:
		p.idle = append(p.idle, idleLink{l, time.Now()})
		if len(p.idle) > p.bounds.Min && p.surplus == nil {
			p.surplus = time.AfterFunc(surplusFor, p.endSurplus)
		}
	}
	p.mu.Unlock()
	if old != l {
		l.Watch()
	}
	if old == nil {
		return
	}
	if lent, ok := old.(*lentLink); ok && p.bounds.Max == 0 {
		lent.giveBack()
		return
	}
	old.Close()
}

// endSurplus closes links that were not needed for a while, except the least number that
// the pool keeps.
func (p *Pool) endSurplus() {
	p.mu.Lock()
	rested := 0
	for rested < len(p.idle)-p.bounds.Min && time.Since(p.idle[rested].since) >= surplusFor {
		rested++
	}
	old := slices.Clone(p.idle[:rested])
	p.idle = slices.Delete(p.idle, 0, rested)
	p.surplus = nil
	if len(p.idle) > p.bounds.Min {
		p.surplus = time.AfterFunc(surplusFor-time.Since(p.idle[0].since), p.endSurplus)
	}
	p.mu.Unlock()
	for _, i := range old {
		i.link.Close()
	}
}

// Run runs statements on a link of the pool. If an idle link had ended before anything was
// sent, Run takes another one. If a link does not answer in time, Run also closes the links
// that were idle since the send: they may have fallen silent too. Otherwise each of the
// next calls would wait for another of them.
func (p *Pool) Run(ctx context.Context, statements ...string) (Answers, error) {
	for {
		l, reused, err := p.Get(ctx)
		if err != nil {
			return nil, err
		}
		sent := time.Now()
		a, err := l.Run(ctx, statements...)
		if err == nil {
			p.Put(l)
			return a, nil
		}
		l.Close()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.flush(sent)
		}
		if !unsent(err) {
			return nil, err
		}
		if !reused || ctx.Err() != nil {
			return nil, driver.Errorf(driver.CodeUnavailable, "%w", err)
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

// Flush closes the idle links, for example those to a server that was demoted.
func (p *Pool) Flush() { p.flush(time.Now()) }

// flush closes the links that have been idle since that time or longer.
func (p *Pool) flush(since time.Time) {
	p.mu.Lock()
	n := 0 // the longest idle come first
	for n < len(p.idle) && !p.idle[n].since.After(since) {
		n++
	}
	old := slices.Clone(p.idle[:n])
	p.idle = slices.Delete(p.idle, 0, n)
	p.mu.Unlock()
	for _, i := range old {
		i.link.Close()
	}
}

// Close closes the idle links, and every link that is put back later.
func (p *Pool) Close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	if p.surplus != nil {
		p.surplus.Stop()
	}
	p.mu.Unlock()
	for _, i := range idle {
		i.link.Close()
	}
}
