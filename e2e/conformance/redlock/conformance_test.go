package redlock

import (
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// ttl is so long that a lease survives a renewal that is late on a busy machine.
const ttl = 700 * time.Millisecond

// suiteTTL is the longest TTL that the suite requests.
const suiteTTL = time.Minute

// suite runs the conformance suite on a fleet. The given number of servers, the first ones
// of the fleet, fail during the whole suite.
func (f *fleet) suite(t *testing.T, failing int) {
	working := f.all[failing:]
	h := drivertest.Harness{
		TTL: ttl,
		Open: func(t testing.TB, namespace string) driver.Store {
			return f.make(t, redlock.Namespace(namespace))
		},
		Stop: func(t testing.TB) {
			for _, r := range working {
				check(t, r.Pause())
			}
		},
		Start: func(t testing.TB) {
			for _, r := range working {
				check(t, r.Cont())
			}
		},
		EntryTTL: 5 * time.Second,
		Forge:    servertest.Publishing(working...),
	}
	h.OpenWithoutFallback = func(t testing.TB, namespace string) driver.Store { return wakeup.WithoutFallback(h.Open(t, namespace)) }
	if failing == 0 {
		servertest.Clock(t, &h, f.all...)
		f.setUp()
		h.Leftovers = f.leftovers
		h.Corrupt = f.corrupt
		h.Steps = &drivertest.Steps{Open: f.stepped, Faults: stepFaults, Late: errNoAnswer}
		servertest.Disturb(&h, func(t testing.TB, addresses []string) driver.Store { return f.at(t, addresses) }, f.proxies...)
	}
	drivertest.Run(t, h)
}

var errNoAnswer = errors.New("no answer")

// stepFaults are what may happen to a request to one server.
var stepFaults = map[string]func(send func() error) error{
	"the answer is lost":  func(send func() error) error { _ = send(); return errNoAnswer },
	"the request is lost": func(func() error) error { return errNoAnswer },
	"busy":                func(func() error) error { return redisstore.ServerError("BUSY Redis is busy running a script") },
}

// full runs the suite on larger fleets and with failures, too, which takes minutes.
var full = flag.Bool("full", false, "run the suite on five servers, and while a minority fails")

func TestConformance(t *testing.T) {
	for _, n := range []int{3, 5} {
		if n > 3 && !*full {
			break
		}
		t.Run(fmt.Sprintf("%d servers", n), func(t *testing.T) {
			startBare(t, n, options{redlock.MaxTTL(suiteTTL)}).suite(t, 0)
		})
	}
}

// TestConformanceMinority runs the suite while a minority of the servers fails throughout.
func TestConformanceMinority(t *testing.T) {
	if !*full {
		t.Skip("-full runs it")
	}
	for how, fail := range map[string]func(f *fleet, i int) error{
		"down":   func(f *fleet, i int) error { f.all[i].Kill(); return nil },
		"paused": func(f *fleet, i int) error { return f.all[i].Pause() },
		"slow":   func(f *fleet, i int) error { return f.proxies[i].Delay(150 * time.Millisecond) },
	} {
		t.Run(how, func(t *testing.T) {
			f := start(t, 3, options{redlock.MaxTTL(suiteTTL)})
			check(t, fail(f, 0))
			f.suite(t, 1)
		})
	}
}
