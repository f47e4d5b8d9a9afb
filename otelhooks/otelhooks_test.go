package otelhooks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/otelhooks"
)

const second = time.Second

func TestReleasedLockHasTwoSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, job := r.tracer.Tracer("test").Start(r.ctx, "job")
		k := r.lock(ctx, "accounts", holdfast.Reason("monthly report"))
		r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 1})
		if got := trace.SpanFromContext(k.Context()); got != job {
			t.Errorf("the lock's context shows span %v, want the caller's", got.SpanContext())
		}
		time.Sleep(3 * second)
		must.Succeed(t, k.Unlock())
		job.End()
		r.close()

		r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
		r.want("holdfast.acquire.duration", map[string]int64{"memory,exclusive,acquired": 1})
		r.want("holdfast.hold.duration", map[string]int64{"memory,exclusive,released": 1})
		r.want("holdfast.losses", nil)
		if got := r.total("holdfast.hold.duration"); got != 3*second {
			t.Errorf("held for %s", got)
		}

		acquire, hold := r.one("holdfast.acquire"), r.one("holdfast.hold")
		for _, s := range []sdktrace.ReadOnlySpan{acquire, hold} {
			wantAttrs(t, s.Attributes(), map[attribute.Key]any{
				"holdfast.name": "accounts", "holdfast.store": "memory", "holdfast.store.kind": "memory",
				"holdfast.mode": "exclusive", "holdfast.limit": int64(1), "holdfast.token": int64(k.Token()),
			})
			if s.Parent().SpanID() != job.SpanContext().SpanID() {
				t.Errorf("%s is not below the caller's span", s.Name())
			}
			if s.Status().Code != codes.Unset {
				t.Errorf("%s has status %v", s.Name(), s.Status())
			}
		}
		wantAttrs(t, acquire.Attributes(), map[attribute.Key]any{
			"holdfast.outcome": "acquired", "holdfast.waited": 0.0, "holdfast.reason": "monthly report"})
		wantAttrs(t, hold.Attributes(), map[attribute.Key]any{"holdfast.outcome": "released"})
		if links := hold.Links(); len(links) != 1 || links[0].SpanContext.SpanID() != acquire.SpanContext().SpanID() {
			t.Errorf("links of the hold span: %v", links)
		}
		if took := hold.EndTime().Sub(hold.StartTime()); took != 3*second {
			t.Errorf("the hold span took %s", took)
		}
		r.balanced()
	})
}

// TestSpansWithoutParentShareTrace: the caller has no span. The hold span is then a child of the acquire
// span.
func TestSpansWithoutParentShareTrace(t *testing.T) {
	r := newRig(t)
	k := r.lock(r.ctx, "x")
	if trace.SpanContextFromContext(k.Context()).IsValid() {
		t.Error("the lock's context shows a span that the caller did not put there")
	}
	_ = k.Unlock()
	r.close()
	acquire, hold := r.one("holdfast.acquire"), r.one("holdfast.hold")
	if acquire.Parent().IsValid() || hold.Parent().SpanID() != acquire.SpanContext().SpanID() {
		t.Errorf("parents: %v, %v", acquire.Parent(), hold.Parent())
	}
}

// spanRecorder records the span in the context of each Acquire.
type spanRecorder struct {
	*embedded
	seen chan trace.SpanContext
}

type embedded struct{ driver.Store }

func (s spanRecorder) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s.seen <- trace.SpanContextFromContext(ctx)
	return s.Store.Acquire(ctx, r)
}

func TestStoreSeesAcquireSpan(t *testing.T) {
	r := newRig(t)
	s := spanRecorder{&embedded{r.store}, make(chan trace.SpanContext, 8)}
	l, err := holdfast.New(s, holdfast.WithHooks(r.hooks))
	must.Succeed(t, err)
	k, err := l.Lock(r.ctx, "x")
	must.Succeed(t, err)
	_ = k.Unlock()
	_ = l.Close(r.ctx)
	if got, want := (<-s.seen).SpanID(), r.one("holdfast.acquire").SpanContext().SpanID(); got != want {
		t.Errorf("Acquire of the store has span %s, want %s", got, want)
	}
}

func TestModeIsAnAttribute(t *testing.T) {
	r := newRig(t)
	a := r.lock(r.ctx, "shared", holdfast.Shared())
	b := r.lock(r.ctx, "shared", holdfast.Shared())
	c := r.lock(r.ctx, "permits", holdfast.Limit(5))
	r.want("holdfast.locks.held", map[string]int64{"memory,shared": 2, "memory,semaphore": 1})
	for _, k := range []*holdfast.Lock{a, b, c} {
		_ = k.Unlock()
	}
	r.close()
	r.want("holdfast.locks.held", map[string]int64{"memory,shared": 0, "memory,semaphore": 0})
	for _, s := range r.ended("holdfast.acquire") {
		limited := slices.ContainsFunc(s.Attributes(), func(a attribute.KeyValue) bool { return a.Key == "holdfast.limit" })
		if shared := attr(t, s.Attributes(), "holdfast.mode") == "shared"; shared == limited {
			t.Errorf("shared %v, with a limit %v", shared, limited)
		}
	}
	wantAttrs(t, r.ended("holdfast.hold")[2].Attributes(), map[attribute.Key]any{
		"holdfast.limit": int64(5), "holdfast.slot": int64(0)})
}

func TestBusyIsNoError(t *testing.T) {
	r := newRig(t)
	k, err := r.other().Lock(r.ctx, "x")
	must.Succeed(t, err)
	if _, err := r.TryLock(r.ctx, "x"); !errors.Is(err, holdfast.ErrBusy) {
		t.Fatal(err)
	}
	_ = k.Unlock()
	r.close()
	s := r.one("holdfast.acquire")
	if s.Status().Code != codes.Unset {
		t.Errorf("status %v, want unset", s.Status())
	}
	wantAttrs(t, s.Attributes(), map[attribute.Key]any{
		"holdfast.outcome": "busy", "error.type": "busy", "holdfast.holders": int64(1),
		"holdfast.holder.host": "elsewhere", "holdfast.holder.instance": "two"})
	r.want("holdfast.acquire.duration", map[string]int64{"memory,exclusive,busy": 1})
	r.want("holdfast.locks.held", nil)
	r.balanced()
}

func TestQueuedEventAndWaitTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		k, err := r.other().Lock(r.ctx, "x")
		must.Succeed(t, err)
		if _, err := r.Lock(r.ctx, "x", holdfast.Wait(2*second)); !errors.Is(err, holdfast.ErrBusy) {
			t.Fatal(err)
		}
		time.AfterFunc(5*second, func() { _ = k.Unlock() })
		_ = r.lock(r.ctx, "x").Unlock()
		r.close()

		for i, want := range []struct {
			outcome string
			waited  float64
		}{{"busy", 2}, {"acquired", 5}} {
			s := r.ended("holdfast.acquire")[i]
			wantAttrs(t, s.Attributes(), map[attribute.Key]any{
				"holdfast.outcome": want.outcome, "holdfast.waited": want.waited})
			if got := events(s); !slices.Equal(got, []string{"holdfast.queued"}) {
				t.Fatalf("events: %v", got)
			}
			wantAttrs(t, s.Events()[0].Attributes, map[attribute.Key]any{"holdfast.holder.host": "elsewhere"})
			if s.Status().Code == codes.Error {
				t.Errorf("status %v", s.Status())
			}
		}
		r.want("holdfast.acquire.duration", map[string]int64{"memory,exclusive,busy": 1, "memory,exclusive,acquired": 1})
		if got := r.total("holdfast.acquire.duration"); got != 7*second {
			t.Errorf("waited %s in all", got)
		}
		r.balanced()
	})
}

// TestPresentWaitsAreMeasured: the gauges show each goroutine that waits, and how long the first has waited.
func TestPresentWaitsAreMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		k, err := r.other().Lock(r.ctx, "x")
		must.Succeed(t, err)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { _ = r.lock(r.ctx, "x").Unlock() })
			time.Sleep(2 * second)
		}
		r.want("holdfast.waits", map[string]int64{"": 3})
		if got := r.total("holdfast.wait.longest"); got != 6*second {
			t.Errorf("the longest wait is %s, want 6s", got)
		}
		must.Succeed(t, k.Unlock())
		all.Wait()
		r.close()
		r.balanced()
		if got := r.total("holdfast.wait.longest"); got != 0 {
			t.Errorf("the longest wait is %s after the last", got)
		}
	})
}

// TestFailureCountersBeginWithZero: the first acquired lock shows the counters of failures, so that the first
// failure is an increase.
func TestFailureCountersBeginWithZero(t *testing.T) {
	r := newRig(t)
	_ = r.lock(r.ctx, "x").Unlock()
	r.close()
	losses := map[string]int64{"memory,exclusive,other": 0}
	for _, c := range []holdfast.Cause{holdfast.CauseExpired, holdfast.CauseTaken, holdfast.CauseSessionEnded, holdfast.CauseGone,
		holdfast.CauseSlept, holdfast.CauseClosed} {
		losses["memory,exclusive,"+string(c)] = 0
	}
	r.want("holdfast.losses", losses)
	r.want("holdfast.renewals", map[string]int64{"memory,exclusive,renewed": 0, "memory,exclusive,failed": 0})
	r.want("holdfast.undo.failures", map[string]int64{"memory,exclusive": 0})
}

func TestFailureOutcomes(t *testing.T) {
	refusal := func(code driver.Code) error { return driver.Errorf(code, "no (scripted)") }
	for want, err := range map[string]error{
		"unavailable": refusal(driver.CodeUnavailable),
		"refused":     refusal(driver.CodeRefused),
		"unsupported": refusal(driver.CodeUnsupported),
		"closed":      refusal(driver.CodeClosed),
		"invalid":     refusal(driver.CodeInvalid),
	} {
		t.Run(want, func(t *testing.T) {
			r := newRig(t)
			r.store.Script().FailAcquire("", 1, err)
			if _, err := r.TryLock(r.ctx, "x"); err == nil {
				t.Fatal("acquired")
			}
			r.close()
			r.want("holdfast.acquire.duration", map[string]int64{"memory,exclusive," + want: 1})
			s := r.one("holdfast.acquire")
			wantAttrs(t, s.Attributes(), map[attribute.Key]any{"holdfast.outcome": want, "error.type": want})
			if s.Status().Code != codes.Error || !strings.Contains(s.Status().Description, "scripted") {
				t.Errorf("status %v", s.Status())
			}
			r.balanced()
		})
	}
}

// TestContextEndOutcomes: a context ends before the store answers. The outcome is timeout or canceled.
func TestContextEndOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.store.Script().Stop()
		ctx, cancel := context.WithTimeout(r.ctx, second)
		defer cancel()
		if _, err := r.TryLock(ctx, "x"); err == nil {
			t.Fatal("acquired")
		}
		ctx, cancel = context.WithCancel(r.ctx)
		time.AfterFunc(second, cancel)
		if _, err := r.TryLock(ctx, "x"); err == nil {
			t.Fatal("acquired")
		}
		r.store.Script().Start()
		r.close()
		r.want("holdfast.acquire.duration", map[string]int64{
			"memory,exclusive,timeout": 1, "memory,exclusive,canceled": 1})
	})
}

func TestLossIsCountedOnce(t *testing.T) {
	for want, lose := range map[holdfast.Cause]func(*rig){
		holdfast.CauseTaken:   func(r *rig) { _ = r.store.Script().Lose("x", holdfast.CauseTaken) },
		holdfast.CauseGone:    func(r *rig) { r.store.Script().Forget("x"); time.Sleep(4 * second) },
		holdfast.CauseExpired: func(r *rig) { r.store.Script().FailRenewals("x", 1000, nil); time.Sleep(20 * second) },
		holdfast.CauseClosed:  func(r *rig) { r.close() },
		"unknown cause":       func(r *rig) { _ = r.store.Script().Lose("x", "unknown cause") },
	} {
		t.Run(string(want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				k := r.lock(r.ctx, "x", holdfast.TTL(9*second))
				time.Sleep(second)
				lose(r)
				synctest.Wait()
				r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
				// Unlock of a lost lock tries a release, which fails twice here.
				r.store.Script().FailReleases("x", 2, driver.Errorf(driver.CodeUnavailable, "scripted"))
				for range 2 {
					if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
						t.Error(err)
					}
				}
				r.close()

				cause := string(want)
				if want == "unknown cause" {
					cause = "other"
				}
				r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
				r.want("holdfast.losses", map[string]int64{"memory,exclusive," + cause: 1})
				r.want("holdfast.hold.duration", map[string]int64{"memory,exclusive,lost": 1})
				if r.total("holdfast.hold.duration") < second {
					t.Error("the duration of the hold is missing")
				}
				s := r.one("holdfast.hold")
				wantAttrs(t, s.Attributes(), map[attribute.Key]any{"holdfast.outcome": "lost", "holdfast.cause": cause})
				if s.Status().Code != codes.Error {
					t.Errorf("status %v", s.Status())
				}
				if got := events(s); got[len(got)-1] != "holdfast.lost" {
					t.Errorf("events: %v", got)
				}
				r.balanced()
			})
		})
	}
}

// TestLossFoundAtRelease: the store has lost the grant, and the release returns ErrLost.
func TestLossFoundAtRelease(t *testing.T) {
	r := newRig(t)
	k := r.lock(r.ctx, "x")
	r.store.Script().Forget("x")
	if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
		t.Fatal(err)
	}
	r.close()
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
	r.want("holdfast.losses", map[string]int64{"memory,exclusive,gone": 1})
	r.want("holdfast.hold.duration", map[string]int64{"memory,exclusive,lost": 1})
	r.balanced()
}

func TestFailedRenewalIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		k := r.lock(r.ctx, "x", holdfast.TTL(9*second))
		r.store.Script().FailRenewals("x", 2, nil)
		time.Sleep(3900 * time.Millisecond) // each retry follows within 450 ms, and the next renewal not before that
		must.Succeed(t, k.Unlock())
		r.close()
		r.want("holdfast.renewals", map[string]int64{"memory,exclusive,failed": 2, "memory,exclusive,renewed": 1})
		r.want("holdfast.losses", nil)
		s := r.one("holdfast.hold")
		if got := events(s); !slices.Equal(got, []string{"holdfast.renewal_failed", "holdfast.renewal_failed"}) {
			t.Fatalf("events: %v", got)
		}
		if text := attr(t, s.Events()[0].Attributes, "error.message").(string); !strings.Contains(text, "scripted") {
			t.Errorf("the event has the message %q", text)
		}
		if s.Status().Code != codes.Unset {
			t.Errorf("status %v although a later renewal succeeded, want unset", s.Status())
		}
	})
}

func TestHoldLimitIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		k := r.lock(r.ctx, "x", holdfast.MaxHold(second))
		time.Sleep(2 * second)
		r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 1})
		must.Succeed(t, k.Unlock())
		r.close()
		r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
		r.want("holdfast.losses", nil)
		if got := events(r.one("holdfast.hold")); !slices.Equal(got, []string{"holdfast.hold_limit"}) {
			t.Errorf("events: %v", got)
		}
	})
}

func TestUnconfirmedReleaseIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		k := r.lock(r.ctx, "x")
		r.store.Script().FailReleases("x", 3, driver.Errorf(driver.CodeUnavailable, "scripted"))
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Fatal(err)
		}
		r.close()
		r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
		r.want("holdfast.losses", nil)
		r.want("holdfast.hold.duration", map[string]int64{"memory,exclusive,unconfirmed": 1})
		s := r.one("holdfast.hold")
		if s.Status().Code != codes.Error || !slices.Equal(events(s), []string{"holdfast.release_unconfirmed"}) {
			t.Errorf("status %v, events %v", s.Status(), events(s))
		}
		// The spans of the lock have ended before the retries fail.
		acquire := r.one("holdfast.acquire").SpanContext()
		retries := r.ended("holdfast.release_unconfirmed")
		if len(retries) != 2 {
			t.Fatalf("%d spans of retries, want 2", len(retries))
		}
		for _, s := range retries {
			if len(s.Links()) != 1 || s.Links()[0].SpanContext.SpanID() != acquire.SpanID() {
				t.Errorf("links %v", s.Links())
			}
			if s.SpanContext().TraceID() != acquire.TraceID() || s.Status().Code != codes.Error {
				t.Errorf("trace %s, status %v", s.SpanContext().TraceID(), s.Status())
			}
			wantAttrs(t, s.Attributes(), map[attribute.Key]any{
				"holdfast.name": "x", "holdfast.token": int64(k.Token())})
		}
		r.balanced()
	})
}

func TestFailedUndosAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.store.Script().LoseAcquireAnswer("x", 0, 0)
		r.store.Script().FailUndos("x", 3, driver.Errorf(driver.CodeUnavailable, "scripted"))
		if _, err := r.TryLock(r.ctx, "x"); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Fatal(err)
		}
		r.close()
		r.want("holdfast.undo.failures", map[string]int64{"memory,exclusive": 3})
		r.want("holdfast.locks.held", nil)
		// The acquire span may still be open when the first undo fails.
		if n := len(r.ended("holdfast.undo_failed")) + len(r.one("holdfast.acquire").Events()); n != 3 {
			t.Errorf("%d spans and events, want 3", n)
		}
		r.balanced()
	})
}

func TestReentrantLockCountsOnce(t *testing.T) {
	r := newRig(t)
	outer := r.lock(r.ctx, "x")
	inner := r.lock(outer.Context(), "x", holdfast.Reentrant())
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 1})
	_ = inner.Unlock()
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 1})
	_ = outer.Unlock()
	r.close()
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
	r.want("holdfast.acquire.duration", map[string]int64{"memory,exclusive,acquired": 1})
	r.want("holdfast.hold.duration", map[string]int64{"memory,exclusive,released": 1})
	r.one("holdfast.acquire")
	r.one("holdfast.hold")
}

func TestLockAllHasSpansForEachLock(t *testing.T) {
	r := newRig(t)
	k, err := r.LockAll(r.ctx, []string{"c", "a", "b", "a"})
	must.Succeed(t, err)
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 3})
	must.Succeed(t, r.store.Script().Lose("b", holdfast.CauseTaken))
	if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
		t.Fatal(err)
	}
	r.close()
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
	r.want("holdfast.hold.duration", map[string]int64{"memory,exclusive,released": 2, "memory,exclusive,lost": 1})
	if n := len(r.ended("holdfast.acquire")); n != 3 {
		t.Errorf("%d acquire spans, want 3", n)
	}
	for _, s := range r.ended("holdfast.acquire") {
		if s.Parent().IsValid() {
			t.Errorf("%s is below %v: want no parent, as LockAll has no span of its own", s.Name(), s.Parent())
		}
	}
	for _, s := range r.ended("holdfast.hold") {
		if lost := attr(t, s.Attributes(), "holdfast.name") == "b"; lost != (s.Status().Code == codes.Error) {
			t.Errorf("lost %v, status %v", lost, s.Status())
		}
	}
	r.balanced()
}

// TestBusyLockAllReleasesFirstLock: the second lock of LockAll is busy. The first one was acquired, and
// is released.
func TestBusyLockAllReleasesFirstLock(t *testing.T) {
	r := newRig(t)
	other, err := r.other().Lock(r.ctx, "b")
	must.Succeed(t, err)
	if _, err := r.LockAll(r.ctx, []string{"a", "b"}, holdfast.Wait(20*time.Millisecond)); !errors.Is(err, holdfast.ErrBusy) {
		t.Fatal(err)
	}
	_ = other.Unlock()
	r.close()
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
	r.want("holdfast.acquire.duration", map[string]int64{"memory,exclusive,acquired": 1, "memory,exclusive,busy": 1})
	r.balanced()
}

// TestEventsInAnyOrderBalance: two goroutines report the events of one grant, so their order varies. In
// each order the counters end at 0.
func TestEventsInAnyOrderBalance(t *testing.T) {
	event := func(kind holdfast.EventKind) holdfast.Event {
		e := holdfast.Event{Kind: kind, Name: "x", Store: "memory", StoreKind: "memory", Limit: 1, Token: 7, Slot: driver.NoSlot}
		switch kind {
		case holdfast.EventLost:
			e.Cause = holdfast.CauseTaken
		case holdfast.EventFailed:
			e.Token, e.Err = 0, context.Canceled
		}
		return e
	}
	const (
		acquired, failed            = holdfast.EventAcquired, holdfast.EventFailed
		lost, released, unconfirmed = holdfast.EventLost, holdfast.EventReleased, holdfast.EventUnconfirmed
	)
	for name, c := range map[string]struct {
		kinds []holdfast.EventKind
		holds int // the grants that the caller received
	}{
		"lost before acquired":       {[]holdfast.EventKind{lost, acquired, unconfirmed, unconfirmed}, 0},
		"released before failed":     {[]holdfast.EventKind{released, failed}, 0},
		"released after failed":      {[]holdfast.EventKind{failed, released}, 0},
		"unconfirmed after failed":   {[]holdfast.EventKind{failed, unconfirmed, unconfirmed}, 0},
		"unconfirmed, then lost":     {[]holdfast.EventKind{acquired, unconfirmed, lost}, 1},
		"lost, then unconfirmed":     {[]holdfast.EventKind{acquired, lost, unconfirmed, unconfirmed}, 1},
		"released twice":             {[]holdfast.EventKind{acquired, released, released}, 1},
		"acquired twice (two hooks)": {[]holdfast.EventKind{acquired, acquired, released, released}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ctx := r.hooks.Start(r.ctx, event(holdfast.EventAcquiring))
			for _, kind := range c.kinds {
				r.hooks.Event(ctx, event(kind))
			}
			r.each("holdfast.locks.held", func(labels string, value int64, _ float64) {
				if value != 0 {
					t.Errorf("held: %d", value)
				}
			})
			if n := len(r.ended("holdfast.hold")); n != c.holds {
				t.Errorf("%d holds, want %d", n, c.holds)
			}
			r.balanced()
		})
	}
}

// TestEventsWithoutStartContextAreCounted: another hook's Start returns a context of its own, so the
// events arrive without the context of this hook.
func TestEventsWithoutStartContextAreCounted(t *testing.T) {
	r := newRig(t)
	e := holdfast.Event{Kind: holdfast.EventAcquired, StoreKind: "memory", Limit: 1, Token: 1}
	r.hooks.Event(r.ctx, e)
	for _, e.Kind = range []holdfast.EventKind{holdfast.EventQueued, holdfast.EventRenewed, holdfast.EventLost, holdfast.EventReleased} {
		r.hooks.Event(r.ctx, e)
	}
	r.want("holdfast.acquire.duration", map[string]int64{"memory,exclusive,acquired": 1})
	r.want("holdfast.losses", map[string]int64{"memory,exclusive,other": 1})
	r.want("holdfast.locks.held", nil)
	r.one("holdfast.lost")
}

// TestNestedHooksCountTheirOwn: a Locker has two hooks, and a Locker with one of them nests a lock. Each
// hook counts only its own events.
func TestNestedHooksCountTheirOwn(t *testing.T) {
	a, b := newRig(t), newRig(t)
	both, err := holdfast.New(a.store, holdfast.WithHooks(a.hooks), holdfast.WithHooks(b.hooks))
	must.Succeed(t, err)
	k, err := both.Lock(a.ctx, "x")
	must.Succeed(t, err)
	inner := b.lock(k.Context(), "y")
	a.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 1})
	b.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 2})
	_ = k.Unlock()
	b.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 1})
	_ = inner.Unlock()
	_ = both.Close(a.ctx)
	b.close()
	a.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
	b.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
	a.balanced()
	b.balanced()
}

// TestConcurrentLocksBalance: many goroutines lock, lose locks and cancel. In the end the counters of
// held locks are 0.
func TestConcurrentLocksBalance(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 100 {
				name := fmt.Sprint((i + n) % 5)
				timeout := time.Duration(n%7+1) * 300 * time.Microsecond
				ctx, cancel := r.ctx, context.CancelFunc(func() {})
				if n%2 == 0 {
					ctx, cancel = context.WithTimeout(ctx, timeout)
				}
				k, err := r.Lock(ctx, name, holdfast.Wait(timeout))
				if err == nil {
					if n%3 == 0 {
						_ = r.store.Script().Lose(name, holdfast.CauseTaken)
					}
					_ = k.Unlock()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	r.close()
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
	var acquisitions int64
	r.each("holdfast.acquire.duration", func(_ string, count int64, _ float64) { acquisitions += count })
	// The hooks do not report a call whose context ended before its request. Half of the calls
	// have a context that does not end.
	if spans := len(r.ended("holdfast.acquire")); acquisitions != int64(spans) || acquisitions < 800 || acquisitions > 1600 {
		t.Errorf("%d acquisitions counted, %d spans, for 1600 calls", acquisitions, spans)
	}
	r.balanced()
}

func TestHiddenNameIsInNoSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, otelhooks.WithNameOnSpans(false))
		script := r.store.Script()
		const name = "jane@example.org"
		script.FailAcquire(name, 1, driver.Errorf(driver.CodeRefused, "no %s", name))
		_, _ = r.TryLock(r.ctx, name, holdfast.Reason("bill for "+name))
		k := r.lock(r.ctx, name, holdfast.TTL(9*second))
		_, _ = r.TryLock(r.ctx, name)
		script.FailRenewals(name, 1, driver.Errorf(driver.CodeUnavailable, "no %s", name))
		time.Sleep(5 * second)
		_ = script.Lose(name, holdfast.CauseTaken)
		script.FailReleases(name, 2, driver.Errorf(driver.CodeUnavailable, "no %s", name))
		_ = k.Unlock()
		script.LoseAcquireAnswer(name, 0, 0)
		script.FailUndos(name, 2, driver.Errorf(driver.CodeUnavailable, "no %s", name))
		_, _ = r.TryLock(r.ctx, name)
		r.close()
		if len(r.spans.Ended()) < 5 {
			t.Errorf("only %v", r.names())
		}
		for _, s := range r.spans.Ended() {
			if text := fmt.Sprintf("%+v", tracetest.SpanStubFromReadOnlySpan(s)); strings.Contains(text, name) {
				t.Errorf("the name is in %s", text)
			}
		}
	})
}

// TestUnsampledTraceIsCounted: a trace that is not sampled has no spans for losses either. The metrics
// count everything.
func TestUnsampledTraceIsCounted(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	never := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	r := newRig(t, otelhooks.WithTracerProvider(never))
	k := r.lock(r.ctx, "x")
	_ = r.store.Script().Lose("x", holdfast.CauseTaken)
	_ = k.Unlock()
	r.close()
	r.want("holdfast.locks.held", map[string]int64{"memory,exclusive": 0})
	r.want("holdfast.losses", map[string]int64{"memory,exclusive,taken": 1})
	if n := len(spans.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

// TestGlobalProvidersAreDefault: New uses the global providers, also for nil. Without an SDK they do
// nothing.
func TestGlobalProvidersAreDefault(t *testing.T) {
	hooks, err := otelhooks.New(otelhooks.WithTracerProvider(nil), otelhooks.WithMeterProvider(nil))
	must.Succeed(t, err)
	r := newRig(t)
	l, err := holdfast.New(r.store, holdfast.WithHooks(hooks))
	must.Succeed(t, err)
	must.Succeed(t, l.Do(r.ctx, "x", func(context.Context) error { return nil }))
	must.Succeed(t, l.Close(r.ctx))
}

// TestCancelReachesLockThroughStart: the caller cancels its context. The lock's context, which derives
// from the context that Start returned, ends with the same cause.
func TestCancelReachesLockThroughStart(t *testing.T) {
	r := newRig(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(r.ctx)
	k := r.lock(ctx, "x")
	cancel(cause)
	<-k.Context().Done()
	if got := context.Cause(k.Context()); got != cause {
		t.Errorf("cause %v", got)
	}
	_ = k.Unlock()
	r.close()
}
