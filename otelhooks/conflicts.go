package otelhooks

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/optimistic"
)

// Conflicts returns an option for [optimistic.Update] and [optimistic.Rows.Update]. It
// counts each conflict in the counter holdfast.conflicts, and adds the event
// "holdfast.conflict" to the caller's span. One value serves any number of updates. Only the
// options WithMeterProvider and WithNameOnSpans have an effect. Conflicts returns an error if
// the meter provider refuses the counter.
func Conflicts(opts ...Option) (optimistic.Option, error) {
	c := config{names: true}
	for _, o := range opts {
		o(&c)
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	conflicts, err := c.meters.Meter(scope).Int64Counter("holdfast.conflicts", metric.WithUnit("{conflict}"),
		metric.WithDescription("Attempts of optimistic updates that another write has overtaken."))
	if err != nil {
		return nil, fmt.Errorf("otelhooks: %w", err)
	}
	return optimistic.OnConflict(func(ctx context.Context, conflict optimistic.Conflict) {
		conflicts.Add(ctx, 1)
		attrs := []attribute.KeyValue{
			attribute.Int("holdfast.attempt", conflict.Attempt),
			attribute.Float64("holdfast.backoff", conflict.Backoff.Seconds()),
		}
		if c.names {
			attrs = append(attrs, attribute.String("holdfast.key", conflict.Key))
		}
		trace.SpanFromContext(ctx).AddEvent("holdfast.conflict", trace.WithAttributes(attrs...))
	}), nil
}
