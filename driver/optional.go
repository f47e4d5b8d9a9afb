package driver

import (
	"context"
	"iter"
)

// Inspector is implemented by stores whose holders can be seen; Guarantees.Visible
// says the same, as Guarantees.Break does of a Breaker.
type Inspector interface {
	// Inspect tells the state of one name. A name that nobody holds has a state
	// without holders and no error.
	Inspect(ctx context.Context, name string) (State, error)
	// List yields every name that starts with prefix and has a holder or a
	// waiter, in byte order.
	List(ctx context.Context, prefix string) iter.Seq2[State, error]
}

// Breaker is implemented by stores that can take a grant away.
type Breaker interface {
	// Break ends the grant of name that carries the token and answers CodeNotHeld if
	// it does not stand. Where Guarantees.Break is BreakAsk the holder is told to
	// end, and the grant stands until it has released; Break returns when it is
	// gone, or with an error of code CodeBusy, which says who was asked and still
	// holds, when its context has ended.
	Break(ctx context.Context, name string, token uint64) error
}

// Watcher is implemented by stores that can tell of changes as they happen.
type Watcher interface {
	// Watch calls changed, at least once at the start and again after each change
	// of the name's holders or waiters (of any name if name is empty), until ctx
	// ends, and then returns the context's error. Changes may be merged, and a call
	// may turn out to be about nothing. changed does not block.
	Watch(ctx context.Context, name string, changed func()) error
}
