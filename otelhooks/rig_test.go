package otelhooks_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/otelhooks"
)

// rig is a Locker whose spans and metrics a test reads.
type rig struct {
	*holdfast.Locker
	t      *testing.T
	ctx    context.Context
	store  *memstore.Store
	hooks  holdfast.Hooks
	spans  *tracetest.SpanRecorder
	tracer *sdktrace.TracerProvider
	meters *sdkmetric.MeterProvider
	reader *sdkmetric.ManualReader
}

func newRig(t *testing.T, opts ...otelhooks.Option) *rig {
	t.Helper()
	r := &rig{t: t, ctx: context.Background(), store: memstore.New(),
		spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	r.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	opts = append([]otelhooks.Option{
		otelhooks.WithTracerProvider(r.tracer),
		otelhooks.WithMeterProvider(r.meters),
	}, opts...)
	var err error
	if r.hooks, err = otelhooks.New(opts...); err != nil {
		t.Fatal(err)
	}
	r.Locker = r.locker(r.store)
	return r
}

func (r *rig) locker(s *memstore.Store) *holdfast.Locker {
	r.t.Helper()
	l, err := holdfast.New(s, holdfast.WithHooks(r.hooks), holdfast.Process("here", "one"))
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// other returns a Locker of another process on the same store, without hooks.
func (r *rig) other() *holdfast.Locker {
	r.t.Helper()
	l, err := holdfast.New(r.store.Client(), holdfast.Process("elsewhere", "two"))
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

func (r *rig) lock(ctx context.Context, name string, o ...holdfast.LockOption) *holdfast.Lock {
	r.t.Helper()
	k, err := r.Lock(ctx, name, o...)
	if err != nil {
		r.t.Fatal(err)
	}
	return k
}

// close waits for the events that the Locker reports in the background.
func (r *rig) close() {
	r.t.Helper()
	if err := r.Close(r.ctx); err != nil {
		r.t.Fatal(err)
	}
}

// want checks all points of one instrument: their labels, as "kind,mode,outcome" in the order
// of the keys, and their sum or count.
func (r *rig) want(instrument string, points map[string]int64) {
	r.t.Helper()
	got := map[string]int64{}
	r.each(instrument, func(labels string, value int64, _ float64) { got[labels] = value })
	for labels, value := range got {
		if value != points[labels] {
			r.t.Errorf("%s{%s} is %d, want %d", instrument, labels, value, points[labels])
		}
	}
	for labels, value := range points {
		if _, ok := got[labels]; !ok {
			r.t.Errorf("%s{%s} is absent, want %d; there is %v", instrument, labels, value, got)
		}
	}
}

// total returns the sum of one histogram's recordings.
func (r *rig) total(instrument string) time.Duration {
	r.t.Helper()
	var total float64
	r.each(instrument, func(_ string, _ int64, sum float64) { total += sum })
	return time.Duration(total * float64(time.Second)).Round(time.Millisecond)
}

func (r *rig) each(instrument string, f func(labels string, value int64, sum float64)) {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(r.ctx, &all); err != nil {
		r.t.Fatal(err)
	}
	for _, sm := range all.ScopeMetrics {
		for _, m := range sm.Metrics {
			if m.Name != instrument {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					f(labelsOf(p.Attributes), p.Value, 0)
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					f(labelsOf(p.Attributes), p.Value, 0)
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					f(labelsOf(p.Attributes), 0, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					f(labelsOf(p.Attributes), int64(p.Count), p.Sum)
				}
			default:
				r.t.Fatalf("%s is %T", instrument, d)
			}
		}
	}
}

func labelsOf(s attribute.Set) string {
	var parts []string
	for _, key := range []attribute.Key{"holdfast.store.kind", "holdfast.mode", "holdfast.outcome", "holdfast.cause"} {
		if v, ok := s.Value(key); ok {
			parts = append(parts, v.AsString())
		}
	}
	if len(parts) != s.Len() {
		parts = append(parts, fmt.Sprintf("and unexpected labels: %v", s.ToSlice()))
	}
	return strings.Join(parts, ",")
}

// ended returns the spans of that name which have ended, in order.
func (r *rig) ended(name string) []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(r.spans.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() != name })
}

// one returns the only span of that name.
func (r *rig) one(name string) sdktrace.ReadOnlySpan {
	r.t.Helper()
	spans := r.ended(name)
	if len(spans) != 1 {
		r.t.Fatalf("%d spans %q, want 1; all: %v", len(spans), name, r.names())
	}
	return spans[0]
}

func (r *rig) names() []string {
	var names []string
	for _, s := range r.spans.Ended() {
		names = append(names, s.Name())
	}
	return names
}

// balanced checks that every span which began has ended.
func (r *rig) balanced() {
	r.t.Helper()
	if began, ended := len(r.spans.Started()), len(r.spans.Ended()); began != ended {
		r.t.Errorf("%d spans began, %d ended", began, ended)
	}
	r.want("holdfast.waits", map[string]int64{"": 0})
}

func events(s sdktrace.ReadOnlySpan) []string {
	var names []string
	for _, e := range s.Events() {
		names = append(names, e.Name)
	}
	return names
}

func attr(t *testing.T, attrs []attribute.KeyValue, key attribute.Key) any {
	t.Helper()
	for _, a := range attrs {
		if a.Key == key {
			return a.Value.AsInterface()
		}
	}
	t.Errorf("no attribute %s among %v", key, attrs)
	return nil
}

func wantAttrs(t *testing.T, attrs []attribute.KeyValue, want map[attribute.Key]any) {
	t.Helper()
	for key, value := range want {
		if got := attr(t, attrs, key); got != value {
			t.Errorf("%s is %v, want %v", key, got, value)
		}
	}
}
