package pgstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// watches are the watches of names for waiters, in a store with recipe Advisory or Pessimistic.
//
// One connection listens for all of them. Its session has an advisory lock for each watched name, the mark of the name. When
// a request has waited for a moment, its process finds it in the queue over another connection, and tries to share the mark.
// If it cannot, it notifies the listeners. So the statements that lock are the same, and a short wait costs nothing. The mark
// ends with the session that listens.
//
// The mark is not shared: a waiter that tried to get it alone would find those of other waiters in its way. So one of
// several clients that watch a name has the mark. The others are notified nevertheless, because all listen to one channel,
// and try to get the mark again and again.
//
// A notification that is lost, or finds no mark in such a moment, costs time: the holder reads the state once a second.
type watches struct {
	*listener
	*calls.Calls

	mu      sync.Mutex
	names   map[string]*watched // by mark, as an argument
	serving bool
	kick    context.CancelFunc // ends the present wait for notifications
}

// watched is a name with watches.
type watched struct {
	watches map[*watch]struct{} // if there are none, the mark has to go
	marked  bool
	next    time.Time // of the next try to get the mark
	pause   backoff.Backoff
}

// watch is one call of Watch.
type watch struct {
	begun   bool          // started was sent
	started chan struct{} // the listener has the mark, or cannot get it now: the state may have changed before
	waiter  chan struct{} // a request begins to wait
}

// start wakes the watch, because the state may have changed.
func (one *watch) start() {
	one.begun = true
	wakeup.Send(one.started)
}

const (
	// wantedChannel carries the marks of names for which a request begins to wait.
	wantedChannel = "holdfast_wanted"
	// listenOn is how long the connection listens after the last watch. A name that is kept again and again is watched
	// as often.
	listenOn = 10 * time.Second
	// listenCheck is how long the connection may be silent before the client asks the server for an answer: a proxy may
	// have dropped it.
	listenCheck = 15 * time.Second
	// listenRetry is the longest pause after a failure to listen. The pauses are random, see watchRetry of package record.
	listenRetry = 500 * time.Millisecond
	// pooledRetry is the pause after a pooler was found that has come between the client and the server.
	pooledRetry = time.Minute
)

var errNoNotifications = driver.Errorf(driver.CodeUnsupported, "pgstore: there are no notifications of these changes")

// markAgain is the pause between tries to get a mark.
var markAgain = backoff.Backoff{First: 10 * time.Millisecond, Max: time.Second}

// watched returns an expression that reports whether a client watches the name of a mark.
func (m mark) watched() string {
	return fmt.Sprintf("CASE WHEN pg_catalog.pg_try_advisory_lock_shared(%[1]s) THEN NOT pg_catalog.pg_advisory_unlock_shared(%[1]s) ELSE true END", m.args())
}

// Announce implements sqlkit.Announcer.
func (r sessions) Announce(ctx context.Context, side sqlkit.Link, key []byte) error {
	m := r.s.wantedMark(key)
	_, err := side.Run(ctx, "SELECT pg_catalog.pg_notify('"+wantedChannel+"', '"+m.args()+"') WHERE "+m.watched())
	return err
}

// wantedMark returns the mark of a name of recipe Advisory.
func wantedMark(key []byte) mark { return hashed("wanted\x00", key) }

// newWatches makes the watches. Without a listener there are no notifications.
func newWatches(l *listener) *watches {
	return &watches{listener: l, Calls: calls.New(), names: map[string]*watched{}}
}

// close ends the watches.
func (w *watches) close() {
	w.Stop()
	w.Cancel()
	w.Running.Wait()
	w.Tasks.Wait()
}

// notified reports whether there are notifications. direct means that there is no pooler before the server.
func (w *watches) notified(direct bool) bool { return direct && w.listener != nil }

// watch calls changed when it has begun to listen, and when a request begins to wait for the lock of the mark. The request
// may be visible a moment later, so watch repeats the call.
func (w *watches) watch(ctx context.Context, m mark, direct bool, changed func()) error {
	ctx, end, err := w.Call(ctx)
	if err != nil {
		return err
	}
	defer end()
	if !w.notified(direct) {
		return errNoNotifications
	}
	one := &watch{started: make(chan struct{}, 1), waiter: make(chan struct{}, 1)}
	w.add(m.args(), one)
	defer w.remove(m.args(), one)
	for {
		select {
		case <-one.started:
			changed()
		case <-one.waiter:
			changed()
			for pause := time.Millisecond; pause < 100*time.Millisecond && backoff.Sleep(ctx, pause) == nil; pause *= 4 {
				changed()
			}
		case <-ctx.Done():
			if w.Stopped() {
				return calls.ErrClosed
			}
			return ctx.Err()
		}
	}
}

func (w *watches) add(key string, one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.names[key]
	if n == nil {
		n = &watched{watches: map[*watch]struct{}{}, pause: markAgain}
		w.names[key] = n
	}
	n.watches[one] = struct{}{}
	switch {
	case n.marked:
		one.start()
	case w.serving:
		w.kickLocked()
	default:
		w.serving = true
		w.Tasks.Go(w.serve) // within a call
	}
}

func (w *watches) remove(key string, one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.names[key]
	delete(n.watches, one)
	switch {
	case len(n.watches) > 0:
	case w.serving:
		w.kickLocked()
	default:
		delete(w.names, key)
	}
}

func (w *watches) kickLocked() {
	if w.kick != nil {
		w.kick()
	}
}

// serve listens until there was no watch for listenOn, or the store is closed.
func (w *watches) serve() {
	for retry := (backoff.Backoff{First: listenRetry, Max: listenRetry}); ; {
		err := w.listen()
		w.mu.Lock()
		for key, n := range w.names {
			if len(n.watches) == 0 {
				delete(w.names, key)
			}
			for one := range n.watches {
				if n.marked || !one.begun {
					one.start()
				}
			}
			n.marked, n.next, n.pause = false, time.Time{}, markAgain
		}
		if len(w.names) == 0 || w.Stopped() {
			w.serving = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		switch {
		case err == errPooled:
			_ = backoff.Sleep(w.Ctx, pooledRetry)
		case err != nil:
			_ = retry.Sleep(w.Ctx)
		}
	}
}

// receive is called for a notification of a mark. Any program may send one, and it only makes a holder read the state.
func (w *watches) receive(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.names[key]; n != nil {
		for one := range n.watches {
			wakeup.Send(one.waiter)
		}
	}
}

// listen keeps one connection, until it fails, or there was no watch for listenOn. Then it returns nil.
func (w *watches) listen() error {
	link, err := w.connect(w.Ctx, wantedChannel, w.receive)
	if err != nil {
		return err
	}
	defer link.Close()
	for {
		ctx, kick := context.WithCancel(w.Ctx)
		script, wait := w.plan(kick)
		ctx, end := context.WithTimeout(ctx, wait)
		if len(script) > 0 {
			end()
			kick()
			err = w.mark(link, script)
		} else if err = link.conn.WaitForNotification(ctx); ctx.Err() != nil {
			err = nil
		}
		silent := ctx.Err() == context.DeadlineExceeded
		idle := silent && wait == listenOn
		end()
		kick()
		if silent && wait == listenCheck && err == nil {
			err = w.mark(link, []string{"SELECT ''"})
		}
		if err != nil || idle || w.Stopped() {
			return err
		}
	}
}

// plan returns statements that take and remove marks. Each returns the mark and whether the session has it. plan also
// returns how long to wait for notifications if there are none: listenOn if there is no watch. kick ends the wait.
func (w *watches) plan(kick context.CancelFunc) (script []string, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kick = kick
	wait = listenCheck
	now := time.Now()
	for key, n := range w.names {
		has := "pg_catalog.pg_try_advisory_lock(%[1]s)"
		switch used := len(n.watches) > 0; {
		case used && n.marked:
			continue
		case used && now.Before(n.next):
			wait = min(wait, n.next.Sub(now))
			continue
		case !used && !n.marked:
			delete(w.names, key)
			continue
		case !used:
			has = "NULL, pg_catalog.pg_advisory_unlock(%[1]s)"
			n.marked = false
		default:
			n.next = now.Add(n.pause.Next())
		}
		script = append(script, fmt.Sprintf("SELECT '%[1]s', "+has, key))
	}
	if len(w.names) == 0 {
		wait = listenOn
	}
	return script, wait
}

// mark runs a script of plan, or a statement that returns no mark.
func (w *watches) mark(link *pgLink, script []string) error {
	ctx, cancel := context.WithTimeout(w.Ctx, sqlkit.AnswerWithin)
	defer cancel()
	answers, err := link.Run(ctx, script...)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range answers {
		row := answers.First(i)
		n := w.names[row.Text(0)]
		if n == nil {
			continue
		}
		if n.marked = row.True(1); n.marked {
			n.next, n.pause = time.Time{}, markAgain
		}
		for one := range n.watches {
			if n.marked || !one.begun {
				one.start()
			}
		}
	}
	return nil
}
