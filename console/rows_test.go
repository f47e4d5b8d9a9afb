package console

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// TestRowDoesNotChangeByRounding: reads of a few milliseconds later, or earlier, change no row, also where the end of a
// TTL is rounded to another second. A renewal does.
func TestRowDoesNotChangeByRounding(t *testing.T) {
	c := &call{client: Everything("")}
	states := []holdfast.State{{Name: "a", Holders: []holdfast.Holder{{TTL: 30 * time.Second}}}}
	var sent map[string]row
	base := time.Unix(1_800_000_000, int64(499*time.Millisecond))
	for i, want := range []struct {
		after time.Duration
		rows  int
	}{{0, 1}, {5 * time.Millisecond, 0}, {-5 * time.Millisecond, 0}, {10 * time.Second, 1}, {10*time.Second + 5*time.Millisecond, 0}} {
		var u update
		sent = c.rows(&u, &snapshot{states: states, at: base.Add(want.after)}, "", nil, 0, sent)
		if len(u.Rows) != want.rows {
			t.Errorf("read %d: %d rows, want %d", i, len(u.Rows), want.rows)
		}
	}
}
