package zkstore

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// shared is a value that several callers use. One background call makes it.
type shared[T any] struct {
	make func(context.Context) (T, error)
	over func(T) bool // reports that the value is of no use any more

	call *task[T] // the last one; the store's mutex guards it
}

// task is one call of make.
type task[T any] struct {
	ready  chan struct{} // closed when result and err are set
	result T
	err    error
}

// openTimeout is the timeout of an attempt to open a session, and to verify that one has ended.
const openTimeout = 5 * time.Second

// get returns the value, and makes it if there is none. The call of make takes openTimeout at most. It
// continues after the context of a caller has ended, so that one of many short calls succeeds.
func (v *shared[T]) get(ctx context.Context, s *store) (none T, err error) {
	for {
		s.mu.Lock()
		if s.calls.Stopped() {
			s.mu.Unlock()
			return none, errClosed()
		}
		t := v.call
		if t == nil {
			t = &task[T]{ready: make(chan struct{})}
			v.call = t
			s.calls.Tasks.Go(func() {
				defer close(t.ready)
				ctx, cancel := context.WithTimeout(s.calls.Ctx, openTimeout)
				defer cancel()
				t.result, t.err = v.make(ctx)
			})
		}
		s.mu.Unlock()
		select {
		case <-t.ready:
		case <-ctx.Done():
			return none, s.fail(&zk.NotSentError{Err: ctx.Err()})
		}
		if t.err == nil && !v.over(t.result) {
			return t.result, nil
		}
		s.mu.Lock()
		if v.call == t {
			v.call = nil
		}
		s.mu.Unlock()
		if t.err != nil {
			return none, s.fail(t.err)
		}
	}
}

// present returns the value if it was made. The caller holds the store's mutex.
func (v *shared[T]) present() (value T, ok bool) {
	if v.call == nil {
		return value, false
	}
	select {
	case <-v.call.ready:
		return v.call.result, v.call.err == nil
	default:
		return value, false
	}
}
