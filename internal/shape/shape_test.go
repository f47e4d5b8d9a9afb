package shape_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/shape"
)

// FuzzJSON requires that the written text decodes to the same value, and that it has no characters
// that control a terminal.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{"", "\x00", "\x7f", "\u009b", "\u2028", "\u202e", "\U000e0001", "<&>", `"\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?")
		var b strings.Builder
		must.Succeed(t, shape.JSON(&b, map[string]string{"s": s}, false))
		for _, r := range b.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q contains %q", b.String(), r)
			}
		}
		var decoded map[string]string
		if err := json.Unmarshal([]byte(b.String()), &decoded); err != nil || decoded["s"] != s {
			t.Errorf("%q is decoded to %q: %v", s, decoded["s"], err)
		}
	})
}
