package driver_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestCodesHaveNames(t *testing.T) {
	base := errors.New("base")
	for _, tc := range []struct {
		err  error
		want driver.Code
	}{
		{nil, driver.CodeUnknown},
		{base, driver.CodeUnknown},
		{context.Canceled, driver.CodeUnknown},
		{&driver.BusyError{}, driver.CodeBusy},
		{fmt.Errorf("wrapped: %w", &driver.BusyError{}), driver.CodeBusy},
		{driver.Errorf(driver.CodeNotHeld, "%w", base), driver.CodeNotHeld},
		{fmt.Errorf("wrapped: %w", driver.Errorf(driver.CodeRefused, "no")), driver.CodeRefused},
		{fmt.Errorf("wrapped: %w", driver.Errorf(driver.CodeUnknown, "not withdrawn: %w", &driver.BusyError{})), driver.CodeUnknown},
	} {
		if got := driver.CodeOf(tc.err); got != tc.want {
			t.Errorf("CodeOf(%v) = %v, want %v", tc.err, got, tc.want)
		}
	}
	if err := driver.Errorf(driver.CodeNotHeld, "x: %w", base); !errors.Is(err, base) || err.Error() != "x: base" {
		t.Errorf("%v", err)
	}
	seen := map[string]bool{}
	for c := driver.CodeUnknown; c <= driver.CodeConflict; c++ {
		if seen[c.String()] || strings.Contains(c.String(), "Code(") {
			t.Errorf("code %d is called %q", int(c), c)
		}
		seen[c.String()] = true
	}
	if got := driver.Code(99).String(); got != "Code(99)" {
		t.Error(got)
	}
	if got := driver.Code(-1).String(); got != "Code(-1)" {
		t.Error(got)
	}
	busy := &driver.BusyError{Holders: []driver.Holder{{Owner: driver.Owner{PID: 7, Host: "h"}}}}
	if busy.Error() != "held by pid 7 on h" || (&driver.BusyError{}).Error() != "busy" {
		t.Error(busy)
	}
}

func TestNamesAreChecked(t *testing.T) {
	for name, want := range map[string]string{
		"":                       "name is empty: give 1 to 512 bytes",
		strings.Repeat("x", 513): "name is 513 bytes long: at most 512",
		"\xff":                   "not valid UTF-8",
		"a\x00":                  "NUL",
	} {
		if err := driver.CheckName(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.8q: %v, want %q", name, err, want)
		}
	}
	for _, name := range []string{"a", " ", "/", strings.Repeat("x", 512), "ü", "\n"} {
		must.Report(t, driver.CheckName(name))
	}
	must.Report(t, driver.CheckNamespace(""))
	if err := driver.CheckNamespace(strings.Repeat("x", 129)); err == nil || !strings.Contains(err.Error(), "namespace is 129 bytes") {
		t.Error(err)
	}
}

func TestRegisterRefusesDuplicates(t *testing.T) {
	open := func(context.Context, *url.URL, string) (driver.Store, error) { return nil, errors.New("opened") }
	scheme := fmt.Sprintf("test-%d", time.Now().UnixNano()) // the scheme stays registered for the rest of the process
	driver.Register(scheme, open)
	if !slices.Contains(driver.Schemes(), scheme) || !slices.IsSorted(driver.Schemes()) {
		t.Error(driver.Schemes())
	}
	got, ok := driver.OpenerOf(scheme)
	if !ok {
		t.Fatal("not found")
	}
	if _, err := got(t.Context(), nil, ""); err == nil || err.Error() != "opened" {
		t.Error(err)
	}
	if _, ok := driver.OpenerOf("unregistered"); ok {
		t.Error("found an unregistered scheme")
	}
	for want, bad := range map[string]func(){ // by a part of the panic's message
		"twice":             func() { driver.Register(scheme, open) },
		"without an opener": func() { driver.Register(scheme+"-2", nil) },
	} {
		func() {
			defer func() {
				if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), want) {
					t.Errorf("%s: %v", want, r)
				}
			}()
			bad()
		}()
	}
}

func TestGuaranteesAsRows(t *testing.T) {
	g := driver.Guarantees{Kind: "x", Wake: driver.WakePush, Fallback: time.Second, Shared: true, Semaphore: true, Slots: true, Mixed: true,
		EarlyEnd: []string{"a flush", "a kill"}, Notice: 2 * time.Second, MinTTL: time.Second, MaxTTL: time.Hour, Granularity: time.Second,
		Linger: true, Notes: []string{"mind the gap"}}
	text := fmt.Sprint(g.Rows())
	for _, want := range []string{"exclusive, shared, semaphore with slots; any mix on one name", "push; a lost notification costs at most 1s",
		"a flush, a kill; noticed within 2s", "1s to 1h0m0s, rounded up to 1s", "kept by the store", "mind the gap"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	text = fmt.Sprint(driver.Guarantees{Wake: driver.WakePoll}.Rows())
	for _, want := range []string{"{limits exclusive}", "{wake-up poll}", "{may end early no}", "none: a grant lasts until it is released", "kept by the process"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}

// fakeClock is a clock on which a test sets for how long the machine was suspended.
type fakeClock struct{ slept time.Duration }

func (f *fakeClock) Now() time.Time       { return time.Now() }
func (f *fakeClock) Slept() time.Duration { return f.slept }

func TestInstantsMeasureSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if total, slept := (driver.Instant{}).Elapsed(); total != driver.Forever || slept != 0 || !(driver.Instant{}).IsZero() {
			t.Errorf("the zero instant: %s, %s", total, slept)
		}
		f := &fakeClock{}
		for _, now := range []func() driver.Instant{driver.NowInProcess, func() driver.Instant { return driver.NowOn(f) }} {
			i := now()
			time.Sleep(time.Second)
			if total, slept := i.Elapsed(); total != time.Second || slept != 0 || i.IsZero() || !i.Time().Equal(time.Now().Add(-time.Second)) {
				t.Errorf("%s, %s since %s", total, slept, i.Time())
			}
		}
		i := driver.NowOn(f)
		f.slept = time.Minute
		time.Sleep(time.Second)
		if total, slept := i.Elapsed(); total != time.Minute+time.Second || slept != time.Minute {
			t.Errorf("%s, %s", total, slept)
		}
		f.slept = -time.Minute // less than when i was taken: Elapsed ignores it
		if total, slept := i.Elapsed(); total != time.Second || slept != 0 {
			t.Errorf("%s, %s", total, slept)
		}
	})
	// Between Now and Elapsed the machine is not suspended, and the system's clock reports that.
	if total, slept := driver.Now().Elapsed(); total < 0 || slept > time.Second {
		t.Errorf("%s, %s", total, slept)
	}
}
