package protect

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/optimistic"
)

// TestNoUpdateIsLost lets many processes add to one value, without a lock and with one. It
// logs how long each way takes: see docs/choosing.md.
func TestNoUpdateIsLost(t *testing.T) {
	processes, each := 8, 4
	if testing.Short() {
		processes = 4
	}
	if *long {
		processes, each = 32, 20
	}
	measured := map[string]measurement{}
	for _, kind := range []string{"file", "redis", "etcd", "zookeeper", "mysql", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			for _, s := range systems(t, kind)[:1] { // values do not depend on the recipe
				measured[kind] = addUp(t, s, processes, each)
			}
		})
	}
	if *record == "" || t.Failed() {
		return
	}
	raw, err := json.MarshalIndent(measured, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*record, append(raw, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

var record = flag.String("record", "", "with -long: the file to which the numbers of docs/choosing.md are written")

// measurement has the numbers of one store in docs/choosing.md.
type measurement struct {
	// Read and Lock are times in microseconds, for one client alone: to read a value, and
	// to acquire and release a lock.
	Read, Lock float64
	// Optimistic and Locked are the updates a second of one value by this number of
	// Processes, without a lock and with one. Conflicts is the number of conflicts among
	// the Updates without a lock.
	Optimistic, Locked            float64
	Processes, Updates, Conflicts int
}

// alone returns the microseconds of one call.
func alone(t *testing.T, call func() error) float64 {
	t.Helper()
	const times = 200
	begin := time.Now()
	for range times {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	return float64(time.Since(begin).Microseconds()) / times
}

func addUp(t *testing.T, s system, processes, each int) measurement {
	store, err := open(t.Context(), s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(context.Background())
	values, err := optimistic.Of(store)
	if err != nil {
		t.Fatal(err)
	}
	counter := "counter-" + rand.Text() + "-" // all runs of -count use one server
	m := measurement{Processes: processes, Updates: processes * each}
	if *long {
		l, err := holdfast.New(store)
		if err != nil {
			t.Fatal(err)
		}
		m.Lock = alone(t, func() error { return l.Do(t.Context(), "alone", func(context.Context) error { return nil }) })
		m.Read = alone(t, func() error { _, _, err := optimistic.Get(t.Context(), values, counter); return err })
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	var all []*process
	for range processes {
		all = append(all, run(t, task{system: s, Mode: "update", Lock: counter, TTL: 30 * time.Second, N: each}))
	}
	for _, p := range all {
		if got := p.line(t); got != "ready" {
			t.Fatalf("a child said %q", got)
		}
	}
	for _, way := range []string{"optimistic", "lock"} {
		begin, conflicts := time.Now(), 0
		for _, p := range all {
			p.say(t, way)
		}
		for _, p := range all {
			said, _ := strings.CutPrefix(p.line(t), "conflicts ")
			n, err := strconv.Atoi(said)
			if err != nil {
				t.Fatal(err)
			}
			conflicts += n
		}
		took := time.Since(begin)
		data, _, err := optimistic.Get(t.Context(), values, counter+way)
		if err != nil || string(data) != strconv.Itoa(processes*each) {
			t.Errorf("%s: the value is %q, %v; want %d", way, data, err, processes*each)
		}
		if way == "lock" && conflicts > 0 {
			t.Errorf("%d conflicts under the lock", conflicts)
		}
		rate := float64(processes*each) / took.Seconds()
		if way == "lock" {
			m.Locked = rate
		} else {
			m.Optimistic, m.Conflicts = rate, conflicts
		}
		t.Logf("%s: %d processes, %d updates each, %s: %d conflicts, %v, %.0f updates a second",
			s.Kind, processes, each, way, conflicts, took.Round(time.Millisecond), rate)
	}
	return m
}
