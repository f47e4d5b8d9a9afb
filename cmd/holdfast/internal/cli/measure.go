package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
)

const (
	// measureFor is the time in which pairs of lock and unlock are counted, in steps with more and more callers.
	measureFor = 5 * time.Second
	// roundTrips is the number of reads whose time is measured, for measureFor at most.
	roundTrips = 200
	// pause is the longest pause of a client or a server that the advised TTL outlasts.
	pause = time.Second
)

// callersOfSteps are the callers at a time in each step. The first step measures the time of a write.
var callersOfSteps = []int{1, 2, 4, 8, 16}

// measurement is what `holdfast doctor --measure` has measured and advises. Times are in seconds.
type measurement struct {
	RoundTrip quantiles `json:"round_trip_seconds"`
	Write     quantiles `json:"write_seconds"`
	Steps     []step    `json:"steps"`
	TTL       float64   `json:"advised_ttl_seconds"` // 0 if grants do not expire
	Callers   int       `json:"advised_callers"`

	arithmetic string
}

type quantiles struct {
	Half float64 `json:"p50"`
	Most float64 `json:"p99"`
}

type step struct {
	Callers int     `json:"callers"`
	Pairs   float64 `json:"pairs_per_second"`
}

// measure reads a free name, and then takes and releases locks. Their names are its own, so it never waits.
func measure(ctx context.Context, l *holdfast.Locker, g holdfast.Guarantees) (*measurement, error) {
	name := "holdfast-doctor-" + strings.ToLower(rand.Text())
	m := &measurement{}
	var reads []time.Duration
	for end := time.Now().Add(measureFor); len(reads) < roundTrips && time.Now().Before(end); {
		began := time.Now()
		if _, err := l.Inspect(ctx, name); err != nil {
			return nil, err
		}
		reads = append(reads, time.Since(began))
	}
	m.RoundTrip = quantilesOf(reads)
	for i, callers := range callersOfSteps {
		took, pairs, err := lockFor(ctx, l, name, callers, measureFor/time.Duration(len(callersOfSteps)))
		if err != nil {
			return nil, err
		}
		if i == 0 {
			m.Write = quantilesOf(took)
		}
		m.Steps = append(m.Steps, step{callers, pairs})
	}
	m.advise(g)
	return m, nil
}

// lockFor lets callers take and release locks of names of their own. It returns the time of each request for a lock,
// and the pairs per second.
func lockFor(ctx context.Context, l *holdfast.Locker, name string, callers int, d time.Duration) ([]time.Duration, float64, error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var took []time.Duration
	var failed error
	began := time.Now()
	for i := range callers {
		all.Go(func() {
			var own []time.Duration
			var err error
			for err == nil && time.Since(began) < d {
				start := time.Now()
				var k *holdfast.Lock
				if k, err = l.TryLock(ctx, fmt.Sprintf("%s-%d", name, i)); err == nil {
					own = append(own, time.Since(start))
					err = k.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, own...)
			if err != nil {
				failed = err
			}
		})
	}
	all.Wait()
	return took, float64(len(took)) / time.Since(began).Seconds(), failed
}

func quantilesOf(all []time.Duration) quantiles {
	if len(all) == 0 {
		return quantiles{}
	}
	slices.Sort(all)
	return quantiles{all[len(all)/2].Seconds(), all[len(all)*99/100].Seconds()}
}

// advise computes the advice. A lock is renewed after a third of its TTL, and its validity ends after nine tenths. In
// between, a pause and three writes must fit.
func (m *measurement) advise(g holdfast.Guarantees) {
	best := 0.0
	for _, s := range m.Steps {
		best = max(best, s.Pairs)
	}
	for _, s := range m.Steps {
		if m.Callers == 0 && s.Pairs >= best*0.9 {
			m.Callers = s.Callers
		}
	}
	if g.MaxTTL == 0 {
		return
	}
	write := time.Duration(m.Write.Most * float64(time.Second))
	need := (pause + 3*write) * 30 / 17
	ttl := max(need, g.MinTTL)
	unit := max(g.Granularity, 100*time.Millisecond)
	ttl = (ttl + unit - 1) / unit * unit
	m.TTL = ttl.Seconds()
	m.arithmetic = fmt.Sprintf("%s: (%s + 3 x %s) / (9/10 - 1/3) = %s; at least %s, in steps of %s", ttl, pause,
		rounded(m.Write.Most), need.Round(time.Millisecond), g.MinTTL, unit)
}

func rounded(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond)
}

func (m *measurement) print(w io.Writer) {
	fmt.Fprintf(w, "\nround trip: p50 %s, p99 %s\nlock, a write as the store confirms it: p50 %s, p99 %s\n",
		rounded(m.RoundTrip.Half), rounded(m.RoundTrip.Most), rounded(m.Write.Half), rounded(m.Write.Most))
	for _, s := range m.Steps {
		fmt.Fprintf(w, "pairs per second, %d at a time: %.0f\n", s.Callers, s.Pairs)
	}
	if m.arithmetic != "" {
		fmt.Fprintf(w, "smallest TTL: %s\n  (a pause of a client or the server, then three writes (p99), between the renewal after 1/3 "+
			"and the end after 9/10.\n  If locks must outlast a failover, add its time to the pause.)\n", m.arithmetic)
	}
	fmt.Fprintf(w, "pool: no more than %d connections: that many callers at a time give 9/10 of the most pairs.\n"+
		"  (In a recipe on sessions each held lock and each waiter needs one more.)\n", m.Callers)
}
