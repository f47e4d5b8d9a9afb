package fence

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func FuzzParseCopy(f *testing.F) {
	f.Add(formatCopy(0))
	f.Add(formatCopy(1))
	f.Add(formatCopy(1<<63 - 1))
	f.Add([]byte("holdfast-fence 1 0000000000000000001 00000000\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		token, ok := parseCopy(b)
		if ok && (token >= 1<<63 || !bytes.Equal(formatCopy(token), b)) {
			t.Fatalf("%q reads %d", b, token)
		}
	})
}

func TestCopyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token := rapid.Uint64Range(0, 1<<63-1).Draw(t, "token")
		b := formatCopy(token)
		if got, ok := parseCopy(b); !ok || got != token {
			t.Fatalf("%q reads %d, %v", b, got, ok)
		}
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		if got, ok := parseCopy(b); ok {
			t.Fatalf("a damaged copy %q reads %d", b, got)
		}
	})
}

// TestRaiseSurvivesPowerLoss: the power may fail at every step of every raise. It may damage
// the copy being written, and lose data that was not synced. Every confirmed token is still
// there afterwards.
func TestRaiseSurvivesPowerLoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var disk, cache copies // the durable copies, and the copies that processes see
		disk[0].ok, disk[1].ok = true, true
		cache = disk
		vouched := uint64(0) // the largest token of a raise that finished
		for range rapid.IntRange(1, 12).Draw(t, "raises") {
			token := vouched + rapid.Uint64Range(0, 3).Draw(t, "by")
			if token == 0 || token < cache.newest() {
				continue
			}
			// These are the steps of file.raise.
			stop := 0
			if token != cache.newest() || !cache.equal() {
				stop = rapid.IntRange(-1, 6).Draw(t, "stop")
				if stop >= 0 {
					disk = cache
				}
				for step, i := range cache.order() {
					// An even step fails before a write, an odd one between write and sync;
					// from 4 on the raise finishes.
					if stop < 0 || stop == 2*step {
						break
					}
					cache[i].token, cache[i].ok = token, true
					if stop == 2*step+1 {
						switch rapid.SampledFrom([]string{"kill", "torn", "lost", "kept"}).Draw(t, "fault") {
						case "torn":
							disk[i].ok = false
							cache = disk
						case "lost":
							cache = disk
						case "kept":
							disk[i] = cache[i]
							cache = disk
						}
						break
					}
					disk[i] = cache[i]
				}
			} else {
				stop = 6
			}
			if stop >= 4 {
				vouched = token
			}
			if rapid.Bool().Draw(t, "power") {
				cache = disk
			}
			for what, c := range map[string]copies{"memory": cache, "disk": disk} {
				if !c[0].ok && !c[1].ok {
					t.Fatalf("%s: no copy is whole", what)
				}
				if c.newest() < vouched {
					t.Fatalf("%s: newest is %d, but a write with %d went ahead: %v", what, c.newest(), vouched, c)
				}
			}
		}
	})
}
