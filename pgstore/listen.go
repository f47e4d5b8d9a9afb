package pgstore

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// listener receives the notifications of releases, on one connection that exists while there
// are waiters and a little longer. Without a listener, and behind a pooler, waiters poll.
type listener struct {
	pg     *pgconn.Config
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	waiting map[string]map[chan struct{}]struct{} // by payload
	running bool
	pooled  bool          // behind a pooler, which passes no notifications
	ready   chan struct{} // closed after the first attempt to listen
}

// listenOn is how long the connection stays after the last waiter.
const listenOn = 10 * time.Second

func newListener(pg *pgconn.Config) *listener {
	l := &listener{pg: pg, waiting: map[string]map[chan struct{}]struct{}{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Listen registers a waiter. It returns after the first attempt to listen.
func (l *listener) Listen(ctx context.Context, name []byte) (<-chan struct{}, func(), error) {
	ch, p := make(chan struct{}, 1), payload(name)
	l.mu.Lock()
	if l.waiting[p] == nil {
		l.waiting[p] = map[chan struct{}]struct{}{}
	}
	l.waiting[p][ch] = struct{}{}
	if !l.running && !l.pooled && l.ctx.Err() == nil {
		l.running, l.ready = true, make(chan struct{})
		l.tasks.Go(l.run)
	}
	ready := l.ready
	l.mu.Unlock()
	stop := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(l.waiting[p], ch); len(l.waiting[p]) == 0 {
			delete(l.waiting, p)
		}
	}
	select {
	case <-ready:
		select {
		case <-ch: // the waiter tries again anyway
		default:
		}
		return ch, stop, nil
	case <-l.ctx.Done():
		stop()
		return nil, nil, sqlkit.ErrClosed
	case <-ctx.Done():
		stop()
		return nil, nil, ctx.Err()
	}
}

// Close ends the connection and the goroutine.
func (l *listener) Close() {
	l.cancel()
	l.tasks.Wait()
}

// notify wakes the waiters of a payload, or all.
func (l *listener) notify(p string, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q, chans := range l.waiting {
		if !all && q != p {
			continue
		}
		for ch := range chans {
			wakeup.Send(ch)
		}
	}
}

// run listens until there were no waiters for a while.
func (l *listener) run() {
	for {
		l.session()
		l.notify("", true) // a notification may have been missed
		l.mu.Lock()
		if len(l.waiting) == 0 || l.pooled || l.ctx.Err() != nil {
			l.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		_ = backoff.Sleep(l.ctx, 500*time.Millisecond)
	}
}

func (l *listener) session() {
	tried := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		select {
		case <-l.ready:
		default:
			close(l.ready)
		}
	}
	defer tried()
	cfg := l.pg.Copy()
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { l.notify(n.Payload, false) }
	ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
	defer cancel()
	link, err := dialLink(ctx, cfg)
	if err != nil {
		return
	}
	defer link.Close()
	// Behind a pooler the settings would stay in a backend that other clients use next.
	is, err := direct(ctx, link)
	if err != nil {
		return
	}
	if !is {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pooled = true
		return
	}
	if _, err := link.Run(ctx, "SET idle_session_timeout = 0", "LISTEN "+channel); err != nil {
		return
	}
	l.notify("", true)
	tried()
	var idle time.Time
	for {
		ctx, cancel := context.WithTimeout(l.ctx, time.Second)
		err := link.conn.WaitForNotification(ctx)
		cancel()
		if err != nil && !pgconn.Timeout(err) || l.ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		busy := len(l.waiting) > 0
		l.mu.Unlock()
		switch {
		case busy:
			idle = time.Time{}
		case idle.IsZero():
			idle = time.Now()
		case time.Since(idle) > listenOn:
			return
		}
	}
}
