package protect

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestNoIDIsDrawnTwice has eight processes draw ids while two of them are killed at random
// times.
func TestNoIDIsDrawnTwice(t *testing.T) {
	total := 100_000
	if testing.Short() {
		total = 40_000
	}
	if *long {
		total = 1_000_000
	}
	for _, kind := range []string{"redis", "mysql", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			drawIDs(t, systems(t, kind)[0], total)
		})
	}
}

func drawIDs(t *testing.T, s system, total int) {
	const processes = 8
	var mu sync.Mutex
	seen := map[uint64]int{}
	enough := make(chan struct{})
	kills := map[int]bool{} // the numbers of drawn ids at which a process is killed
	for len(kills) < 2 {
		kills[1+rand.IntN(total-1)] = true
	}
	kill := make(chan struct{}, 2)
	var all []*process
	var readers sync.WaitGroup
	for i := range processes {
		p := run(t, task{system: s, Mode: "draw", Lock: "order"})
		all = append(all, p)
		readers.Go(func() {
			last := uint64(0)
			for {
				var b [8]byte
				if _, err := io.ReadFull(p.out, b[:]); err != nil {
					if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Error(err)
					}
					return
				}
				id := binary.LittleEndian.Uint64(b[:])
				mu.Lock()
				if other, twice := seen[id]; twice {
					t.Errorf("id %d was drawn by processes %d and %d", id, other, i)
				}
				if id <= last {
					t.Errorf("process %d drew %d after %d", i, id, last)
				}
				last = id
				seen[id] = i
				n := len(seen)
				mu.Unlock()
				if kills[n] {
					kill <- struct{}{}
				}
				if n == total {
					close(enough)
				}
			}
		})
	}
	begin := time.Now()
	victims := rand.Perm(processes)
	wait := func(c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(testTimeout):
			mu.Lock()
			defer mu.Unlock()
			t.Fatalf("%d ids after %v", len(seen), testTimeout)
		}
	}
	for _, victim := range victims[:2] {
		wait(kill)
		must.Report(t, all[victim].cmd.Process.Kill())
	}
	wait(enough)
	took := time.Since(begin)
	for _, p := range all {
		_ = p.in.Close()
	}
	readers.Wait()
	var largest uint64
	for id := range seen {
		largest = max(largest, id)
	}
	t.Logf("%s: %d ids by %d processes in %v, two killed; the largest is %d, so %.0f %% were not used or reported",
		s.Kind, len(seen), processes, took.Round(time.Millisecond), largest, 100*(1-float64(len(seen))/float64(largest)))
}
