package holdfast

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

func (l *Locker) unsupported(name, what string) error {
	return &failure{name: name, store: l.where, kind: ErrUnsupported, err: errors.New(what)}
}

// Values returns the versioned values that the store keeps beside its locks, for packages optimistic, sequence and
// fence. They work until Close. The error matches ErrUnsupported if the store keeps none, as Redlock.
func (l *Locker) Values() (driver.Values, error) {
	v, ok := l.store.(driver.Values)
	if !ok {
		return nil, l.unsupported("", "the store keeps no values")
	}
	return v, nil
}

// Inspect returns the holders of a name and its waiters. A name without holders has an
// empty state and no error. On SQL sessions it may omit a grant of the last 50 ms, on a slow link also an
// older one; see VisibleAfter of [Guarantees].
func (l *Locker) Inspect(ctx context.Context, name string) (State, error) {
	if err := checkName(name); err != nil {
		return State{}, err
	}
	i, ok := l.store.(driver.Inspector)
	if !ok {
		return State{}, l.unsupported(name, "the store cannot be inspected")
	}
	limited, cancel := context.WithTimeout(ctx, l.cfg.requestTimeout)
	defer cancel()
	st, err := i.Inspect(limited, name)
	if err != nil {
		return State{}, l.explain(ctx, name, err)
	}
	return st, nil
}

// List yields every name that starts with prefix and has a holder or a waiter, in byte
// order. If the store cannot read the record of a name, the state has Err, which matches
// [ErrRefused], and the list continues. An error ends it.
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
			if st.Err != nil {
				st.Err = fmt.Errorf("%w: %w", kinds[l.store.Classify(st.Err)], st.Err)
			}
			if !yield(st, nil) {
				return
			}
		}
	}
}

const (
	// watchInterval is the interval at which a watch reads the state, even if the store
	// notifies of changes.
	watchInterval = time.Second
	// listInterval is the least interval at which a watch reads the states of all names,
	// which may be many.
	listInterval = 100 * time.Millisecond
	// listTimeout is the timeout of one reading of all names.
	listTimeout = time.Minute
)

// Watch yields the state of a name now and after each change, until ctx ends. It may
// yield one state for several changes in quick succession. An error ends it.
func (l *Locker) Watch(ctx context.Context, name string) iter.Seq2[State, error] {
	read := func(ctx context.Context) (State, error) { return l.Inspect(ctx, name) }
	return watch(ctx, l, name, checkName(name), 0, read, func(st State) any { return withoutVolatile(st) })
}

// WatchAll yields the states of all names that have a holder or a waiter, in byte order,
// now and after each change, until ctx ends. It yields one state for all changes within
// a tenth of a second. States have Err as in List. An error ends it. One reading of all names may take a minute.
func (l *Locker) WatchAll(ctx context.Context) iter.Seq2[[]State, error] {
	read := func(ctx context.Context) (all []State, err error) {
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
	return watch(ctx, l, "", nil, listInterval, read, func(all []State) any {
		seen := make([]State, len(all))
		for i, st := range all {
			seen[i] = withoutVolatile(st)
		}
		return seen
	})
}

// watch yields what read returns, now and after each change other than of a TTL, at
// least interval apart. It reads when the store notifies of a change of the name (of any
// name if name is empty), and after watchInterval. If bad is set, read returns that
// error, and watch does not use the store's notifications.
func watch[T any](ctx context.Context, l *Locker, name string, bad error, interval time.Duration,
	read func(context.Context) (T, error), constant func(T) any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		changed := make(chan struct{}, 1)
		if w, ok := l.store.(driver.Watcher); ok && bad == nil {
			done := make(chan struct{})
			defer func() { cancel(); <-done }()
			go func() {
				defer close(done)
				// If the watch fails, the ticker continues.
				_ = w.Watch(ctx, name, func() { wakeup.Send(changed) })
			}()
		}
		ticker := time.NewTicker(watchInterval)
		defer ticker.Stop()
		var last any
		for first := true; ; first = false {
			state, err := read(ctx)
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
			if interval > 0 && !sleep(ctx, ctx, interval) {
				return
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

// withoutVolatile clears the TTLs, which change without an event.
func withoutVolatile(st State) State {
	holders := make([]Holder, len(st.Holders))
	for i, h := range st.Holders {
		h.TTL = 0
		holders[i] = h
	}
	st.Holders = holders
	if st.Err != nil {
		st.Err = errors.New(st.Err.Error())
	}
	return st
}

// Break ends the grant of name that has the token, which Inspect shows. A grant that is
// handed off inside a process has several tokens (Holder.Tokens); any of them names it, and
// its present holder loses it. The context of its holder ends with cause CauseTaken.
// ErrNotHeld means that the grant has ended before. A store that can only notify the holder
// (see Guarantees) waits until the holder has released the lock. ErrBusy then means that ctx
// ended first, and the error names the holder.
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
	case l.store.Classify(err) == driver.CodeBusy:
		return &BusyError{Name: name, Store: l.where, Err: err}
	}
	return l.explain(ctx, name, err)
}
