package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestLayoutHoldersNoticeEarlyEnds deletes every key while grants stand. Their holders are notified, a
// renewal and a release are refused, and the name is free. The client's next token is larger, except for
// RFencedLock, whose counter was deleted, too.
func TestLayoutHoldersNoticeEarlyEnds(t *testing.T) {
	for _, l := range redisstore.Layouts() {
		t.Run(string(l), func(t *testing.T) {
			t.Parallel()
			r := start(t)
			s := open(t, "redis://"+r.Address(), redisstore.WithLayout(l))
			q := request("a", driver.Exclusive, time.Minute)
			g, err := s.Acquire(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			do(t, r, "FLUSHALL")
			select {
			case cause := <-requests.Of(q).Losses:
				if cause != driver.CauseGone {
					t.Errorf("%s, want %s", cause, driver.CauseGone)
				}
			case <-time.After(time.Minute):
				t.Fatal("the holder was not notified")
			}
			if a := s.Renew(t.Context(), []driver.Grant{g}); driver.CodeOf(a[0].Err) != driver.CodeNotHeld {
				t.Errorf("renewing a lost grant: %v", a[0].Err)
			}
			if err := s.Release(t.Context(), g, 0); driver.CodeOf(err) != driver.CodeNotHeld {
				t.Errorf("releasing a lost grant: %v", err)
			}
			next, err := s.Acquire(t.Context(), request("a", driver.Exclusive, time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			if l != redisstore.RedissonFenced && next.Token <= g.Token {
				t.Errorf("token %d after %d", next.Token, g.Token)
			}
			if err := s.Release(t.Context(), next, 0); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLayoutRefusesAnotherType: the key of a name has a type that the layout does not use. The key stays
// unchanged.
func TestLayoutRefusesAnotherType(t *testing.T) {
	r := start(t)
	do(t, r, "SADD", "set", "member")
	for _, l := range redisstore.Layouts() {
		s := open(t, "redis://"+r.Address(), redisstore.WithLayout(l))
		g, err := s.Acquire(t.Context(), request("set", driver.Exclusive, time.Minute))
		if l == redisstore.Plain || l == redisstore.Redisson || l == redisstore.RedissonFair || l == redisstore.RedissonFenced || l == redisstore.RedissonSpin {
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
	s := open(t, "redis://"+r.Address(), redisstore.WithLayout(redisstore.Plain))
	do(t, r, "SET", "x", "of another client")
	_, err := s.Acquire(t.Context(), request("x", driver.Exclusive, long))
	code(t, s, err, driver.CodeBusy)
	w := queue(t, s, request("x", driver.Exclusive, long))
	w.pending()
	if left := do(t, r, "TTL", "x"); left != int64(-1) {
		t.Errorf("the lock of another client has a time to live of %v s now", left)
	}
	do(t, r, "DEL", "x")
	release(t, s, w.granted())
}

// TestOtherKindOfLockIsNotSeen: clients of one name use two kinds of Redisson's locks. Both hold it, since
// a kind does not see the holders of the other. So all clients of a name must use the same kind.
func TestOtherKindOfLockIsNotSeen(t *testing.T) {
	url := "redis://" + common(t).Address()
	one, other := open(t, url, redisstore.WithLayout(redisstore.Redisson)), open(t, url, redisstore.WithLayout(redisstore.RedissonReadWrite))
	const name = "two-kinds"
	g, err := one.Acquire(t.Context(), request(name, driver.Exclusive, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
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
