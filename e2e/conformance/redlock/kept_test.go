package redlock

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// kept returns whether a server keeps a released lock, and for how long.
func (f *fleet) kept(i int, name string) (bool, time.Duration) {
	value, _ := f.do(i, "GET", "holdfast:redlock:l::"+name).(string)
	ms, _ := f.do(i, "PTTL", "holdfast:redlock:l::"+name).(int64)
	return strings.HasPrefix(value, "*"), time.Duration(ms) * time.Millisecond
}

// TestLateReleaseKeepsTheLock: the first release with keep reaches each server later than Skew. No server
// ends the lock. The client repeats the release, and the lock stays taken.
func TestLateReleaseKeepsTheLock(t *testing.T) {
	f := start(t, 3, nil)
	var late [3]atomic.Bool // by server
	s := f.tapped(t, func(c call) ([]string, error) {
		if c.script == "end" && !late[c.server].Swap(true) {
			time.Sleep(2 * skew)
		}
		return c.send()
	})
	g := must(t, s, "late", time.Minute)
	check(t, s.Release(t.Context(), g, time.Hour))
	if g, err := acquire(t, f.open(t), "late", time.Minute); err == nil {
		t.Fatalf("token %d was granted although the lock is kept for an hour", g.Token)
	}
	until(t, "every server keeps the lock", func() bool {
		for i := range f.all {
			if is, left := f.kept(i, "late"); !is || left < 50*time.Minute {
				return false
			}
		}
		return true
	})
}

// TestReleaseThatIsAlwaysLateIsUnknown: every release with keep is late. The client does not report that the
// lock is kept. After the TTL it ends the votes.
func TestReleaseThatIsAlwaysLateIsUnknown(t *testing.T) {
	f := start(t, 3, nil)
	s := f.tapped(t, func(c call) ([]string, error) {
		if c.script == "end" && c.args[2] != "0" {
			time.Sleep(2 * skew)
		}
		return c.send()
	})
	g := must(t, s, "slow", time.Second)
	requests.Code(t, s, s.Release(t.Context(), g, time.Hour), driver.CodeUnknown)
	until(t, "nothing is left", func() bool { return len(f.leftovers(t)) == 0 })
}

// TestKeptLockOutlivesRestarts restarts all servers without their data, one after another, while they keep a
// released lock for longer than MaxTTL.
func TestKeptLockOutlivesRestarts(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(2 * time.Second)})
	s := f.open(t)
	name := ""
	until(t, "a lock is kept", func() bool { // a release that is slower than the TTL is not confirmed
		name = newName("hourly")
		return s.Release(t.Context(), must(t, s, name, 2*time.Second), time.Hour) == nil
	})
	for i, r := range f.all {
		check(t, r.RestartEmpty(t.Context()))
		until(t, fmt.Sprintf("server %d votes again", i), func() bool {
			_, _ = s.Acquire(t.Context(), request(newName("other"), 100*time.Millisecond))
			return f.votes(i)
		})
		if is, left := f.kept(i, name); !is || left < 50*time.Minute || left > time.Hour+2*skew {
			t.Errorf("server %d votes, and keeps the lock for %s (%t), want an hour less the time of the test", i, left, is)
		}
	}
	if g, err := acquire(t, f.open(t), name, time.Second); err == nil {
		t.Errorf("token %d was granted although the lock is kept for an hour", g.Token)
	}
	if st, err := s.Inspect(t.Context(), name); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != "" {
		t.Errorf("Inspect: %+v, %v; want a lock without a holder", st, err)
	}
}

// TestKeptLockOutlivesAWrongClock: a server keeps a lock for an hour. Its clock is set three hours ahead, so
// the key expires, and then back. When the server votes again, it keeps the lock again.
func TestKeptLockOutlivesAWrongClock(t *testing.T) {
	f := startBare(t, 3, options{redlock.MaxTTL(2 * time.Second)})
	f.fakeClock(0)
	f.setUp()
	s := f.open(t)
	name := ""
	until(t, "the server keeps a lock", func() bool {
		name = newName("hourly")
		err := s.Release(t.Context(), must(t, s, name, 2*time.Second), time.Hour)
		is, _ := f.kept(0, name)
		return err == nil && is
	})
	check(t, f.all[0].SetClock(3*time.Hour))
	request := func() { _, _ = s.Acquire(t.Context(), request(newName("other"), 100*time.Millisecond)) }
	until(t, "the server is withheld", func() bool { request(); return !f.votes(0) })
	if is, _ := f.kept(0, name); is {
		t.Fatal("the key has not expired")
	}
	check(t, f.all[0].SetClock(0))
	until(t, "the server votes again", func() bool { request(); return f.votes(0) })
	if is, left := f.kept(0, name); !is || left > time.Hour+2*skew {
		t.Errorf("the server votes, and keeps the lock for %s (%t)", left, is)
	}
}

// TestWithheldServerKeepsNoLock: two of three servers have the vote, and one of them restarts without its
// data. It keeps no lock, so a release with keep is not confirmed.
func TestWithheldServerKeepsNoLock(t *testing.T) {
	f := start(t, 3, nil)
	f.proxies[2].Cut()
	s := f.open(t)
	g := must(t, s, "halved", time.Minute)
	check(t, f.all[0].RestartEmpty(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	requests.Code(t, s, s.Release(ctx, g, time.Hour), driver.CodeUnknown)
}

// TestNewFleetReportsHowToStart: servers have no trace of a fleet, and the fleet is not declared new. They do not
// vote, and the error of a request names both ways to start. Fresh then admits the servers.
func TestNewFleetReportsHowToStart(t *testing.T) {
	f := startBare(t, 3, options{redlock.MaxTTL(time.Hour)})
	s := f.open(t)
	_, err := s.Acquire(t.Context(), request("early", time.Minute))
	if code := s.Classify(err); code != driver.CodeUnavailable && code != driver.CodeUnknown {
		t.Errorf("a request to new servers: %v, want unavailable", err)
	}
	for _, part := range []string{"fresh=true", "max_ttl (1h0m0s)"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v; want a message with %q", err, part)
		}
	}
	until(t, "the servers are withheld", func() bool {
		for i := range f.all {
			if f.votes(i) {
				t.Errorf("new server %d votes at once", i)
			}
			if f.state(i)["withheld"] == "" {
				return false
			}
		}
		return true
	})
	f.setUp()
	must(t, s, "early", time.Minute)
}

// TestFreshReportsThatItHasNoEffect: a server has a state of the fleet, and another one has lost its data.
func TestFreshReportsThatItHasNoEffect(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(time.Hour)})
	for i := range 2 {
		f.do(i, "FLUSHALL")
	}
	_, err := f.open(t, redlock.Fresh()).Acquire(t.Context(), request("again", time.Minute))
	if err == nil || !strings.Contains(err.Error(), "the fleet is not new") {
		t.Errorf("%v; want a message that fresh=true has no effect", err)
	}
}
