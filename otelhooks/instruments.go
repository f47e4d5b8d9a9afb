package otelhooks

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// The attributes that metrics and spans share. Each has few values.
const (
	kindKey    = attribute.Key("holdfast.store.kind")
	modeKey    = attribute.Key("holdfast.mode")
	outcomeKey = attribute.Key("holdfast.outcome")
	causeKey   = attribute.Key("holdfast.cause")
)

type instruments struct {
	acquireDuration, holdDuration metric.Float64Histogram
	locksHeld                     metric.Int64UpDownCounter
	losses, renewals              metric.Int64Counter
	undoFailures                  metric.Int64Counter
	waits                         *waits
}

// waits are the acquisitions without an answer, in the order of their begin.
type waits struct {
	mu  sync.Mutex
	all list.List // of time.Time
}

func (w *waits) begin() *list.Element {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.PushBack(time.Now())
}

func (w *waits) end(e *list.Element) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Remove(e) // a second call has no effect
}

// present returns how many acquisitions wait, and for how long the first of them.
func (w *waits) present() (n int, longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if first := w.all.Front(); first != nil {
		longest = time.Since(first.Value.(time.Time))
	}
	return w.all.Len(), longest
}

// OpenTelemetry's default boundaries are meant for milliseconds. A free lock takes microseconds
// in memory and milliseconds at a server. A contended lock takes as long as its holder works. A
// job holds a lock for up to a day.
var (
	acquireBounds = []float64{.0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
	holdBounds    = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400}
)

func newInstruments(m metric.Meter) (instruments, error) {
	var in instruments
	in.waits = &waits{}
	var errs [8]error
	in.acquireDuration, errs[0] = m.Float64Histogram("holdfast.acquire.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the request for a lock to its grant or failure."),
		metric.WithExplicitBucketBoundaries(acquireBounds...))
	in.holdDuration, errs[1] = m.Float64Histogram("holdfast.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from a lock's grant to its release or loss."),
		metric.WithExplicitBucketBoundaries(holdBounds...))
	in.locksHeld, errs[2] = m.Int64UpDownCounter("holdfast.locks.held", metric.WithUnit("{grant}"),
		metric.WithDescription("Grants that this process holds."))
	in.losses, errs[3] = m.Int64Counter("holdfast.losses", metric.WithUnit("{loss}"),
		metric.WithDescription("Locks that ended before they were unlocked."))
	in.renewals, errs[4] = m.Int64Counter("holdfast.renewals", metric.WithUnit("{renewal}"),
		metric.WithDescription("Renewals of held locks and their outcome."))
	in.undoFailures, errs[5] = m.Int64Counter("holdfast.undo.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failed tries to undo an acquisition of unknown outcome."))
	var waiting metric.Int64ObservableGauge
	var longest metric.Float64ObservableGauge
	waiting, errs[6] = m.Int64ObservableGauge("holdfast.waits", metric.WithUnit("{acquisition}"),
		metric.WithDescription("Acquisitions of this process that wait for an answer now."))
	longest, errs[7] = m.Float64ObservableGauge("holdfast.wait.longest", metric.WithUnit("s"),
		metric.WithDescription("Time for which the first of them has waited, 0 if there is none."))
	if err := errors.Join(errs[:]...); err != nil {
		return in, err
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		n, first := in.waits.present()
		o.ObserveInt64(waiting, int64(n))
		o.ObserveFloat64(longest, first.Seconds())
		return nil
	}, waiting, longest)
	return in, err
}

// zero begins the counters of failures with 0, when a lock of a kind and mode is acquired for the first time. Otherwise
// a counter would appear with its first failure, and the rate of a counter does not include its first value.
func (h *hooks) zero(ctx context.Context, e holdfast.Event) {
	if _, done := h.zeroed.LoadOrStore(kind(e)+"\n"+mode(e), true); done {
		return
	}
	for _, c := range append(causes, "other") {
		h.losses.Add(ctx, 0, labels(e, causeKey.String(string(c))))
	}
	for _, outcome := range []string{"renewed", "failed"} {
		h.renewals.Add(ctx, 0, labels(e, outcomeKey.String(outcome)))
	}
	h.undoFailures.Add(ctx, 0, labels(e))
}

// labels are the attributes of a measurement.
func labels(e holdfast.Event, more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(more, kindKey.String(kind(e)), modeKey.String(mode(e)))...)
}

func kind(e holdfast.Event) string {
	if e.StoreKind == "" {
		return "unknown"
	}
	return e.StoreKind
}

// mode returns the class of a limit; the limit itself has thousands of values.
func mode(e holdfast.Event) string {
	switch e.Limit {
	case driver.Exclusive:
		return "exclusive"
	case driver.Unlimited:
		return "shared"
	}
	return "semaphore"
}

// cause maps all causes that holdfast does not define to "other".
func cause(e holdfast.Event) string {
	if slices.Contains(causes, e.Cause) {
		return string(e.Cause)
	}
	return "other"
}

var causes = []holdfast.Cause{holdfast.CauseExpired, holdfast.CauseTaken, holdfast.CauseSessionEnded, holdfast.CauseGone,
	holdfast.CauseSlept, holdfast.CauseClosed}

// The order of outcomes matters: a wait that ended after the store reported a holder is busy,
// although its error also matches the context's.
var outcomes = []struct {
	err  error
	name string
}{
	{holdfast.ErrBusy, "busy"},
	{holdfast.ErrUnavailable, "unavailable"},
	{holdfast.ErrRefused, "refused"},
	{holdfast.ErrUnsupported, "unsupported"},
	{holdfast.ErrInvalid, "invalid"},
	{holdfast.ErrClosed, "closed"},
	{holdfast.ErrLost, "lost"},
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
}

// outcome returns the class of an acquisition's result.
func outcome(err error) string {
	if err == nil {
		return "acquired"
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return "failed"
}
