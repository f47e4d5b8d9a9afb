package protect

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/optimistic"
)

// TestNoUpdateIsLost lets many processes add to one value, without a lock and with one. It
// logs how long each way takes.
func TestNoUpdateIsLost(t *testing.T) {
	processes, each := 8, 4
	if testing.Short() {
		processes = 4
	}
	if *long {
		processes, each = 32, 20
	}
	for _, kind := range []string{"file", "redis", "etcd", "zookeeper", "mysql", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			for _, s := range systems(t, kind)[:1] { // values do not depend on the recipe
				addUp(t, s, processes, each)
			}
		})
	}
}

func addUp(t *testing.T, s system, processes, each int) {
	store, err := open(t.Context(), s.URL)
	check(t, err)
	defer store.Close(context.Background())
	values := store.(driver.Values)
	counter := "counter-" + rand.Text() + "-" // all runs of -count use one server
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
			check(t, err)
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
		t.Logf("%s: %d processes, %d updates each, %s: %d conflicts, %v, %.0f updates a second",
			s.Kind, processes, each, way, conflicts, took.Round(time.Millisecond), float64(processes*each)/took.Seconds())
	}
}
