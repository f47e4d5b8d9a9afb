package otelhooks_test

import (
	"context"
	"fmt"
	"log"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/optimistic"
	"github.com/holdfast-go/holdfast/otelhooks"
)

// A program has providers with exporters; in this example they keep the data in
// memory. Without the two options the hooks use OpenTelemetry's global providers.
func Example() {
	spans := tracetest.NewInMemoryExporter()
	reader := sdkmetric.NewManualReader()
	hooks, err := otelhooks.New(
		otelhooks.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))),
		otelhooks.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
	)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	locker, err := holdfast.New(memstore.New(), holdfast.WithHooks(hooks))
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(ctx, "nightly report", func(ctx context.Context) error {
		var now metricdata.ResourceMetrics
		if err := reader.Collect(ctx, &now); err != nil {
			return err
		}
		for _, m := range now.ScopeMetrics[0].Metrics {
			if held, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "holdfast.locks.held" {
				fmt.Println(m.Name, held.DataPoints[0].Value)
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Some events arrive in the background. Close waits for them, so call it before
	// the providers' Shutdown.
	if err := locker.Close(ctx); err != nil {
		log.Fatal(err)
	}
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name)
	}
	// Output:
	// holdfast.locks.held 1
	// holdfast.acquire
	// holdfast.hold
}

// All updates of a program use one option, which counts their conflicts.
func ExampleConflicts() {
	reader := sdkmetric.NewManualReader()
	count, err := otelhooks.Conflicts(otelhooks.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	store := memstore.New()
	faster := true
	err = optimistic.Update(ctx, store, "config", func(ctx context.Context, old []byte) ([]byte, error) {
		if faster { // another process writes between the read and the write of this one
			faster = false
			if _, err := optimistic.Put(ctx, store, "config", []byte("a"), ""); err != nil {
				return nil, err
			}
		}
		return append(old, 'b'), nil
	}, count)
	if err != nil {
		log.Fatal(err)
	}
	var now metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &now); err != nil {
		log.Fatal(err)
	}
	m := now.ScopeMetrics[0].Metrics[0]
	fmt.Println(m.Name, m.Data.(metricdata.Sum[int64]).DataPoints[0].Value)
	// Output: holdfast.conflicts 1
}
