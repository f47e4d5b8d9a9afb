//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package fence

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// unsafeDisk is a token record on a disk that may fail. Cache is what processes read, and durable is what a
// loss of power leaves.
type unsafeDisk struct {
	cache, durable []byte
	written        int64  // the offset of the last write
	calls          int    // the number of writes and syncs before the failing one
	fault          string // what happens at the failing call
}

var errPower = errors.New("the process has ended")

// fails counts a write or a sync, and does the fault if that call is the failing one.
func (d *unsafeDisk) fails() bool {
	d.calls--
	if d.calls != -1 {
		return false
	}
	switch d.fault {
	case "kill": // the kernel still has what was written
	case "kept":
		copy(d.durable, d.cache)
	case "torn":
		copy(d.durable[d.written:], d.cache[d.written:d.written+int64(copyLen)/2])
		d.durable[d.written] ^= 1
		copy(d.cache, d.durable)
	case "lost":
		copy(d.cache, d.durable)
	}
	return true
}

func (d *unsafeDisk) ReadAt(b []byte, at int64) (int, error) { return copy(b, d.cache[at:]), nil }

func (d *unsafeDisk) WriteAt(b []byte, at int64) (int, error) {
	d.written = at
	if d.fails() {
		return 0, errPower
	}
	return copy(d.cache[at:], b), nil
}

func (d *unsafeDisk) Sync() error {
	if d.calls == 0 && bytes.Equal(d.cache, d.durable) {
		d.fault = "kept" // nothing is being written
	}
	if d.fails() {
		return errPower
	}
	copy(d.durable, d.cache)
	return nil
}

// TestRaiseSurvivesPowerLoss: the process or the power may fail at every step of every raise. That may damage
// the copy that was written last, and lose data that was not synced. Every confirmed token is
// still there afterwards.
func TestRaiseSurvivesPowerLoss(t *testing.T) {
	dir := t.TempDir()
	property := func(t *rapid.T) {
		f := &file{path: filepath.Join(dir, "file"), record: filepath.Join(dir, "file.fence")}
		d := &unsafeDisk{cache: make([]byte, 2*copySpacing), durable: make([]byte, 2*copySpacing)}
		for i := range (copies{}) {
			copy(d.cache[i*copySpacing:], formatCopy(0))
		}
		copy(d.durable, d.cache)
		vouched := uint64(0) // the largest token of a raise that finished
		for range rapid.IntRange(1, 20).Draw(t, "raises") {
			token := vouched + rapid.Uint64Range(0, 3).Draw(t, "by")
			if token == 0 {
				continue
			}
			d.calls = rapid.IntRange(0, 5).Draw(t, "calls") // 5: none fails
			d.fault = rapid.SampledFrom([]string{"torn", "lost", "kill", "kept"}).Draw(t, "fault")
			switch err := f.raise(d, token); {
			case err == nil:
				vouched = token
			case !errors.Is(err, errPower) && !errors.Is(err, ErrStale):
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "power") {
				copy(d.cache, d.durable)
			}
			for what, content := range map[string][]byte{"memory": d.cache, "disk": d.durable} {
				c, err := f.read(&unsafeDisk{cache: content})
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if c.newest() < vouched {
					t.Fatalf("%s: newest is %d, but a write with %d went ahead: %v", what, c.newest(), vouched, c)
				}
			}
		}
	}
	for range 5 { // two raises in a row have to fail at certain steps
		rapid.Check(t, property)
	}
}
