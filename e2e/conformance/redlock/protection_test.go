package redlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// TestRestartWithoutDataGivesNoSecondMajority replays the classic failure. A holds the name on three of five servers.
// One of them restarts without its data within the TTL, and B sends a request.
func TestRestartWithoutDataGivesNoSecondMajority(t *testing.T) {
	const name = "forgotten"
	prepare := func(t *testing.T) (*fleet, driver.Grant) {
		f := start(t, 5, nil)
		for _, p := range f.proxies[3:] {
			p.Cut()
		}
		a := f.open(t)
		granted := must(t, a, name, time.Minute)
		for _, p := range f.proxies[3:] {
			check(t, p.Heal())
		}
		for i := range f.all {
			if has := f.do(i, "EXISTS", "holdfast:redlock:l::"+name) == int64(1); has != (i < 3) {
				t.Fatalf("server %d has the lock: %t", i, has)
			}
		}
		check(t, f.all[2].RestartEmpty(t.Context()))
		return f, granted
	}
	t.Run("protected", func(t *testing.T) {
		f, _ := prepare(t)
		b := f.open(t)
		for range 3 {
			if g, err := acquire(t, b, name, time.Minute); err == nil {
				t.Fatalf("token %d was granted beside the holder: the restarted server has voted", g.Token)
			}
		}
		if f.votes(2) {
			t.Error("the restarted server is admitted within the longest TTL")
		}
	})
	t.Run("unprotected", func(t *testing.T) {
		// On a busy machine the holder may get the votes of the other servers before the second client does.
		var first, second driver.Grant
		err := errors.New("no try")
		for try := 0; err != nil && try < 4; try++ {
			var f *fleet
			f, first = prepare(t)
			second, err = acquire(t, f.open(t, redlock.Unprotected()), name, time.Minute)
		}
		check(t, err)
		// Both hold the name. The guard at the resource refuses the first.
		var g fence.Memory
		check(t, g.Write(t.Context(), "resource", second.Token, func(context.Context) error { return nil }))
		if err := g.Write(t.Context(), "resource", first.Token, func(context.Context) error { return nil }); !errors.Is(err, fence.ErrStale) {
			t.Errorf("the guard has seen token %d, and answers %v to token %d", second.Token, err, first.Token)
		}
	})
}

// TestReloadWithoutSaving: DEBUG RELOAD NOSAVE makes two of three servers forget a vote and keep their
// replication IDs. They then vote for another client. The first holder is notified, and its token is
// smaller than the next one.
func TestReloadWithoutSaving(t *testing.T) {
	f := start(t, 3, nil, "--enable-debug-command", "local")
	for i := range f.all {
		f.do(i, "SAVE")
	}
	a, b := f.open(t), f.open(t)
	const name = "reloaded"
	r := request(name, time.Minute)
	first, err := a.Acquire(t.Context(), r)
	for err != nil { // a busy machine answers late
		if a.Classify(err) == driver.CodeUnknown {
			undo(t, a, r)
		}
		r = request(name, time.Minute)
		first, err = a.Acquire(t.Context(), r)
	}
	var second driver.Grant
	until(t, "the request is granted", func() bool {
		for i := range 2 { // in each try, as a renewal may restore the holder's votes
			f.do(i, "DEBUG", "RELOAD", "NOSAVE")
		}
		second, err = acquire(t, b, name, time.Minute)
		return err == nil
	})
	requests.Rises(t, first, second)
	requests.Of(r).AwaitLoss(t)
}

// TestTokensRiseAcrossRestarts restarts all servers without their data, one after another.
// The counters are an hour ahead of the clocks. So tokens rise only if the servers'
// counters are restored. No grant between the restarts raises the counter of the name idle.
func TestTokensRiseAcrossRestarts(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(300 * time.Millisecond)})
	s := f.open(t)
	const name, idle = "restarts", "idle"
	var ahead uint64
	for _, name := range []string{name, idle} {
		g := must(t, s, name, 200*time.Millisecond)
		_ = s.Release(t.Context(), g, 0)
		ahead = g.Token + uint64(time.Hour.Microseconds())
	}
	counters := map[string]bool{}
	for i := range f.all {
		for field := range f.state(i) {
			if strings.HasPrefix(field, "c") {
				counters[field] = true
			}
		}
	}
	if len(counters) != 2 {
		t.Fatalf("counters %v, want one for each name", counters)
	}
	for i := range f.all {
		for field := range counters {
			f.do(i, "HSET", "holdfast:redlock", field, strconv.FormatUint(ahead, 10))
		}
	}
	last := ahead
	rises := func() {
		t.Helper()
		for range 2 {
			g := must(t, f.open(t), name, 200*time.Millisecond)
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			_ = s.Release(t.Context(), g, 0)
		}
	}
	rises()
	for i, r := range f.all {
		check(t, r.RestartEmpty(t.Context()))
		rises()
		until(t, fmt.Sprintf("server %d is admitted", i), func() bool { return f.votes(i) })
		rises()
	}
	if g := must(t, f.open(t), idle, 200*time.Millisecond); g.Token <= ahead {
		t.Errorf("token %d after %d, for a name that was idle during the restarts", g.Token, ahead)
	}
}

// TestClockOutOfLine sets one server's clock hours ahead. The server has no vote. It votes
// again some time after its clock is right.
func TestClockOutOfLine(t *testing.T) {
	f := startBare(t, 3, options{redlock.MaxTTL(400 * time.Millisecond)})
	f.fakeClock(0)
	f.setUp()
	s := f.open(t)
	must(t, s, "before", 300*time.Millisecond)
	check(t, f.all[0].SetClock(3*time.Hour))
	for range 3 {
		name := newName("ahead")
		must(t, s, name, 400*time.Millisecond)
		if f.do(0, "EXISTS", "holdfast:redlock:l::"+name) != int64(0) {
			t.Errorf("the server has voted although its clock is three hours ahead")
		}
	}
	until(t, "the server is withheld", func() bool { _, has := f.state(0)["run"]; return !has })
	check(t, f.all[0].SetClock(0))
	until(t, "the server votes again", func() bool {
		_, _ = s.Acquire(t.Context(), request(newName("after"), 100*time.Millisecond))
		return f.votes(0)
	})
}

// TestCountersBesideAWrongClock restarts a server without its data while the clock of
// another server is hours ahead. The server with the wrong clock has no vote, but has kept
// its counters. So a majority can restore the counters of the restarted server.
func TestCountersBesideAWrongClock(t *testing.T) {
	f := startBare(t, 3, options{redlock.MaxTTL(400 * time.Millisecond)})
	f.fakeClock(0)
	f.setUp()
	s := f.open(t)
	must(t, s, "before", 300*time.Millisecond)
	check(t, f.all[0].SetClock(3*time.Hour))
	acquire := func() { _, _ = s.Acquire(t.Context(), request(newName("name"), 100*time.Millisecond)) }
	until(t, "the server is withheld", func() bool { acquire(); return !f.votes(0) })
	check(t, f.all[1].RestartEmpty(t.Context()))
	until(t, "the restarted server votes", func() bool { acquire(); return f.votes(1) })
	if f.votes(0) {
		t.Error("a server votes whose clock is three hours ahead")
	}
}

// TestMajorityDownIsUnavailable: while most servers are paused, Lock returns ErrUnavailable. When the
// servers continue, nothing is left.
func TestMajorityDownIsUnavailable(t *testing.T) {
	f := start(t, 5, nil)
	l, err := holdfast.New(f.make(t), holdfast.Defaults(holdfast.TTL(3*time.Second)))
	check(t, err)
	check(t, l.Do(t.Context(), "before", func(context.Context) error { return nil }))
	for _, r := range f.all[:3] {
		check(t, r.Pause())
	}
	_, err = l.Lock(t.Context(), "down", holdfast.Wait(4*time.Second))
	if !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("Lock while three of five servers are paused: %v, want ErrUnavailable", err)
	}
	for _, r := range f.all[:3] {
		check(t, r.Cont())
	}
	until(t, "the name can be locked again", func() bool {
		return l.Do(t.Context(), "down", func(context.Context) error { return nil }) == nil
	})
	until(t, "nothing is left", func() bool { return len(f.leftovers(t)) == 0 })
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHeldLockIsHealed: a server is down while a lock is granted. When the server is back,
// a renewal writes the lock to it.
func TestHeldLockIsHealed(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(2 * time.Second)})
	f.all[0].Kill()
	s := f.open(t)
	const name = "healed"
	g := must(t, s, name, 2*time.Second)
	check(t, f.all[0].Restart(t.Context()))
	until(t, "the lock is on the server that returned", func() bool {
		r := s.Renew(t.Context(), []driver.Grant{g})[0]
		if driver.CodeOf(r.Err) == driver.CodeNotHeld { // the machine stood still for too long
			g = must(t, s, name, 2*time.Second)
		}
		return f.do(0, "EXISTS", "holdfast:redlock:l::"+name) == int64(1)
	})
	_ = s.Release(t.Context(), g, 0)
	until(t, "nothing is left", func() bool { return len(f.leftovers(t)) == 0 })
}

// TestLostVotesAreNoticed ends the votes of a held lock early at two of three servers. The
// holder is notified.
func TestLostVotesAreNoticed(t *testing.T) {
	f := startBare(t, 3, options{redlock.MaxTTL(time.Hour)})
	f.fakeClock(0)
	f.fakeClock(1)
	f.setUp()
	s := f.open(t)
	ends := func(name string, end func(i int)) {
		t.Helper()
		r := request(name, time.Hour)
		until(t, "the request is granted", func() bool {
			_, err := s.Acquire(t.Context(), r)
			if err != nil {
				undo(t, s, r)
				r = request(name, time.Hour)
			}
			return err == nil
		})
		// A check of the grant between the two deletions restores the first vote, and the lock
		// stands. Then the test deletes both again.
		until(t, "the holder is notified", func() bool {
			end(0)
			end(1)
			select {
			case <-requests.Of(r).Losses:
				return true
			default:
				return false
			}
		})
	}
	ends("deleted", func(i int) { f.do(i, "DEL", "holdfast:redlock:l::deleted") })
	ends("expired", func(i int) {
		check(t, f.all[i].SetClock(3*time.Hour))
	})
}

// TestRenewalBesideARelease: one of three servers has lost its vote for a lock. The client
// renews and releases the lock at the same time. Nothing of the lock is left.
func TestRenewalBesideARelease(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(time.Hour)})
	s := f.open(t)
	for i := range 50 {
		g := must(t, s, fmt.Sprint("crossed-", i), time.Hour)
		f.do(i%3, "DEL", "holdfast:redlock:l::"+g.Name)
		var renewal sync.WaitGroup
		for range 4 {
			renewal.Go(func() { s.Renew(t.Context(), []driver.Grant{g}) })
		}
		time.Sleep(time.Duration(i) * 20 * time.Microsecond) // so that releases meet each step of a renewal
		release(t, s, g)
		renewal.Wait()
	}
	until(t, "nothing is left", func() bool { return len(f.leftovers(t)) == 0 })
}

// TestLateVoteBesideAnotherBallot: a server gets the request for a vote after the lock was released. When the holder
// renewed, another ballot had the server's vote for a moment. The late request leaves no vote.
func TestLateVoteBesideAnotherBallot(t *testing.T) {
	f := start(t, 3, options{redlock.Skew(lateSkew)})
	vote := make(chan func() ([]string, error), 1) // sends the request that was held back
	s := f.tapped(t, func(c call) ([]string, error) {
		if c.script == "vote" && c.server == 0 {
			select {
			case vote <- c.send:
				return nil, errNoAnswer
			default:
			}
		}
		return c.send()
	})
	g := must(t, s, newName("unsure"), time.Minute)
	key := "holdfast:redlock:l::" + g.Name
	f.do(0, "SET", key, "other.1 5 1 1000 1&x&&") // the vote for another client
	check(t, s.Renew(t.Context(), []driver.Grant{g})[0].Err)
	f.do(0, "DEL", key)
	release(t, s, g)
	until(t, "every server has ended the ballot", func() bool { return len(f.leftovers(t)) == 0 })
	_, _ = (<-vote)()
	if left := f.do(0, "GET", key); left != nil {
		t.Errorf("the late request has left the vote %v", left)
	}
}

// TestLateRequestIsNoVote: the requests for a vote reach all servers too late, and each server refuses its own. The
// refusals are no votes: the request is not granted beside the holder of the name.
func TestLateRequestIsNoVote(t *testing.T) {
	f := start(t, 3, nil)
	held := must(t, f.open(t), newName("late"), time.Minute)
	var votes, late atomic.Int64
	s := f.tapped(t, func(c call) ([]string, error) {
		if c.script != "vote" {
			return c.send()
		}
		if votes.Add(1) <= 3 {
			time.Sleep(2 * skew) // longer than the servers tolerate
		}
		v, err := c.send()
		if len(v) > 0 && v[0] == "C" {
			late.Add(1)
		}
		return v, err
	})
	until(t, "all servers find a request late", func() bool {
		votes.Store(0)
		late.Store(0)
		if g, err := acquire(t, s, held.Name, time.Minute); err == nil {
			t.Fatalf("token %d was granted beside the holder: its servers had found the request late", g.Token)
		}
		return late.Load() >= 3
	})
}

// TestVoteAfterTheEndOfItsBallotIsEnded: a request is withdrawn while the answers of all servers are under way. They have
// voted. When the answers arrive, the client ends the votes.
func TestVoteAfterTheEndOfItsBallotIsEnded(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(time.Hour)})
	arrive := make(chan struct{})
	deliver := sync.OnceFunc(func() { close(arrive) })
	defer deliver()
	s := f.tapped(t, func(c call) ([]string, error) {
		v, err := c.send()
		if c.script == "vote" {
			<-arrive
		}
		return v, err
	})
	r := request(newName("withdrawn"), time.Hour)
	ctx, withdraw := context.WithCancel(t.Context())
	defer withdraw()
	w := requests.Start(t, r, func() (driver.Grant, error) { return s.Acquire(ctx, r) })
	for i := range f.all {
		f.awaitVote(t, i, driver.Grant{ID: r.ID, Name: r.Name})
	}
	withdraw()
	requests.Code(t, s, w.Ended(), driver.CodeUnknown)
	deliver()
	until(t, "no vote is left", func() bool { return len(f.leftovers(t)) == 0 })
}

// TestReleaseWithLostAnswersIsNoLoss: the servers have ended their votes, and each one's first answer to the release is
// lost. The repeated requests find no votes. The client must not report that the grant was lost before.
func TestReleaseWithLostAnswersIsNoLoss(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(time.Hour)})
	var released atomic.Bool
	var lost [3]atomic.Bool
	s := f.tapped(t, func(c call) ([]string, error) {
		v, err := c.send()
		if c.script == "end" && released.Load() && !lost[c.server].Swap(true) {
			return nil, errNoAnswer
		}
		return v, err
	})
	g := f.hold(t, s, newName("released"))
	released.Store(true)
	requests.Code(t, s, s.Release(t.Context(), g, 0), driver.CodeUnknown)
	requests.Code(t, s, s.Release(t.Context(), g, 0), driver.CodeNotHeld)
}

// TestReleaseWithoutAnswersIsNoLoss: the answers to a release are lost until the votes must have expired, so
// that the client does not repeat its requests. It must not report that the grant was lost before.
func TestReleaseWithoutAnswersIsNoLoss(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(time.Hour), redlock.Skew(100 * time.Millisecond)})
	s := f.open(t)
	release(t, s, must(t, s, "warm", time.Hour)) // so that the servers have the scripts
	g := must(t, s, "released", 500*time.Millisecond)
	for _, p := range f.proxies {
		check(t, p.DropAnswers())
	}
	requests.Code(t, s, s.Release(t.Context(), g, 0), driver.CodeUnknown)
	for _, p := range f.proxies {
		check(t, p.Heal())
	}
}

// TestBrokenLockIsNotHealed: a lock's holder reaches no server, and its votes expire soon.
// An operator breaks the lock. When the holder reaches the servers again, its renewal is
// refused.
func TestBrokenLockIsNotHealed(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(time.Hour), redlock.Skew(50 * time.Millisecond)})
	s := f.open(t)
	g := must(t, s, "broken", time.Hour)
	for i, p := range f.proxies {
		p.Cut()
		f.do(i, "PEXPIRE", "holdfast:redlock:l::broken", "60000")
	}
	operator := f.tapped(t, func(c call) ([]string, error) { return c.send() }) // without the proxies
	check(t, operator.Break(t.Context(), "broken", g.Token))
	for i := range f.all {
		for _, k := range f.do(i, "KEYS", "holdfast:redlock:v:*").([]any) {
			if left, _ := f.do(i, "PTTL", k.(string)).(int64); left < (50 * time.Minute).Milliseconds() {
				t.Errorf("server %d refuses the broken lock for %d ms more, and its TTL is an hour", i, left)
			}
		}
	}
	for _, p := range f.proxies {
		check(t, p.Heal())
	}
	until(t, "the renewal is refused", func() bool {
		r := s.Renew(t.Context(), []driver.Grant{g})[0]
		if r.Err == nil {
			t.Fatal("a broken lock was renewed")
		}
		return driver.CodeOf(r.Err) == driver.CodeNotHeld
	})
}

// TestBreakBesideASilentServer: one of three servers has lost its vote, and another one is silent. Break does
// not report that no grant exists.
func TestBreakBesideASilentServer(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(time.Hour)})
	s := f.open(t)
	g := must(t, s, "halved", time.Hour)
	for i := range f.all {
		until(t, "each server has voted", func() bool { value, _ := f.lock(i, "halved"); return value != "" })
	}
	operator := f.open(t)
	if _, err := operator.Inspect(t.Context(), "halved"); err != nil {
		t.Fatal(err)
	}
	check(t, f.all[2].Pause())
	t.Cleanup(func() { _ = f.all[2].Cont() })
	f.do(0, "DEL", "holdfast:redlock:l::halved")
	requests.Code(t, s, operator.Break(t.Context(), "halved", g.Token), driver.CodeUnavailable)
}

// TestClientWhoseClockStoodStill sets the clocks of all servers ahead. A client whose own
// clock stood still sees the same. It withholds the vote of no server.
func TestClientWhoseClockStoodStill(t *testing.T) {
	f := startBare(t, 3, options{redlock.MaxTTL(time.Hour)})
	for i := range f.all {
		f.fakeClock(i)
	}
	f.setUp()
	s := f.open(t)
	for _, p := range f.proxies[1:] { // so that the client reads the first server's clock first
		check(t, p.Delay(100*time.Millisecond))
	}
	for hours := range 4 {
		for _, r := range f.all {
			check(t, r.SetClock(time.Duration(hours)*time.Hour))
		}
		must(t, s, fmt.Sprint("hour-", hours), time.Minute)
		for i := range f.all {
			if f.state(i)["run"] == "" {
				t.Fatalf("server %d is withheld, and all clocks agree", i)
			}
		}
	}
}

// TestRestartWhileAdmitted: a client reads the state of a server of a new fleet. The server
// restarts without its data before the client admits it. It may have voted for another
// client, so it has to wait.
func TestRestartWhileAdmitted(t *testing.T) {
	f := startBare(t, 3, options{redlock.MaxTTL(time.Hour), redlock.Fresh()})
	var restarted atomic.Bool
	s := f.tapped(t, func(c call) ([]string, error) {
		if c.script != "admit" || c.server != 2 || restarted.Swap(true) {
			return c.send()
		}
		if err := f.all[2].RestartEmpty(t.Context()); err != nil {
			return nil, err
		}
		for { // the first attempts may find the old connections
			if answer, err := c.send(); err == nil || t.Context().Err() != nil {
				return answer, err
			}
		}
	})
	if _, err := s.Guarantees(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range f.all {
		if admitted := f.votes(i); admitted != (i < 2) {
			t.Errorf("server %d is admitted: %t", i, admitted)
		}
	}
}

// TestAcquisitionWritesAtMostTwice counts the writes of an acquisition at one server: one write if the
// servers' counters agree, and at most two if the server's counter is ahead.
func TestAcquisitionWritesAtMostTwice(t *testing.T) {
	f := start(t, 3, nil)
	s := f.open(t)
	const name = "trips"
	writes := func() int {
		info, _ := f.do(0, "INFO", "commandstats").(string)
		_, rest, _ := strings.Cut(info, "cmdstat_set:calls=")
		n, _, _ := strings.Cut(rest, ",")
		calls, _ := strconv.Atoi(n)
		return calls
	}
	count := func() int {
		before := writes()
		g := must(t, s, name, time.Minute)
		until(t, "the server has voted", func() bool { return f.do(0, "EXISTS", "holdfast:redlock:l::"+name) == int64(1) })
		n := writes() - before
		release(t, s, g)
		until(t, "the vote has ended", func() bool { return f.do(0, "EXISTS", "holdfast:redlock:l::"+name) == int64(0) })
		return n
	}
	count()
	if n := count(); n != 1 {
		t.Errorf("an acquisition took %d writes at a server, want 1", n)
	}
	for i := range f.all {
		f.do(i, "HSET", "holdfast:redlock", "least", strconv.FormatInt(time.Now().Add(time.Hour).UnixMicro(), 10))
	}
	if n := count(); n > 2 {
		t.Errorf("an acquisition took %d writes at a server whose counter is ahead, want 2 at most", n)
	}
}

// TestSplitBesideASilentServer: one of three servers is silent, and the other two vote for
// different clients. The request goes on with their answers. It does not wait for the
// silent server until its timeout.
func TestSplitBesideASilentServer(t *testing.T) {
	f := start(t, 3, options{redlock.MaxTTL(suiteTTL)})
	s := f.open(t)
	release(t, s, must(t, s, "warm", suiteTTL))
	f.do(1, "SET", "holdfast:redlock:l::split", "a.1 1 1 60000 1&&&", "PX", "60000")
	check(t, f.all[2].Pause())
	t.Cleanup(func() { _ = f.all[2].Cont() })
	// A machine that stands still may make any attempt late, but not all of them.
	for range 5 {
		r := request("split", suiteTTL)
		r.Wait = true
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		w := requests.Start(t, r, func() (driver.Grant, error) { return s.Acquire(ctx, r) })
		var queued bool
		select {
		case <-requests.Of(r).Waits:
			queued = true
			cancel()
			_ = w.Ended()
		case <-w.Done:
			if w.Err == nil {
				t.Fatal("one vote of three was a grant")
			}
		}
		cancel()
		if queued {
			return
		}
	}
	t.Error("a request waits for the silent server, although the others have answered")
}
