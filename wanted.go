package holdfast

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// wanted is what Wanted has made for a Lock.
type wanted struct {
	ch   chan struct{} // closed by close
	once sync.Once
	end  context.CancelFunc // of the watches of the store
}

func (w *wanted) close() {
	w.once.Do(func() {
		close(w.ch)
		w.end()
	})
}

// Wanted returns a channel that is closed as soon as a request of this process or of another one waits for what the
// lock holds. A holder that can stop early then unlocks. The channel is not closed when the lock ends, and a request
// that does not wait, as that of TryLock, does not close it.
//
//	for item := range items {
//		select {
//		case <-k.Wanted():
//			return saveProgress(ctx)
//		default:
//			process(ctx, item)
//		}
//	}
//
// The first call starts a watch of the store, as Watch does: it reads the state when the store notifies of a change,
// and once a second. Without a call there is no request. If the store is unavailable, or does not show waiters (see
// Visible of [Guarantees]), only waiters of this process close the channel.
func (k *Lock) Wanted() <-chan struct{} {
	l := k.holder.lease.l
	l.mu.Lock()
	w := k.wanted
	if w == nil {
		var ctx context.Context
		w = &wanted{ch: make(chan struct{})}
		ctx, w.end = context.WithCancel(k.draining())
		k.wanted = w
		for _, p := range k.parts() {
			name := p.Name()
			if q := l.queues[name]; q != nil && q.head != nil {
				defer w.close()
			}
			if l.wanted == nil {
				l.wanted = map[string][]*wanted{}
			}
			l.wanted[name] = append(l.wanted[name], w)
			l.background.run(func() { l.watchWaiters(ctx, name, w) })
		}
	}
	l.mu.Unlock()
	return w.ch
}

// Wanted returns the channel of [Lock.Wanted] of the lock of that name which ctx carries. It returns nil, which blocks
// forever, if there is no such lock, or if it has ended.
func Wanted(ctx context.Context, name string) <-chan struct{} {
	if k := carriedLock(ctx, nil, name); k != nil {
		return k.Wanted()
	}
	return nil
}

// watchWaiters closes w when the store shows a waiter of the name. It ends with ctx.
func (l *Locker) watchWaiters(ctx context.Context, name string, w *wanted) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wanted[name] = slices.DeleteFunc(l.wanted[name], func(other *wanted) bool { return other == w })
		if len(l.wanted[name]) == 0 {
			delete(l.wanted, name)
		}
	}()
	_ = l.awaitWaiter(ctx, name, 0, func(Waiter) bool {
		w.close()
		return true
	})
	<-ctx.Done()
}

// awaitWaiter returns nil when the store shows a waiter of the name that counts. It returns an error when ctx has
// ended, when no later attempt can succeed, or if limit is not 0, when the store has refused to be read or could
// not be read for that time.
func (l *Locker) awaitWaiter(ctx context.Context, name string, limit time.Duration, counts func(Waiter) bool) error {
	var failing time.Time // since when, zero if it does not fail
	for r := (retry{}); ; {
		for st, err := range l.Watch(ctx, name) {
			switch {
			case err == nil && slices.ContainsFunc(st.Waiters, counts):
				return nil
			case err == nil:
				r.reset()
				failing = time.Time{}
				continue
			case failing.IsZero():
				failing = time.Now()
			}
			if permanent(err) || limit > 0 && (errors.Is(err, ErrRefused) || time.Since(failing) >= limit) {
				return err
			}
		}
		if !sleep(ctx, l.ctx, r.delay()) {
			return context.Canceled
		}
	}
}
