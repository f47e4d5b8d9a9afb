package pgstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// listener receives the notifications of releases for recipe Optimistic. It has one connection,
// which exists while there are waiters and a little longer. Waiters poll behind a pooler, and in a
// store over the caller's pool, which has no listener.
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

const (
	// listenOn is how long the connection stays after the last waiter.
	listenOn = 10 * time.Second
	// connectTimeout limits one attempt to listen, and retryListen is the wait before the next.
	connectTimeout, retryListen = 5 * time.Second, 500 * time.Millisecond
)

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

// notify wakes the waiters of a payload.
func (l *listener) notify(payload string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wakeAll(l.waiting[payload])
}

// notifyAll wakes all waiters, because a notification may have been lost.
func (l *listener) notifyAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, waiters := range l.waiting {
		wakeAll(waiters)
	}
}

func wakeAll(waiters map[chan struct{}]struct{}) {
	for ch := range waiters {
		wakeup.Send(ch)
	}
}

// run listens, on one connection after another, until there were no waiters for a while. It also ends
// when it finds a pooler or Close is called.
func (l *listener) run() {
	for {
		l.listenOnce()
		l.setReady()
		l.notifyAll()
		l.mu.Lock()
		if len(l.waiting) == 0 || l.pooled || l.ctx.Err() != nil {
			l.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		_ = backoff.Sleep(l.ctx, retryListen)
	}
}

// setReady ends the wait of each Listen.
func (l *listener) setReady() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ready:
	default:
		close(l.ready)
	}
}

// listenOnce listens on one connection, until it ends or there were no waiters for a while.
func (l *listener) listenOnce() {
	link, err := l.connect()
	if err != nil {
		return
	}
	defer link.Close()
	l.notifyAll()
	l.setReady()
	var idle time.Time // since when there are no waiters
	for {
		ctx, cancel := context.WithTimeout(l.ctx, time.Second)
		err := link.conn.WaitForNotification(ctx)
		cancel()
		if err != nil && !pgconn.Timeout(err) || l.ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		waiters := len(l.waiting)
		l.mu.Unlock()
		switch {
		case waiters > 0:
			idle = time.Time{}
		case idle.IsZero():
			idle = time.Now()
		case time.Since(idle) > listenOn:
			return
		}
	}
}

// errPooled is the error of a pooler, which passes no notifications.
var errPooled = errors.New("there is a pooler before the server")

// connect opens a connection that listens.
func (l *listener) connect() (*pgLink, error) {
	cfg := l.pg.Copy()
	cfg.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { l.notify(n.Payload) }
	ctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	link, err := dialLink(ctx, cfg)
	if err != nil {
		return nil, err
	}
	// Behind a pooler the setting and LISTEN below would stay in a backend that other clients use
	// next.
	isDirect, err := direct(ctx, link)
	if err == nil && !isDirect {
		l.mu.Lock()
		l.pooled = true
		l.mu.Unlock()
		err = errPooled
	}
	if err == nil {
		_, err = link.Run(ctx, "SET idle_session_timeout = 0", "LISTEN "+channel)
	}
	if err != nil {
		link.Close()
		return nil, err
	}
	return link, nil
}
