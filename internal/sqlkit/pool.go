package sqlkit

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Pool keeps a few idle links ready.
type Pool struct {
	dial func(context.Context) (Link, error)
	keep int

	mu     sync.Mutex
	idle   []idleLink
	closed bool
}

type idleLink struct {
	link  Link
	since time.Time
}

// idleFor is how long a link is kept that nobody uses. A server or a firewall may
// end one sooner.
const idleFor = time.Minute

// NewPool makes a pool that keeps at most so many idle links.
func NewPool(keep int, dial func(context.Context) (Link, error)) *Pool {
	return &Pool{dial: dial, keep: keep}
}

// ErrClosed is what a closed store answers.
var ErrClosed = driver.Errorf(driver.CodeClosed, "the store is closed")

// Get takes an idle link or opens one. Reused tells which: an idle one may have
// ended without anyone knowing.
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

// Put gives a link back that is in good order.
func (p *Pool) Put(l Link) {
	p.mu.Lock()
	var old Link
	switch {
	case p.closed || p.keep == 0 || ended(l):
		old = l
	case len(p.idle) >= p.keep:
		old = p.idle[0].link
		p.idle = append(append([]idleLink(nil), p.idle[1:]...), idleLink{l, time.Now()})
	default:
		p.idle = append(p.idle, idleLink{l, time.Now()})
	}
	p.mu.Unlock()
	if old != l {
		l.Watch()
	}
	if old == nil {
		return
	}
	if lent, ok := old.(*lentLink); ok && p.keep == 0 {
		lent.giveBack()
		return
	}
	old.Close()
}

// Run runs statements on a link of the pool. If an idle one turns out to have ended
// before anything was sent it takes another.
func (p *Pool) Run(ctx context.Context, statements ...string) (Answers, error) {
	for {
		l, reused, err := p.Get(ctx)
		if err != nil {
			return nil, err
		}
		a, err := l.Run(ctx, statements...)
		if err == nil {
			p.Put(l)
			return a, nil
		}
		l.Close()
		if !unsent(err) {
			return nil, err
		}
		if !reused || ctx.Err() != nil {
			return nil, driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
	}
}

// ErrUnsent is a link's word that it had ended before anything of a script was sent.
// Drivers of database/sql say the same by driver.ErrBadConn. What pgx calls safe to
// retry is not taken for it: it may say so of the second error of a connection.
var ErrUnsent = errors.New("the connection had ended before")

func unsent(err error) bool {
	return !partly(err) && (errors.Is(err, sqldriver.ErrBadConn) || errors.Is(err, ErrUnsent))
}

// Flush ends the idle links, as when they lead to a server that was demoted.
func (p *Pool) Flush() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, i := range idle {
		i.link.Close()
	}
}

// Close ends the idle links, and each one that is put back from now on.
func (p *Pool) Close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, i := range idle {
		i.link.Close()
	}
}
