package otelhooks

import (
	"context"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
)

// acquisition is one request for a lock and the grant that comes of it. It is
// the context that Start returns, and so comes back with every event about
// either; no table of what is held is needed, and nothing can be left in one.
//
// While the lock is being asked for, the context shows the acquire span, for the
// store's client to put its own below it. The lock's context derives from this
// one, so from then on it shows the caller's span again: the work is no part of
// the acquisition.
type acquisition struct {
	context.Context                 // the caller's
	asking          context.Context // the caller's, with the acquire span
	hooks           *hooks
	span            trace.Span // of the acquisition
	over            atomic.Bool

	// The events of one grant come from two goroutines and in either order: a
	// loss may be reported before the grant is.
	mu    sync.Mutex
	ended bool
	hold  trace.Span // nil until acquired
}

// acquisitionKey differs for each hooks, since two of them may watch one Locker,
// or two Lockers whose locks are nested.
type acquisitionKey struct{ *hooks }

func (a *acquisition) Value(key any) any {
	if key == (acquisitionKey{a.hooks}) {
		return a
	}
	if a.over.Load() {
		return a.Context.Value(key)
	}
	return a.asking.Value(key)
}

func (h *hooks) acquisition(ctx context.Context) *acquisition {
	a, _ := ctx.Value(acquisitionKey{h}).(*acquisition)
	return a
}

// beside is the context for spans next to that of the acquisition: below the
// caller's span, or, in a trace of its own, below the acquisition's.
func (a *acquisition) beside() context.Context {
	if trace.SpanContextFromContext(a.Context).IsValid() {
		return a.Context
	}
	return trace.ContextWithSpan(a.Context, a.span)
}

// begin counts the grant as held. One that was lost meanwhile never was.
func (a *acquisition) begin(e holdfast.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || a.hold != nil {
		return
	}
	_, a.hold = a.hooks.tracer.Start(a.beside(), "holdfast.hold",
		trace.WithAttributes(a.hooks.identity(e)...),
		trace.WithAttributes(grant(e)...),
		trace.WithLinks(trace.Link{SpanContext: a.span.SpanContext()}))
	// Under mu, so that no reader ever sees the end without the beginning.
	a.hooks.locksHeld.Add(a.Context, 1, labels(e))
}

// end counts the grant as no longer held. Only the first call counts, and only
// for a grant that a caller got: one that came too late to be of use is released
// as well.
func (a *acquisition) end(ctx context.Context, e holdfast.Event, result string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	a.ended = true
	if a.hold == nil {
		return
	}
	h := a.hooks
	h.locksHeld.Add(a.Context, -1, labels(e))
	h.holdDuration.Record(trace.ContextWithSpan(ctx, a.hold), e.Took.Seconds(), labels(e, outcomeKey.String(result)))
	attrs := []attribute.KeyValue{outcomeKey.String(result)}
	if result == "lost" {
		attrs = append(attrs, causeKey.String(cause(e)))
	}
	if result != "released" {
		attrs = append(attrs, attribute.String("error.type", result))
		a.hold.SetStatus(codes.Error, h.describe(result, e.Err))
	}
	a.hold.SetAttributes(attrs...)
	a.hold.End()
}

// recording is the span that still records for this lock, or nil.
func (a *acquisition) recording() trace.Span {
	if a == nil {
		return nil
	}
	if a.span.IsRecording() {
		return a.span
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hold != nil && a.hold.IsRecording() {
		return a.hold
	}
	return nil
}
