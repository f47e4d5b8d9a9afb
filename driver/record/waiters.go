package record

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// waiters are the waiters of this client. The storage is watched while there are waiters, and a little
// longer.
type waiters struct {
	e       *engine
	watcher Watcher // nil if there is none

	mu       sync.Mutex
	byKey    map[string]map[string]chan struct{} // by ID
	watching bool
	useless  bool               // the storage cannot be watched
	cancel   context.CancelFunc // ends the present Watch
	ready    chan struct{}      // closed after the first attempt to watch
	idle     *time.Timer        // ends the watch when there were no waiters for watchOn
}

const (
	// watchOn is how long the storage is watched after the last waiter.
	watchOn = 10 * time.Second
	// watchRetry is the longest pause after a failure to watch. The storage's end reaches all clients at one moment, so the
	// pauses are random.
	watchRetry = 500 * time.Millisecond
)

func (w *waiters) init(e *engine) {
	w.e, w.byKey, w.ready = e, map[string]map[string]chan struct{}{}, make(chan struct{})
	if w.watcher, _ = e.batch.(Watcher); w.watcher == nil {
		w.useless = true
		close(w.ready)
	}
	w.idle = time.AfterFunc(watchOn, w.endWatch)
	w.idle.Stop()
}

// listen registers a waiter until the returned function is called. It returns after the first attempt to watch, or after Options.Poll. The channel
// receives when the record of the key has changed, or when a notification may have been lost.
func (w *waiters) listen(ctx context.Context, key, id string) (<-chan struct{}, func(), error) {
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	if w.byKey[key] == nil {
		w.byKey[key] = map[string]chan struct{}{}
	}
	w.byKey[key][id] = ch
	w.idle.Stop()
	if !w.watching && !w.useless {
		w.watching, w.ready = true, make(chan struct{})
		w.e.calls.Tasks.Go(w.watch)
	}
	ready := w.ready
	w.mu.Unlock()
	stop := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.byKey[key][id] == ch {
			delete(w.byKey[key], id)
		}
		if len(w.byKey[key]) == 0 {
			delete(w.byKey, key)
		}
		if len(w.byKey) == 0 && w.watching {
			w.idle.Reset(watchOn)
		}
	}
	select {
	case <-ready:
		select {
		case <-ch: // the waiter tries again anyway
		default:
		}
	case <-time.After(w.e.o.Poll):
	case <-ctx.Done():
		return nil, stop, ctx.Err()
	}
	return ch, stop, nil
}

// endWatch ends the watch unless there are waiters.
func (w *waiters) endWatch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.byKey) == 0 && w.cancel != nil {
		w.cancel()
	}
}

// watch watches the storage until there are no waiters, the storage cannot be watched, or the engine ends.
func (w *waiters) watch() {
	for retry := (backoff.Backoff{First: watchRetry, Max: watchRetry}); ; {
		ctx, cancel := context.WithCancel(w.e.calls.Ctx)
		w.mu.Lock()
		w.cancel = cancel
		w.mu.Unlock()
		err := w.watcher.Watch(ctx, w.changed)
		cancel()
		w.changed("", "") // in any case, the waiters try again
		w.mu.Lock()
		w.useless = driver.CodeOf(err) == driver.CodeUnsupported
		if len(w.byKey) == 0 || w.useless || w.e.calls.Ctx.Err() != nil {
			w.watching, w.cancel = false, nil
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		_ = retry.Sleep(w.e.calls.Ctx)
	}
}

// watched reports whether the storage is watched.
func (w *waiters) watched() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-w.ready:
		return w.watching
	default:
		return false
	}
}

// changed wakes a waiter of a key, or all of them if id is "". The key "" means all waiters, and that an attempt to watch
// was made.
func (w *waiters) changed(key, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key != "" {
		wake(w.byKey[key], id)
		return
	}
	select {
	case <-w.ready:
	default:
		close(w.ready)
	}
	for _, some := range w.byKey {
		wake(some, "")
	}
}

// wakeLocal wakes the waiters of a key after a change by this client, if the storage does not report it.
func (w *waiters) wakeLocal(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.useless {
		wake(w.byKey[key], "")
	}
}

// wake wakes the waiter with an ID, or all if it is "".
func wake(some map[string]chan struct{}, id string) {
	for of, ch := range some {
		if id == "" || id == of {
			wakeup.Send(ch)
		}
	}
}
