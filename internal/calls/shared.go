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
	// Over reports that a value is of no use any more. It does not block.
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

// Get returns the value of a key, and makes it if there is none. A caller that has waited for the task of another one, and
// has got an error or a value that is over, waits for one more. If ctx ends first, Get returns the cause.
func (v *Shared[K, T]) Get(ctx context.Context, key K) (none T, _ error) {
	for again := false; ; again = true {
		t, began := v.task(key)
		if t == nil {
			return none, ErrClosed
		}
		select {
		case <-t.ready:
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
		if began || again || !v.over(t) {
			return t.result, t.err
		}
	}
}

// task returns the task of a key, and whether it has begun it. It returns nil if the store is closed.
func (v *Shared[K, T]) task(key K) (t *task[T], began bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t = v.tasks[key]
	if !v.Calls.Stopped() && t != nil && !v.over(t) {
		return t, false
	}
	t = &task[T]{ready: make(chan struct{})}
	if !v.Calls.Go(func() { v.make(t, key) }) {
		return nil, false
	}
	if v.tasks == nil {
		v.tasks = map[K]*task[T]{}
	}
	maps.DeleteFunc(v.tasks, func(_ K, t *task[T]) bool { return v.over(t) })
	v.tasks[key] = t
	return t, true
}

func (v *Shared[K, T]) make(t *task[T], key K) {
	defer close(t.ready)
	ctx, cancel := context.WithTimeout(v.Calls.Ctx, v.Timeout)
	defer cancel()
	if t.result, t.err = v.Make(ctx, key); t.err != nil && v.Calls.Stopped() {
		t.err = ErrClosed
	}
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
