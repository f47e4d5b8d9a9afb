package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// TestLayoutRefusesAnotherType: the key of a name has a type that the layout does not use. The key stays
// unchanged.
func TestLayoutRefusesAnotherType(t *testing.T) {
	r := start(t)
	do(t, r, "SADD", "set", "member")
	for _, l := range layouts.All() {
		s := openLayout(t, "redis://"+r.Address(), l)
		g, err := s.Acquire(t.Context(), request("set", driver.Exclusive, time.Minute))
		if l == layouts.Plain || l == layouts.Redisson || l == layouts.RedissonFair || l == layouts.RedissonFenced || l == layouts.RedissonSpin {
			// The clients of this layout check only that the key exists, with any content.
			if code := driver.CodeOf(err); code != driver.CodeBusy && code != driver.CodeRefused {
				t.Errorf("%s: %+v, %v", l, g, err)
			}
			continue
		}
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("%s: %+v, %v", l, g, err)
		}
	}
	if members, _ := do(t, r, "SMEMBERS", "set").([]any); len(members) != 1 {
		t.Errorf("the key holds %v", members)
	}
}

// TestPlainLockWithoutTTLLasts: another client has set a key without a time to live. For holdfast that
// lock never expires. Waiters of holdfast are granted when the key is deleted.
func TestPlainLockWithoutTTLLasts(t *testing.T) {
	r := start(t)
	s := openLayout(t, "redis://"+r.Address(), layouts.Plain)
	do(t, r, "SET", "x", "of another client")
	_, err := s.Acquire(t.Context(), request("x", driver.Exclusive, long))
	code(t, s, err, driver.CodeBusy)
	w := queue(t, s, request("x", driver.Exclusive, long))
	w.Pending()
	if left := do(t, r, "TTL", "x"); left != int64(-1) {
		t.Errorf("the lock of another client has a time to live of %v s now", left)
	}
	do(t, r, "DEL", "x")
	release(t, s, w.Granted())
}

// TestOtherKindOfLockIsNotSeen: clients of one name use two kinds of Redisson's locks. Both hold it, since
// a kind does not see the holders of the other. So all clients of a name must use the same kind.
func TestOtherKindOfLockIsNotSeen(t *testing.T) {
	url := "redis://" + common(t).Address()
	one, other := openLayout(t, url, layouts.Redisson), openLayout(t, url, layouts.RedissonReadWrite)
	const name = "two-kinds"
	g, err := one.Acquire(t.Context(), request(name, driver.Exclusive, time.Minute))
	check(t, err)
	_, err = one.Acquire(t.Context(), request(name, driver.Exclusive, time.Minute))
	code(t, one, err, driver.CodeBusy)
	beside, err := other.Acquire(t.Context(), request(name, driver.Exclusive, time.Minute))
	if err != nil {
		t.Fatalf("%v: if the store refuses this now, the note of the guarantees is to say so", err)
	}
	if err := one.Release(t.Context(), g, 0); err != nil {
		t.Error(err)
	}
	if err := other.Release(t.Context(), beside, 0); driver.CodeOf(err) != driver.CodeNotHeld {
		t.Errorf("releasing a lock that the release of the other kind has deleted: %v", err)
	}
}
