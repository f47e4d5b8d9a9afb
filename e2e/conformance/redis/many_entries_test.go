package redis

import (
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/redisstore"
)

// recordScripts returns a store over p, and a function that returns a script by its name, with the
// arguments of its last call.
func recordScripts(t *testing.T, p *plain) (*redisstore.Store, func(name string) (s *redisstore.Script, args []string)) {
	t.Helper()
	scripts, last := map[string]*redisstore.Script{}, map[string][]string{}
	p.hold = func(s *redisstore.Script, args []string) bool {
		scripts[s.Name], last[s.Name] = s, args
		return false
	}
	s, err := redisstore.NewOver(p)
	check(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s, func(name string) (*redisstore.Script, []string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if scripts[name] == nil {
			t.Fatalf("the store did not call the script %s", name)
		}
		return scripts[name], append([]string(nil), last[name]...)
	}
}

// TestThousandsOfDeadEntriesAreRemoved: the clients of thousands of queue entries are dead. The next
// request for the name removes all of these entries.
func TestThousandsOfDeadEntriesAreRemoved(t *testing.T) {
	const waiters = 4200
	r := start(t)
	fakeClock(t, r)
	p := newPlain(t, r)
	s, used := recordScripts(t, p)
	held := must(t, s, request("x", driver.Exclusive, 10*long))
	ctx, cancel := context.WithCancel(t.Context())
	w := requests.QueueWith(t, ctx, s, request("x", driver.Exclusive, long))
	cancel()
	w.Failed()
	script, args := used("acquire")
	// The arguments of acquire.lua: request, TTL, key life, deadline, newest token; then wait, entry, retry.
	args = append(args[:5], "1", "0", "0")
	args[3] = "9007199254740991" // a deadline that no request misses on a slow machine
	key := redisstore.Key("", "x")
	for i := range waiters {
		args[0] = fmt.Sprintf("1 - o w%d", i)
		answer, err := p.Eval(t.Context(), script, []string{key, key[:len("holdfast:{000}")]}, args)
		if err != nil || answer[0] != "Q" {
			t.Fatalf("%q, %v", answer, err)
		}
	}
	check(t, r.SetClock(2*long))
	other := open(t, "redis://"+r.Address())
	_, err := other.Acquire(t.Context(), request("x", driver.Exclusive, long))
	code(t, other, err, driver.CodeBusy)
	fields, _ := do(t, r, "HKEYS", key).([]any)
	if len(fields) > 10 {
		t.Errorf("%d fields remain, want at most 10", len(fields))
	}
	release(t, s, held)
}

// TestReleaseRemovesExpiredTombstones: clients have withdrawn many requests for a held name. If their
// tombstones have expired, the holder's release removes the key.
func TestReleaseRemovesExpiredTombstones(t *testing.T) {
	r := start(t)
	fakeClock(t, r)
	s := open(t, "redis://"+r.Address())
	g := must(t, s, request("x", driver.Exclusive, 10*long))
	for range 300 {
		check(t, s.Undo(t.Context(), request("x", driver.Exclusive, long)))
	}
	check(t, r.SetClock(2*long))
	release(t, s, g)
	if n, _ := do(t, r, "EXISTS", redisstore.Key("", "x")).(int64); n > 0 {
		t.Errorf("the key remains, for %v ms: %.200v", do(t, r, "PTTL", redisstore.Key("", "x")), do(t, r, "HGETALL", redisstore.Key("", "x")))
	}
}
