package otelhooks_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/optimistic"
	"github.com/holdfast-go/holdfast/otelhooks"
)

// overtaken updates a key. Another write overtakes each of the first n attempts.
func overtaken(t *testing.T, ctx context.Context, values optimistic.Values, n int, count optimistic.Option) {
	t.Helper()
	another := func(_ context.Context, old []byte) ([]byte, error) { return append(old, 'a'), nil }
	err := optimistic.Update(ctx, values, "config", func(ctx context.Context, old []byte) ([]byte, error) {
		if n--; n >= 0 {
			if err := optimistic.Update(ctx, values, "config", another, count); err != nil {
				return nil, err
			}
		}
		return append(old, 'b'), nil
	}, optimistic.Backoff(1, 1), count)
	must.Succeed(t, err)
}

// TestConflictsAreCounted compares the counter, and the events on the caller's span, with
// the conflicts of updates. The span has the key only if names are allowed on spans.
func TestConflictsAreCounted(t *testing.T) {
	r := newRig(t)
	for _, names := range []bool{true, false} {
		count, err := otelhooks.Conflicts(otelhooks.WithMeterProvider(r.meters), otelhooks.WithNameOnSpans(names))
		must.Succeed(t, err)
		ctx, span := r.tracer.Tracer("test").Start(r.ctx, "caller")
		overtaken(t, ctx, r.store, 3, count)
		overtaken(t, ctx, r.store, 0, count)
		span.End()
	}
	r.want("holdfast.conflicts", map[string]int64{"": 6})
	for i, span := range r.ended("caller") {
		if len(span.Events()) != 3 {
			t.Fatalf("events %v, want three conflicts", events(span))
		}
		for n, e := range span.Events() {
			want := map[attribute.Key]any{"holdfast.attempt": int64(n + 1)}
			if i == 0 {
				want["holdfast.key"] = "config"
			}
			wantAttrs(t, e.Attributes, want)
			if e.Name != "holdfast.conflict" || len(e.Attributes) != len(want)+1 { // and the backoff
				t.Errorf("event %s %v", e.Name, e.Attributes)
			}
		}
	}
}
