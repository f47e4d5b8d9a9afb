package calls

import (
	"context"
	"maps"
	"sync"
	"time"
)

// Shared are values that several callers use, by key: for example the sessions of a store, by TTL. One background
// task makes each value.
type Shared[K comparable, T any] struct {
	Calls *Calls
	// Make makes the value of a key. Its context ends after Timeout, and not with that of a caller, so that one of many
	// short calls succeeds.
	Make    func(context.Context, K) (T, error)
	Timeout time.Duration
	// Over reports that a value is of no use any more.
	Over func(T) bool

	mu    sync.Mutex
	tasks map[K]*task[T] // the last one of each key
}

// task is one call of Make.
type task[T any] struct {
	ready  chan struct{} // closed when result and err are set
	result T
	err    error
}

// Get returns the value of a key, and makes it if there is none. If ctx ends first, it returns the cause.
func (v *Shared[K, T]) Get(ctx context.Context, key K) (none T, _ error) {
	v.mu.Lock()
	t := v.tasks[key]
	if v.Calls.Stopped() || t == nil || v.over(t) {
		t = &task[T]{ready: make(chan struct{})}
		if !v.Calls.Go(func() { v.make(t, key) }) {
			v.mu.Unlock()
			return none, ErrClosed
		}
		if v.tasks == nil {
			v.tasks = map[K]*task[T]{}
		}
		maps.DeleteFunc(v.tasks, func(_ K, t *task[T]) bool { return v.over(t) })
		v.tasks[key] = t
	}
	v.mu.Unlock()
	select {
	case <-t.ready:
		return t.result, t.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

func (v *Shared[K, T]) make(t *task[T], key K) {
	defer close(t.ready)
	ctx, cancel := context.WithTimeout(v.Calls.Ctx, v.Timeout)
	defer cancel()
	t.result, t.err = v.Make(ctx, key)
}

// over reports whether the next call of Get has to make a value again.
func (v *Shared[K, T]) over(t *task[T]) bool {
	return t.made() && (t.err != nil || v.Over != nil && v.Over(t.result))
}

// made reports whether the call of Make has returned.
func (t *task[T]) made() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

// Made returns the values that were made. Some may be over.
func (v *Shared[K, T]) Made() map[K]T {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := map[K]T{}
	for key, t := range v.tasks {
		if t.made() && t.err == nil {
			all[key] = t.result
		}
	}
	return all
}
