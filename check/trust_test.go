package check

import (
	"testing"
	"time"
)

// TestTrustedUntil: a pause between the two readings does not bring the end of trust
// forward.
func TestTrustedUntil(t *testing.T) {
	const end = int64(time.Minute)
	clock := int64(time.Second)
	pauses := []int64{int64(242 * time.Millisecond)} // the first reading has one
	remaining := func() time.Duration {
		if len(pauses) > 0 {
			clock += pauses[0]
			pauses = pauses[1:]
		}
		return time.Duration(end - clock)
	}
	if until, live := trustedUntil(func() int64 { return clock }, remaining); until != end || !live {
		t.Errorf("trusted until %s, %t; want %s", time.Duration(until), live, time.Duration(end))
	}
	// With a pause at every reading it is never later.
	for range 100 {
		pauses = append(pauses, int64(time.Millisecond))
	}
	if until, live := trustedUntil(func() int64 { return clock }, remaining); until > end || !live {
		t.Errorf("trusted until %s, %t; the end is %s", time.Duration(until), live, time.Duration(end))
	}
}
