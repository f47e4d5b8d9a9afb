package driver

import (
	"context"
	"iter"
)

// Inspector is implemented by stores whose holders can be inspected, as declared in
// Guarantees.Visible. An inspection changes nothing, so none of its errors is CodeUnknown.
type Inspector interface {
	// Inspect returns the state of one name. For a free name that is a state without
	// holders, and no error. For a broken record it returns the error that List yields in
	// State.Err.
	Inspect(ctx context.Context, name string) (State, error)
	// List yields every name that starts with prefix and has a holder or a waiter, in byte
	// order. For a broken record it yields a state with Err, and goes on with the other names. A
	// broken record without a name comes first, whatever prefix is. An error ends the list.
	List(ctx context.Context, prefix string) iter.Seq2[State, error]
}

// Breaker is implemented by stores that can break a grant, as declared in Guarantees.Break.
type Breaker interface {
	// Break ends the grant of name with the token, or returns CodeNotHeld if there is none.
	// The token may be any of those that the grant has reserved. If Guarantees.Break is
	// BreakNotify, the store notifies the holder, and the grant stands until the holder has
	// released. Break then returns when the grant has ended. If its context ends first, it
	// returns an error of code CodeBusy that names the holder.
	Break(ctx context.Context, name string, token uint64) error
}

// Exposer is implemented by stores that know how their connections are protected.
type Exposer interface {
	// Exposed returns a warning if a password goes to another machine without TLS to a verified
	// server, else "". It sends no request. The core reports the warning once.
	Exposed() string
}

// Watcher is implemented by stores that can report changes as they happen.
type Watcher interface {
	// Watch calls changed at least once at the start, and again after each change of the name's
	// holders or waiters. If name is empty, it does so for a change of any name. When ctx ends,
	// Watch returns the context's error. Changes may coalesce, and a call may come without a
	// change. changed does not block.
	//
	// A store that cannot report all changes reports at least a request that has waited for a moment, if Guarantees.Wanted is push.
	// The core reads the state once a second, too. Watch of a client that gets no notifications, or none for any name,
	// returns an error of code CodeUnsupported.
	Watch(ctx context.Context, name string, changed func()) error
}

// Swapper is implemented by stores that can release a grant and make the queue entry of another
// request in one atomic step. The core uses it if Guarantees.Wake is push, and Guarantees.Order is
// fifo or Guarantees.Reserves is set. After a grant the core delays the request of the next local waiter for at most
// HandoffTime. It calls Swap if the grant is released within that time and has no token left for a handoff to that
// waiter. For other stores the core calls Release and Acquire.
type Swapper interface {
	// Swap releases old, like Release without keep, and does what Acquire does for r, whose Wait
	// is set. The entry of r goes to the end of the queue, and a grant of r has a new token.
	//
	// The halves are independent. If old has ended, r is queued in any case. If r fails,
	// old may be released in any case. Swap calls released once, with what Release would have
	// returned. It does so as soon as it has the outcome of the release, and before it waits
	// for the grant. released does not block. If Swap returns without having called it, nothing
	// of the release was applied or can be applied later, and the core calls Release. After
	// an answer that was lost, the outcomes of both halves are unknown: Swap calls released
	// with an error of code CodeUnknown, and returns one.
	Swap(ctx context.Context, old Grant, r Request, released func(error)) (Grant, error)
}

// Delayer is implemented by Requesters. A Requester that wraps another one may not implement it: a store then calls
// Queued without holders.
type Delayer interface {
	// Delayed reports that a request waits for something in this process, such as a connection. It has
	// no queue entry. err, of code CodeUnavailable, is its error if the wait ends now. With Wait, the core then waits as
	// after Queued. Delayed does not block.
	Delayed(err error)
}

// Values is implemented by stores that keep versioned values beside the locks. A lock and a value
// of the same name are independent. Package optimistic is the interface for programs. Get and Put
// are safe for concurrent use.
//
// Keys have the form of names, and a namespace separates them in the same way. Data has at most
// MaxValue bytes. Errors carry a code like all errors of the store.
type Values interface {
	// Get returns the data of a key and its version. A key that was never written has no
	// data and the version "". Get sees every Put that was confirmed before it began.
	Get(ctx context.Context, key string) (data []byte, version string, err error)
	// Put writes data if the key's version is still the given one, in one atomic step,
	// and returns the new version. A version is never used twice for a key. Otherwise
	// the error is of code CodeConflict. After an error of code CodeUnknown the data may
	// have been written, or may be written later.
	Put(ctx context.Context, key string, data []byte, version string) (string, error)
}

// MaxValue is the length of the longest value, in bytes.
const MaxValue = 512 << 10

// CheckValue returns an error of code CodeInvalid for a bad key or for too much data, else nil. A
// Get checks its key in the same way.
func CheckValue(key string, data []byte) error {
	if err := checkText("key", key, 1, MaxName); err != nil {
		return &Error{Code: CodeInvalid, Err: err}
	}
	if len(data) > MaxValue {
		return Errorf(CodeInvalid, "the value of %q has %d bytes: at most %d are allowed", key, len(data), MaxValue)
	}
	return nil
}

// Conflict returns the error of a Put whose version differs from the version of the key.
func Conflict(key string) error {
	return Errorf(CodeConflict, "the value of %q has another version", key)
}
