package fence

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// FuzzParseCopy requires that parseCopy accepts only the output of formatCopy.
func FuzzParseCopy(f *testing.F) {
	f.Add(formatCopy(0))
	f.Add(formatCopy(1))
	f.Add(formatCopy(1<<63 - 1))
	f.Add([]byte("holdfast-fence 1 0000000000000000001 00000000\n")) // a wrong checksum
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		token, ok := parseCopy(b)
		if ok && (token >= 1<<63 || !bytes.Equal(formatCopy(token), b)) {
			t.Fatalf("%q reads %d", b, token)
		}
	})
}

// TestCopyRoundTrip requires that parseCopy returns the token of an intact copy, and refuses a copy
// in which one byte has changed.
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
