package otelhooks

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
)

// acquisition is one request for a lock and the grant that results from it. It is
// the context that Start returns, so every event about the request or the grant
// carries it. The hooks therefore need no table of held locks.
//
// During the acquisition the context carries the acquire span, so that the store's
// client puts its spans below it. The lock's context derives from this one. After
// the acquisition the context carries the caller's span again, because the work
// is not part of the acquisition.
type acquisition struct {
	context.Context                 // the caller's
	spanned         context.Context // the caller's, with the acquire span
	hooks           *hooks
	span            trace.Span // of the acquisition
	over            atomic.Bool
	wait            *list.Element // in the hooks' waits

	// Two goroutines report the events of one grant, in any order: a loss may be
	// reported before the grant.
	mu    sync.Mutex
	ended bool
	hold  trace.Span // nil until acquired
}

// acquisitionKey differs for each hooks value, because two of them may observe one
// Locker, or two Lockers whose locks are nested.
type acquisitionKey struct{ *hooks }

func (a *acquisition) Value(key any) any {
	if key == (acquisitionKey{a.hooks}) {
		return a
	}
	if a.over.Load() {
		return a.Context.Value(key)
	}
	return a.spanned.Value(key)
}

func (h *hooks) acquisition(ctx context.Context) *acquisition {
	a, _ := ctx.Value(acquisitionKey{h}).(*acquisition)
	return a
}

// beside returns the context for spans beside the acquire span: below the caller's
// span, or, if the caller has none, below the acquire span.
func (a *acquisition) beside() context.Context {
	if trace.SpanContextFromContext(a.Context).IsValid() {
		return a.Context
	}
	return trace.ContextWithSpan(a.Context, a.span)
}

// begin counts the grant as held, unless it is already lost.
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
	// The counter changes under mu, so that no reader sees the end without the beginning.
	a.hooks.locksHeld.Add(a.Context, 1, labels(e))
}

// end counts the grant as no longer held. Only the first call counts, and only for
// a grant that begin has counted: a grant that arrives after its caller has given
// up is released, too.
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

// recording returns the span that still records for this lock, or nil.
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
