package redlock

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/fallback"
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
				if err := r.Pause(); err != nil {
					t.Fatal(err)
				}
			}
		},
		Start: func(t testing.TB) {
			for _, r := range working {
				if err := r.Cont(); err != nil {
					t.Fatal(err)
				}
			}
		},
		EntryTTL: 5 * time.Second,
	}
	h.OpenWithoutFallback = func(t testing.TB, namespace string) driver.Store { return fallback.Without(h.Open(t, namespace)) }
	if failing == 0 {
		h.Leftovers = f.leftovers
		h.Delay = func(t testing.TB, d time.Duration) {
			for _, p := range f.proxies {
				if err := p.Delay(d); err != nil {
					t.Fatal(err)
				}
			}
		}
		h.Disconnect = func(t testing.TB) {
			for _, p := range f.proxies {
				p.Cut()
				if err := p.Heal(); err != nil {
					t.Fatal(err)
				}
			}
		}
		h.LoseAnswer = func(t testing.TB, after int) {
			for _, p := range f.proxies {
				if err := p.LoseAnswer(after); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	drivertest.Run(t, h)
}

// full runs the suite on larger fleets and with failures, too, which takes minutes.
var full = flag.Bool("full", false, "run the suite on five servers, and while a minority fails")

func TestConformance(t *testing.T) {
	for _, n := range []int{3, 5} {
		if n > 3 && !*full {
			break
		}
		t.Run(fmt.Sprintf("%d servers", n), func(t *testing.T) {
			start(t, n, options{redlock.MaxTTL(suiteTTL)}).suite(t, 0)
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
			if err := fail(f, 0); err != nil {
				t.Fatal(err)
			}
			f.suite(t, 1)
		})
	}
}
