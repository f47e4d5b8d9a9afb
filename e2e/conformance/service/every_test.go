package service

import (
	"flag"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
)

var manyTicks = flag.Int("ticks", 0, "how many ticks a schedule has (default 60, 25 with -short)")

const (
	replicas = 20
	// killEvery is the number of ticks after which the replica that serves a tick is killed.
	killEvery = 20
)

// TestEveryServesEachTickOnce runs a schedule on 20 replicas whose clocks differ by most of
// the period. Every 20 ticks it kills the replica that serves a tick. No tick is begun
// twice. A replica serves each tick, or reports it as missed.
func TestEveryServesEachTickOnce(t *testing.T) {
	for _, s := range stores {
		// On other stores the mark of a served tick ends with its replica. Two of three
		// databases are left out, because all three run the same recipe.
		if !slices.Contains([]string{"redis", "etcd", "postgres-optimistic"}, s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && s.name != "redis" || *manyTicks == 0 && s.name == "etcd" {
				t.Skip("it takes long")
			}
			_, url := s.start(t)
			testEvery(t, s, url)
		})
	}
}

// tickState is the state of a tick.
type tickState struct {
	begun, served, missed int
	by                    *process // the replica that served it
}

func testEvery(t *testing.T, s store, url string) {
	n := *manyTicks
	if n == 0 {
		if n = 60; testing.Short() {
			n = 25
		}
	}
	g, err := open(t, url).Guarantees(t.Context())
	must.Succeed(t, err)
	period := max((s.ttl+g.Granularity)/4, time.Second)
	lines := make(chan report, 10000)
	running := map[*process]bool{}
	start := func(i int) {
		// Clocks may differ from the right time by half a period at most.
		ahead := period * time.Duration(i%9-4) / 10
		w := worker{Role: "every", URL: url, Name: "schedule", TTL: s.ttl, Period: period, Ahead: ahead, Drain: 50 * time.Millisecond}
		running[w.start(t, lines)] = false
	}
	for i := range replicas {
		start(i)
	}
	states := map[int64]*tickState{}
	state := func(r report) *tickState {
		at := r.Tick.UnixNano()
		if states[at] == nil {
			states[at] = &tickState{}
		}
		return states[at]
	}
	last := map[*process]int64{} // the last tick that the replica has served
	killed := map[*process]bool{}
	var failed []report
	take := func(r report) {
		switch r.Kind {
		case "candidate":
			running[r.worker] = true
		case "begins":
			state(r).begun++
		case "served":
			state(r).served++
			state(r).by, last[r.worker] = r.worker, r.Tick.UnixNano()
		case "missed":
			state(r).missed++
		case "failed":
			// From that tick until now this replica could not take part.
			failed = append(failed, report{Tick: r.Tick, At: time.Duration(time.Now().UnixNano())})
			t.Logf("tick %s: %s", r.Tick, r.Err)
		case "exited":
			if !killed[r.worker] && r.Err != "" {
				t.Errorf("a replica has ended: %s", r.Err)
			}
			delete(running, r.worker)
		}
	}
	await := func(what string, done func() bool) {
		t.Helper()
		for end := time.After(testTimeout); !done(); {
			select {
			case r := <-lines:
				take(r)
			case <-end:
				t.Fatalf("no %s", what)
			}
		}
	}
	await("replicas", func() bool {
		for p := range running {
			if !running[p] {
				return false
			}
		}
		return true
	})
	// From now on all replicas take part in the ticks.
	first := holdfast.Period(period).Next(time.Now().Add(2 * period))
	end := first.Add(time.Duration(n) * period)
	begun := 0
	for stop := time.After(time.Until(end)); stop != nil; {
		select {
		case r := <-lines:
			take(r)
			if r.Kind != "begins" {
				continue
			}
			if begun++; begun%killEvery == 0 {
				killed[r.worker] = true
				r.worker.signal(syscall.SIGKILL)
				start(begun / killEvery)
			}
		case <-stop:
			stop = nil
		}
	}
	// Wait for the reports of the last ticks.
	watched := time.After(10 * period)
	await("time", func() bool {
		select {
		case <-watched:
			return true
		case r := <-lines:
			take(r)
			return false
		}
	})
	for p := range running {
		p.signal(syscall.SIGTERM)
	}
	await("end", func() bool { return len(running) == 0 })

	served, missed := 0, 0
	for at := first; at.Before(end); at = at.Add(period) {
		c := states[at.UnixNano()]
		if c == nil {
			c = &tickState{}
		}
		missed += c.missed
		served += c.served
		excused := slices.ContainsFunc(failed, func(r report) bool {
			return !at.Before(r.Tick) && at.UnixNano() < int64(r.At)
		})
		// A replica may die between the end of its work and the record of it.
		unrecorded := c.by != nil && killed[c.by] && last[c.by] == at.UnixNano()
		switch {
		case c.begun > 1:
			t.Errorf("tick %s is begun %d times", at, c.begun)
		case c.served > 0 && c.missed > 0 && !unrecorded && !excused:
			t.Errorf("tick %s is served, and reported as missed", at)
		case c.served == 0 && c.missed == 0 && !excused:
			t.Errorf("tick %s is neither served nor reported; begun %d times", at, c.begun)
		}
	}
	t.Logf("%d ticks, %d replicas killed, %d ticks served, %d reported as missed", n, len(killed), served, missed)
}
