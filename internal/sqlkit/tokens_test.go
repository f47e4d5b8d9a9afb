package sqlkit

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
)

// TestCountedTokensRise: durable tokens are above the mark before, and at most the mark after.
// They are not below the clock when the lock was granted, unless the clock was set back.
func TestCountedTokensRise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.Int64Range(0, 2000).Draw(t, "before")
		after := before + rapid.Int64Range(1, 500).Draw(t, "more")
		granted := rapid.Int64Range(1, 3000).Draw(t, "clock")
		a := &LockRequest{Request: driver.Request{Tokens: rapid.IntRange(1, 100).Draw(t, "requested")}}
		got := a.Counted(Got{Token: uint64(granted), Slot: 7}, before, after)
		first, last := int64(got.Token), int64(driver.LastToken(got.Token, got.Tokens))
		switch {
		case first <= before || last > after || got.Tokens < 1 || got.Tokens > a.Tokens || got.Slot != 7:
			t.Fatalf("%+v of %d tokens, the mark rose from %d to %d", got, a.Tokens, before, after)
		case granted <= after && first < granted:
			t.Fatalf("token %d, granted at %d", first, granted)
		}
	})
}

// TestClockedTokens: clock tokens are the microseconds from the first reading on and before the
// second one. There is one token if the clock was set back or has not moved.
func TestClockedTokens(t *testing.T) {
	for _, c := range []struct {
		second   int64
		n, wants int
	}{{1000, 64, 1}, {1001, 64, 1}, {1010, 64, 10}, {1064, 64, 64}, {5000, 64, 64}, {999, 64, 1}, {0, 1, 1}, {5000, 1, 1}} {
		a := &LockRequest{Request: driver.Request{Tokens: c.n}}
		if got := a.Clocked(1000, c.second); got.Token != 1000 || got.Tokens != c.wants {
			t.Errorf("%d requested, read at 1000 and %d: %+v, want %d", c.n, c.second, got, c.wants)
		}
	}
}

// TestTokensOfAPassedLock: the tokens of the next grant lie between those of the old grant and the
// clock. There are no more than requested. If no token is left, the session does not hand the lock off.
func TestTokensOfAPassedLock(t *testing.T) {
	for _, test := range []struct {
		reserved, tokens int // of the old and the next grant
		now              int64
		want             Got
		outcome          PassOutcome
	}{
		{0, 1, 1500, Got{Token: 1500, Tokens: 1}, PassGranted},
		{1, 65, 1500, Got{Token: 1436, Tokens: 65}, PassGranted},
		{65, 65, 1090, Got{Token: 1065, Tokens: 26}, PassGranted},
		{65, 65, 1065, Got{Token: 1065, Tokens: 1}, PassGranted},
		{65, 65, 1064, Got{}, PassRefused},
		{65, 65, 900, Got{}, PassRefused},
		{1, 1, 1000, Got{}, PassRefused},
	} {
		old := &LockRequest{Token: 1000, Reserved: test.reserved}
		next := &LockRequest{Request: driver.Request{Tokens: test.tokens}}
		got, outcome, err := next.Passed(old, test.now)
		if test.want.Token > 0 {
			test.want.Slot = driver.NoSlot
		}
		if got != test.want || outcome != test.outcome || err != nil {
			t.Errorf("%+v: %+v, %v, %v", test, got, outcome, err)
		}
	}
}
