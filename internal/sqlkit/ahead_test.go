package sqlkit

import (
	"testing"
)

// TestAheadUsesTTL: if the expiry time of a grant is further away than its TTL, the clock
// was set back, and the grant stands for its TTL. The expiry time stays if the TTL is
// unknown, or if the row may have been written after the time was read.
func TestAheadUsesTTL(t *testing.T) {
	const now, ttl = int64(1e15), int64(1e6)
	late := applyTimeout.Microseconds()
	for name, c := range map[string]struct{ expires, ttl, want int64 }{
		"as given":           {now + ttl, ttl, now + ttl},
		"written after now":  {now + ttl + late, ttl, now + ttl + late},
		"clock set back":     {now + ttl + late + 1, ttl, now + ttl},
		"of unknown TTL":     {now + ttl + late + 1, 0, now + ttl + late + 1},
		"has run out":        {now, ttl, 0},
		"long, not set back": {now + 100*ttl, 100 * ttl, now + 100*ttl},
	} {
		l := content{Holders: []holder{{Limit: 1, Expires: c.expires, TTL: c.ttl}}}.live(now)
		if got := l.lastExpiry(); got != c.want {
			t.Errorf("%s: until %+d, want %+d", name, got-now, c.want-now)
		}
	}
}
