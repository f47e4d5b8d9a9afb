package otelhooks

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
)

const scope = "github.com/holdfast-go/holdfast/otelhooks"

// Option configures the hooks.
type Option func(*config)

type config struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	names   bool
}

// WithTracerProvider sets the provider of spans. Default, and for nil:
// OpenTelemetry's global provider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) { c.tracers = p }
}

// WithMeterProvider sets the provider of metrics. Default, and for nil:
// OpenTelemetry's global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.meters = p }
}

// WithNameOnSpans sets whether spans contain the name of a lock or the key of a value, the reason, and the text of
// errors. That text quotes the name or the key. Default: true. Use false for names that
// must not leave the process, such as names that contain customers' addresses.
func WithNameOnSpans(show bool) Option {
	return func(c *config) { c.names = show }
}

// New returns hooks for [holdfast.WithHooks]. It fails if the meter provider
// refuses an instrument.
func New(opts ...Option) (holdfast.Hooks, error) {
	c := config{names: true}
	for _, o := range opts {
		o(&c)
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	in, err := newInstruments(c.meters.Meter(scope))
	if err != nil {
		return nil, fmt.Errorf("otelhooks: %w", err)
	}
	return &hooks{tracer: c.tracers.Tracer(scope), names: c.names, instruments: in}, nil
}

type hooks struct {
	instruments
	tracer trace.Tracer
	names  bool
	zeroed sync.Map // the kinds and modes for which zero was called
}

// Start starts the acquire span.
func (h *hooks) Start(ctx context.Context, e holdfast.Event) context.Context {
	attrs := h.identity(e)
	if h.names && e.Reason != "" {
		attrs = append(attrs, attribute.String("holdfast.reason", e.Reason))
	}
	a := &acquisition{Context: ctx, hooks: h, wait: h.waits.begin()}
	a.spanned, a.span = h.tracer.Start(ctx, "holdfast.acquire", trace.WithAttributes(attrs...))
	return a
}

// Event records one event of a lock. The context carries its acquisition, unless
// another hook's Start has replaced the context: then Event records only the
// metrics that need no acquisition.
func (h *hooks) Event(ctx context.Context, e holdfast.Event) {
	a := h.acquisition(ctx)
	switch e.Kind {
	case holdfast.EventQueued:
		if a != nil {
			a.span.AddEvent("holdfast.queued", trace.WithAttributes(holder(e)...))
		}
	case holdfast.EventAcquired, holdfast.EventFailed:
		h.answered(ctx, a, e)
	case holdfast.EventRenewed:
		h.renewals.Add(ctx, 1, labels(e, outcomeKey.String("renewed")))
	case holdfast.EventRenewFailed:
		h.renewals.Add(ctx, 1, labels(e, outcomeKey.String("failed")))
		h.note(ctx, a, e)
	case holdfast.EventHoldLimit:
		h.note(ctx, a, e)
	case holdfast.EventLost:
		h.losses.Add(ctx, 1, labels(e, causeKey.String(cause(e))))
		h.note(ctx, a, e)
		a.end(ctx, e, "lost")
	case holdfast.EventReleased:
		a.end(ctx, e, "released")
	case holdfast.EventUnconfirmed:
		h.note(ctx, a, e)
		a.end(ctx, e, "unconfirmed")
	case holdfast.EventUndoFailed:
		h.undoFailures.Add(ctx, 1, labels(e))
		h.note(ctx, a, e)
	}
}

// answered ends the acquire span. It records the duration first, so that an
// exemplar refers to the span.
func (h *hooks) answered(ctx context.Context, a *acquisition, e holdfast.Event) {
	result := outcome(e.Err)
	h.acquireDuration.Record(ctx, e.Took.Seconds(), labels(e, outcomeKey.String(result)))
	if e.Kind == holdfast.EventAcquired {
		h.zero(ctx, e)
	}
	if a == nil {
		return
	}
	h.waits.end(a.wait)
	// Set the kind again: a store may find it out only with its first request.
	attrs := []attribute.KeyValue{outcomeKey.String(result), kindKey.String(kind(e)), attribute.Float64("holdfast.waited", e.Took.Seconds())}
	if e.Kind == holdfast.EventAcquired {
		attrs = append(attrs, grant(e)...)
	} else {
		attrs = append(attrs, attribute.String("error.type", result))
		attrs = append(attrs, holder(e)...)
		if result != "busy" {
			a.span.SetStatus(codes.Error, h.describe(result, e.Err))
		}
	}
	a.span.SetAttributes(attrs...)
	a.span.End()
	a.over.Store(true)
	if e.Kind == holdfast.EventAcquired {
		a.begin(e)
	}
}

// note records a failure on the span that is recording for this lock. If there is none, it
// makes a short span for the failure.
func (h *hooks) note(ctx context.Context, a *acquisition, e holdfast.Event) {
	name := "holdfast." + strings.ReplaceAll(string(e.Kind), " ", "_")
	var attrs []attribute.KeyValue
	if e.Cause != "" {
		attrs = append(attrs, causeKey.String(cause(e)))
	}
	if h.names && e.Err != nil {
		attrs = append(attrs, attribute.String("error.message", e.Err.Error()))
	}
	if span := a.recording(); span != nil {
		span.AddEvent(name, trace.WithAttributes(attrs...))
		return
	}
	attrs = append(attrs, h.identity(e)...)
	if e.Token != 0 { // an undo has no token
		attrs = append(attrs, grant(e)...)
	}
	opts := []trace.SpanStartOption{trace.WithAttributes(attrs...)}
	if a != nil {
		ctx = a.beside()
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: a.span.SpanContext()}))
	}
	_, span := h.tracer.Start(ctx, name, opts...)
	span.SetStatus(codes.Error, h.describe(string(e.Kind), e.Err))
	span.End()
}

// describe returns the text of a status: err, or only class if names are not allowed, since
// errors quote the lock's name.
func (h *hooks) describe(class string, err error) string {
	if h.names && err != nil {
		return err.Error()
	}
	return class
}

// identity returns the attributes of every span.
func (h *hooks) identity(e holdfast.Event) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 12)
	if h.names {
		attrs = append(attrs, attribute.String("holdfast.name", e.Name))
	}
	attrs = append(attrs, attribute.String("holdfast.store", e.Store),
		kindKey.String(kind(e)), modeKey.String(mode(e)))
	if mode(e) != "shared" { // a shared lock has no limit
		attrs = append(attrs, attribute.Int("holdfast.limit", e.Limit))
	}
	return attrs
}

// grant returns the attributes of a grant. Tokens are below 2^63.
func grant(e holdfast.Event) []attribute.KeyValue {
	attrs := []attribute.KeyValue{attribute.Int64("holdfast.token", int64(e.Token))}
	if e.Slot >= 0 {
		attrs = append(attrs, attribute.Int("holdfast.slot", e.Slot))
	}
	return attrs
}

// holder returns the attributes of the first holder that the store reported.
func holder(e holdfast.Event) []attribute.KeyValue {
	if len(e.Holders) == 0 {
		return nil
	}
	first := e.Holders[0]
	attrs := []attribute.KeyValue{
		attribute.Int("holdfast.holders", len(e.Holders)),
		attribute.String("holdfast.holder.host", first.Host),
		attribute.Int("holdfast.holder.pid", first.PID),
	}
	if first.Instance != "" {
		attrs = append(attrs, attribute.String("holdfast.holder.instance", first.Instance))
	}
	return attrs
}
