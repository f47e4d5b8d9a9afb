package holdfast

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func (l *Locker) unsupported(name, what string) error {
	return &failure{name: name, store: l.where, kind: ErrUnsupported, err: errors.New(what)}
}

// Inspect tells who holds a name and who waits for it. A name that nobody holds
// has an empty state and no error.
func (l *Locker) Inspect(ctx context.Context, name string) (State, error) {
	if err := checkName(name); err != nil {
		return State{}, err
	}
	i, ok := l.store.(driver.Inspector)
	if !ok {
		return State{}, l.unsupported(name, "the store cannot be inspected")
	}
	asking, cancel := context.WithTimeout(ctx, l.cfg.requestTimeout)
	defer cancel()
	st, err := i.Inspect(asking, name)
	if err != nil {
		return State{}, l.explain(ctx, name, err)
	}
	return st, nil
}

// List yields every name that starts with prefix and is held or waited for, in
// byte order. An error ends it.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		if prefix != "" {
			if err := checkName(prefix); err != nil {
				yield(State{}, err)
				return
			}
		}
		i, ok := l.store.(driver.Inspector)
		if !ok {
			yield(State{}, l.unsupported("", "the store cannot be inspected"))
			return
		}
		for st, err := range i.List(ctx, prefix) {
			if err != nil {
				yield(State{}, l.explain(ctx, "", err))
				return
			}
			if !yield(st, nil) {
				return
			}
		}
	}
}

// watchPause is how often a store that cannot tell of changes is asked, and how
// often one that can is asked all the same.
const watchPause = time.Second

// listPause is the least time between two looks at all names, which may be many,
// and listTimeout the longest that one may take.
const (
	listPause   = 100 * time.Millisecond
	listTimeout = time.Minute
)

// Watch yields the state of a name now and after each change, until ctx ends.
// Changes that follow one another quickly may be merged. An error ends it.
func (l *Locker) Watch(ctx context.Context, name string) iter.Seq2[State, error] {
	look := func(ctx context.Context) (State, error) { return l.Inspect(ctx, name) }
	return watch(ctx, l, name, checkName(name), 0, look, func(st State) any { return steady(st) })
}

// WatchAll yields the states of all names that are held or waited for, in byte
// order, now and after each change, until ctx ends. Changes within a tenth of a
// second are merged. An error ends it, also of a look that takes a minute.
func (l *Locker) WatchAll(ctx context.Context) iter.Seq2[[]State, error] {
	look := func(ctx context.Context) (all []State, err error) {
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		for st, err := range l.List(ctx, "") {
			if err != nil {
				return nil, err
			}
			all = append(all, st)
		}
		return all, nil
	}
	return watch(ctx, l, "", nil, listPause, look, func(all []State) any {
		seen := make([]State, len(all))
		for i, st := range all {
			seen[i] = steady(st)
		}
		return seen
	})
}

// watch yields what look finds, now and after each change of what constant makes
// of it, at least pause apart. It looks when the store tells of a change of the
// name, of any name if that is empty, and after watchPause; where bad is set look
// says so itself.
func watch[T any](ctx context.Context, l *Locker, name string, bad error, pause time.Duration,
	look func(context.Context) (T, error), constant func(T) any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		changed := make(chan struct{}, 1)
		if w, ok := l.store.(driver.Watcher); ok && bad == nil {
			done := make(chan struct{})
			defer func() { cancel(); <-done }()
			go func() {
				defer close(done)
				// A watch that fails leaves the timer, which goes on.
				_ = w.Watch(ctx, name, func() {
					select {
					case changed <- struct{}{}:
					default:
					}
				})
			}()
		}
		ticker := time.NewTicker(watchPause)
		defer ticker.Stop()
		var last any
		for first := true; ; first = false {
			state, err := look(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			if seen := constant(state); first || !reflect.DeepEqual(seen, last) {
				last = seen
				if !yield(state, nil) {
					return
				}
			}
			if pause > 0 {
				select {
				case <-time.After(pause):
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// steady leaves out what changes by itself.
func steady(st State) State {
	holders := make([]Holder, len(st.Holders))
	for i, h := range st.Holders {
		h.TTL = 0
		holders[i] = h
	}
	return State{Name: st.Name, Holders: holders, Waiters: st.Waiters}
}

// Break takes a lock away: the grant of name that carries the token, which
// Inspect shows. ErrNotHeld means that this grant is gone. Its holder's context
// ends with cause Taken. Where the store can only ask (see Guarantees), Break
// waits until the holder has released; ErrBusy means that ctx ended before that,
// and the error says who was asked.
func (l *Locker) Break(ctx context.Context, name string, token uint64) error {
	if err := checkName(name); err != nil {
		return err
	}
	if token == 0 || token >= driver.MaxToken {
		return invalid("token %d: from 1 to 2^63-1 is allowed", token)
	}
	b, ok := l.store.(driver.Breaker)
	if !ok {
		return l.unsupported(name, "the store cannot take a lock away")
	}
	err := b.Break(ctx, name, token)
	switch {
	case err == nil:
		return nil
	case l.store.Classify(err) == driver.Busy:
		return &BusyError{Name: name, Store: l.where, Err: err}
	}
	return l.explain(ctx, name, err)
}
