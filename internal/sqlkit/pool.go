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
	lanes chan struct{} // holds a value for each call of Run; nil if their number has no limit

	mu      sync.Mutex
	limits  Idle
	idle    []idleLink
	surplus *time.Timer // ends links that are idle beyond limits.Min
	closed  bool
}

type idleLink struct {
	link  Link
	since time.Time
}

// idleFor is how long an unused link is kept. A server or a firewall may end it sooner.
const idleFor = time.Minute

// NewPool makes a pool that opens links by dial. idle limits its idle links.
func NewPool(idle Idle, dial func(context.Context) (Link, error)) *Pool {
	return &Pool{dial: dial, limits: idle}
}

// Limit makes at most n calls of Run at the same time use links of the pool. The others wait.
func (p *Pool) Limit(n int) { p.lanes = make(chan struct{}, n) }

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
	var oldest Link
	if len(p.idle) >= p.limits.current() {
		oldest = p.idle[0].link
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	p.idle = append(p.idle, idleLink{l, time.Now()})
	if oldest == nil && len(p.idle) > p.limits.Min && p.surplus == nil {
		p.surplus = time.AfterFunc(surplusFor, p.endSurplus)
	}
	p.mu.Unlock()
	l.Watch()
	if oldest != nil {
		oldest.Close()
	}
}

// endSurplus closes links that were not needed for a while, except the least number that
// the pool keeps.
func (p *Pool) endSurplus() {
	p.mu.Lock()
	n := 0
	for n < len(p.idle)-p.limits.Min && time.Since(p.idle[n].since) >= surplusFor {
		n++
	}
	old := p.takeOldest(n)
	p.surplus = nil
	if len(p.idle) > p.limits.Min {
		p.surplus = time.AfterFunc(surplusFor-time.Since(p.idle[0].since), p.endSurplus)
	}
	p.mu.Unlock()
	closeAll(old)
}

// Run runs statements on a link of the pool. If an idle link had ended before anything was
// sent, Run takes another one. If a link does not answer in time, Run also closes the links
// that were idle since the send: they may have fallen silent too. Otherwise each of the
// next calls would wait for another of them.
func (p *Pool) Run(ctx context.Context, statements ...string) (Answers, error) {
	if p.lanes != nil {
		select {
		case p.lanes <- struct{}{}:
			defer func() { <-p.lanes }()
		case <-ctx.Done():
			return nil, driver.Errorf(driver.CodeUnavailable, "%w", ctx.Err())
		}
	}
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
		p.flushSilent(ctx, sent)
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

// Flush closes the idle links, for example those to a server that was demoted. It also closes those of a user's pool,
// which would otherwise lend them again and again.
func (p *Pool) Flush() {
	p.flush(time.Now())
	if p.limits.EndIdle != nil {
		p.limits.EndIdle()
	}
}

// RunAtPrimary runs statements at a server that accepts writes. It runs query before them, and readOnly reports whether
// the answer is that of a read-only server. The statements must have no effect at such a server. RunAtPrimary then closes
// the idle links and tries once more, because a new link may lead to the new primary.
func (p *Pool) RunAtPrimary(ctx context.Context, faults Faults, query string, readOnly func(answer string) bool, statements ...string) (Answers, error) {
	script := append([]string{query}, statements...)
	for fresh := false; ; fresh = true {
		a, err := p.Run(ctx, script...)
		coded, _ := faults.Sort(err)
		demoted := errors.Is(coded, ErrReadOnly) || err == nil && readOnly(a.First(0).Text(0))
		switch {
		case demoted && fresh:
			return nil, ErrReadOnly
		case demoted:
			p.Flush()
		case err != nil:
			return nil, err
		default:
			return a[1:], nil
		}
	}
}

// flushSilent closes the links that were idle when a statement was sent which had no answer in time.
func (p *Pool) flushSilent(ctx context.Context, sent time.Time) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		p.flush(sent)
	}
}

// flush closes the links that have been idle since that time or longer.
func (p *Pool) flush(since time.Time) {
	p.mu.Lock()
	n := 0 // the longest idle come first
	for n < len(p.idle) && !p.idle[n].since.After(since) {
		n++
	}
	old := p.takeOldest(n)
	p.mu.Unlock()
	closeAll(old)
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
	if p.surplus != nil {
		p.surplus.Stop()
	}
	p.mu.Unlock()
	closeAll(idle)
}
