//go:build linux || darwin

package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// critical is a script that increments a counter without protection of its own. Its mkdir fails
// if two runs overlap.
const critical = `mkdir inside || { echo overlap >>overlaps; exit 9; }
read n <count
echo $((n + 1)) >count
echo $HOLDFAST_TOKEN >>tokens
rmdir inside || exit 8`

// TestManyRunsExclude starts 16 processes that together run the script critical 2,000 times.
// It makes fewer runs with -short and under the race detector, where processes start slowly.
func TestManyRunsExclude(t *testing.T) {
	workers, runs := 16, 125
	if testing.Short() || raceEnabled {
		runs = 25
	}
	w := withStore(t)
	must(t, os.WriteFile(w.path("count"), []byte("0\n"), 0o600))
	must(t, os.WriteFile(w.path("critical"), []byte(critical), 0o600))
	loop := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do "$0" run x -- sh critical || exit; i=$((i + 1)); done`, runs)
	began := time.Now()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			w.finish(shell(loop), nil, "").expectStatus(t, 0)
		})
	}
	all.Wait()
	t.Logf("%d runs took %s", workers*runs, time.Since(began).Round(time.Millisecond))

	if b, err := os.ReadFile(w.path("overlaps")); err == nil {
		t.Errorf("%d runs overlapped another", strings.Count(string(b), "\n"))
	}
	b, err := os.ReadFile(w.path("count"))
	if want := fmt.Sprintf("%d\n", workers*runs); err != nil || string(b) != want {
		t.Errorf("the sum is %q, want %q (%v)", b, want, err)
	}
	b, err = os.ReadFile(w.path("tokens"))
	must(t, err)
	tokens := strings.Fields(string(b))
	if len(tokens) != workers*runs {
		t.Errorf("%d tokens, want %d", len(tokens), workers*runs)
	}
	for i := 1; i < len(tokens); i++ {
		if number(t, tokens[i]) <= number(t, tokens[i-1]) {
			t.Fatalf("grant %d has token %s after %s", i, tokens[i], tokens[i-1])
		}
	}
}

// BenchmarkRun measures a whole process of holdfast run. For comparison it measures flock(1),
// which does much less.
func BenchmarkRun(b *testing.B) {
	flock, err := exec.LookPath("flock")
	if err != nil {
		b.Skip("flock(1) is not installed")
	}
	dir := b.TempDir()
	cost := func(c func() *exec.Cmd) time.Duration {
		began := time.Now()
		cmd := c()
		cmd.Env = append(os.Environ(), "HOLDFAST_STORE=file://"+dir+"/locks")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return time.Since(began)
	}
	ours := func() *exec.Cmd { return exec.Command(binary, "run", "x", "--", "true") }
	theirs := func() *exec.Cmd { return exec.Command(flock, dir+"/flock", "true") }
	cost(ours)
	var a, f time.Duration
	for b.Loop() {
		// The two alternate, so that a busy machine slows both.
		a += cost(ours)
		f += cost(theirs)
	}
	b.ReportMetric(a.Seconds()*1e3/float64(b.N), "ms/run")
	b.ReportMetric(f.Seconds()*1e3/float64(b.N), "ms/flock")
	b.ReportMetric(a.Seconds()/f.Seconds(), "run/flock")
	b.ReportMetric(0, "ns/op")
}
