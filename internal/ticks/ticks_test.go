package ticks

import (
	"testing"
	"time"
)

func TestNamesAndReasonsAreRecognised(t *testing.T) {
	for _, job := range []string{"report", "a:b", "x:tick-0-00", ""} {
		for _, kind := range []string{Claim, Marker} {
			if j, k, ok := Job(Lock(job, kind, Slot(1, 31))); j != job || k != kind || !ok {
				t.Errorf("%q, %q: %q, %q, %t", job, kind, j, k, ok)
			}
		}
	}
	for _, name := range []string{"report", "report:tick-2-00", "report:tick-0-16", "report:tick-0-0", "report:tick-0-001", "report:walk-0-00", "tick-0-00", ":"} {
		if job, _, ok := Job(name); ok {
			t.Errorf("%q is a lock of %q", name, job)
		}
	}
	at := time.Date(2026, 11, 25, 3, 0, 0, 500, time.FixedZone("x", 3600))
	if got, ok := At(Reason(at)); !got.Equal(at) || !ok {
		t.Errorf("%v, %t", got, ok)
	}
	if _, ok := At("nightly"); ok {
		t.Error("the reason of another lock is accepted")
	}
}
