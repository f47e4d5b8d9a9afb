// Package deadline describes the context of a request: a context with a deadline whose timer
// starts only when a store waits for its end.
package deadline

import "context"

// Context is a context whose end has two causes. Deadline returns the deadline without
// starting a timer.
type Context interface {
	context.Context
	// Caller returns the context whose end also ends this one, like the deadline. It is
	// context.Background if only the deadline does.
	Caller() context.Context
}

// Cancellation returns the context to watch for the end of ctx by a client that keeps the
// deadline of ctx by itself.
func Cancellation(ctx context.Context) context.Context {
	if c, ok := ctx.(Context); ok {
		return c.Caller()
	}
	return ctx
}
