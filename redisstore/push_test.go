package redisstore

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// ownerOf is a requester whose owner can change.
type ownerOf struct {
	noRequester
	reason *atomic.Value
}

func (o ownerOf) Owner() driver.Owner {
	return driver.Owner{Host: "h", PID: 1, Reason: o.reason.Load().(string)}
}

// TestWaiterStartsOnlyOnValidMessage sends a message while the answer to a call of a waiter is on
// its way. It requires that the waiter starts if the message is valid. Otherwise the waiter has
// to make a further call, which confirms the grant.
func TestWaiterStartsOnlyOnValidMessage(t *testing.T) {
	const token = 1_800_000_000_000_000
	type moment struct {
		s      *Store
		f      *listening
		tags   []string // of the calls until now
		reason *atomic.Value
	}
	start := func(m *moment, token uint64, tag string) {
		m.f.mu.Lock()
		defer m.f.mu.Unlock()
		m.f.got("gnext " + strconv.FormatUint(token, 10) + " 2500000 " + tag)
	}
	queued := []string{"Q", serverNow(), "1", "0", "60000", "-1"}
	// valid sends the message that the server publishes after the first call.
	valid := func(m *moment) { start(m, token, m.tags[0]) }
	for name, c := range map[string]struct {
		// calls has a function for each of the first calls. The function runs while the answer is
		// on its way, and returns the answer, or nil if it is lost.
		calls  []func(*moment) []string
		ttl    time.Duration
		starts bool
	}{
		"the message of the call":      {starts: true, calls: []func(*moment) []string{func(m *moment) []string { valid(m); return queued }}},
		"the message of a call, twice": {starts: true, calls: []func(*moment) []string{func(m *moment) []string { valid(m); valid(m); return queued }}},
		"a token that the client has seen": {calls: []func(*moment) []string{func(m *moment) []string {
			_, _, bucket := m.s.keys.of("n")
			m.s.srv.HighWater.Raise(bucket, token)
			valid(m)
			return queued
		}}},
		"a forged message": {calls: []func(*moment) []string{func(m *moment) []string { start(m, token, "A-1"); return queued }}},
		"a message without a tag": {calls: []func(*moment) []string{func(m *moment) []string {
			m.f.mu.Lock()
			defer m.f.mu.Unlock()
			m.f.got("gnext " + strconv.FormatInt(token, 10))
			return queued
		}}},
		"a message that requires a confirmation": {calls: []func(*moment) []string{func(m *moment) []string {
			m.f.mu.Lock()
			defer m.f.mu.Unlock()
			m.f.got("wnext")
			return queued
		}}},
		"a break after it": {calls: []func(*moment) []string{func(m *moment) []string {
			valid(m)
			m.f.mu.Lock()
			defer m.f.mu.Unlock()
			m.f.got("xnext")
			return queued
		}}},
		"the tag of an earlier call": {calls: []func(*moment) []string{
			func(m *moment) []string { start(m, token, "A-1"); return queued },
			func(m *moment) []string { valid(m); return queued },
		}},
		"the tag of a call without an answer": {calls: []func(*moment) []string{
			func(m *moment) []string { start(m, token, "A-1"); return queued },
			func(m *moment) []string { start(m, token, m.tags[1]); return nil },
		}},
		"the tag of an entry that is gone": {calls: []func(*moment) []string{
			func(m *moment) []string { start(m, token, "A-1"); return queued },
			func(m *moment) []string { return []string{"X", serverNow()} },
			func(m *moment) []string { valid(m); return queued },
		}},
		"the tag of an entry that is gone, while the next has no answer": {calls: []func(*moment) []string{
			func(m *moment) []string { start(m, token, "A-1"); return queued },
			func(m *moment) []string { return []string{"X", serverNow()} },
			func(m *moment) []string { valid(m); return nil },
		}},
		"the tag of a new entry": {starts: true, calls: []func(*moment) []string{
			func(m *moment) []string { start(m, token, "A-1"); return queued },
			func(m *moment) []string { return []string{"X", serverNow()} },
			func(m *moment) []string { start(m, token, m.tags[2]); return queued },
		}},
		"a call that was sent too long ago": {ttl: 3 * time.Millisecond, calls: []func(*moment) []string{func(m *moment) []string {
			time.Sleep(2 * time.Millisecond)
			valid(m)
			return queued
		}}},
		"another owner than in the call": {calls: []func(*moment) []string{func(m *moment) []string {
			m.reason.Store("the next goroutine")
			valid(m)
			return queued
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &moment{f: &listening{}, reason: &atomic.Value{}}
			m.reason.Store("the first goroutine")
			var sent []time.Time // when the server had received each call
			var renewals [][]string
			m.f.eval = func(sc *Script, _, args []string) ([]string, error) {
				if sc == renewScript {
					renewals = append(renewals, slices.Clone(args))
					return []string{"R", serverNow()}, nil
				}
				if sc != acquireScript {
					return []string{"U", serverNow()}, nil
				}
				sent = append(sent, time.Now())
				if len(args) != 10 || args[8] != "1" || slices.Contains(m.tags, args[9]) {
					t.Errorf("the call has no tag of its own: %q", args)
					return []string{"V", serverNow()}, nil
				}
				m.tags = append(m.tags, args[9])
				n := len(m.tags)
				if n > len(c.calls) {
					return granted(strconv.FormatInt(token, 10), "0"), nil
				}
				answer := c.calls[n-1](m)
				if answer == nil {
					return nil, errLost
				}
				return answer, nil
			}
			s, err := NewOver(m.f)
			must.Succeed(t, err)
			m.s = s
			defer func() { _ = s.Close(context.Background()) }()
			s.mu.Lock()
			s.listen()
			s.mu.Unlock()
			for ready := false; !ready; time.Sleep(time.Millisecond) {
				s.mu.Lock()
				ready = s.subscription.ready != 0
				s.mu.Unlock()
			}
			ttl := c.ttl
			if ttl == 0 {
				ttl = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			g, err := s.Acquire(ctx, driver.Request{ID: "next", Name: "n", Limit: 1, TTL: ttl, Wait: true, Provisional: true, From: ownerOf{reason: m.reason}})
			must.Succeed(t, err)
			if g.Provisional != c.starts || g.Token != token {
				t.Fatalf("provisional %t, token %d, after %d calls", g.Provisional, g.Token, len(sent))
			}
			want := len(c.calls)
			if !c.starts {
				want++
			}
			if len(sent) != want {
				t.Errorf("%d calls, want %d", len(sent), want)
			}
			if last := sent[len(sent)-1]; g.SentAt.Time().After(last) {
				t.Errorf("validity counts from %s after the server received the call", g.SentAt.Time().Sub(last))
			}
			if !c.starts {
				return
			}
			if g.TTL != 2500*time.Millisecond {
				t.Errorf("TTL %s", g.TTL)
			}
			r := s.Renew(ctx, []driver.Grant{g})
			if len(r) != 1 || r[0].Err != nil || r[0].TTL != time.Minute {
				t.Errorf("the confirmation: %+v", r)
			}
			if len(renewals) != 1 || !slices.Equal(renewals[0], []string{" next 1800000000000000 ", "0", "60000000", "1"}) {
				t.Errorf("the confirmation sends %q", renewals)
			}
		})
	}
}

// TestWaiterDoesNotStartAfterOldProbe has a valid message for a waiter whose store has made no probe lately. It
// requires that the waiter confirms the grant first.
func TestWaiterDoesNotStartAfterOldProbe(t *testing.T) {
	for age, starts := range map[time.Duration]bool{time.Second: true, 3 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			s := overFake(t, &fake{})
			if _, err := s.Guarantees(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(age)
			e := &entry{r: driver.Request{ID: "a", Name: "n", Limit: 1, TTL: time.Minute, From: noRequester{}}}
			a := &attempt{s: s.store, e: e, tag: "T-1", tagged: driver.Now(), owner: s.srv.EncodeOwner(noRequester{}.Owner())}
			e.start = "7 2500000 T-1"
			if _, ok := a.startUnconfirmed(); ok != starts {
				t.Errorf("starts %t, %s after the probe", ok, age)
			}
		})
	}
}

// TestStartTakesNoLongerThanTheTTL uses a TTL that is shorter than the deadline of the release.
// The confirmation sets the TTL, so the validity before it must not be longer than the TTL.
func TestStartTakesNoLongerThanTheTTL(t *testing.T) {
	s := overFake(t, &fake{})
	if _, err := s.Guarantees(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := &entry{r: driver.Request{ID: "a", Name: "n", Limit: 1, TTL: 2 * time.Second, From: noRequester{}}}
	a := &attempt{s: s.store, e: e, tag: "T-1", tagged: driver.Now(), owner: s.srv.EncodeOwner(noRequester{}.Owner())}
	e.start = "7 2500000 T-1"
	if g, ok := a.startUnconfirmed(); !ok || g.TTL != 2*time.Second {
		t.Errorf("%+v, %t", g, ok)
	}
}

// TestTagsAreForOneExclusiveTokenAlone requires that a request has no tag if a release cannot
// make its whole grant: with other limits, several tokens, or replicas that acknowledge grants. A
// request that does not wait, or is not provisional, has no tag either.
func TestTagsAreForOneExclusiveTokenAlone(t *testing.T) {
	for name, change := range map[string]func(*driver.Request){
		"not provisional": func(r *driver.Request) { r.Provisional = false },
		"no wait":         func(r *driver.Request) { r.Wait = false },
		"semaphore":       func(r *driver.Request) { r.Limit = 3 },
		"shared":          func(r *driver.Request) { r.Limit = driver.Unlimited },
		"several tokens":  func(r *driver.Request) { r.Tokens = 2 },
		"replicas":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			answer := func(args []string) []string {
				if calls++; len(args) > 9 {
					t.Errorf("%q has a tag", args)
				}
				return granted("7", "0")
			}
			f := &fake{
				eval: func(_ *Script, _, args []string) ([]string, error) { return answer(args), nil },
				acked: func(_ context.Context, _ *Script, _, args []string) ([]string, int, error) {
					return answer(args), 1, nil
				},
			}
			var options []Option
			r := driver.Request{ID: "a", Name: "n", Limit: 1, TTL: time.Minute, Wait: true, Provisional: true, From: noRequester{}}
			if change == nil {
				options = append(options, WaitReplicas(1, time.Second))
			} else {
				change(&r)
			}
			if _, err := overFake(t, f, options...).Acquire(t.Context(), r); err != nil || calls != 1 {
				t.Errorf("%v, %d calls", err, calls)
			}
		})
	}
}
