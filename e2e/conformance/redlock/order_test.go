package redlock

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// positions returns the requests whose positions the servers have, by server, "" for none.
func (f *fleet) positions(name string) []string {
	var all []string
	for i := range f.all {
		text, _ := f.do(i, "GET", "holdfast:redlock:p:holdfast:redlock:l::"+name).(string)
		_, id, _ := strings.Cut(text, " ")
		all = append(all, id)
	}
	return all
}

// hold acquires a lock, and returns when all servers have voted. A server that votes later may first vote for a waiter.
func (f *fleet) hold(t *testing.T, s driver.Store, name string) driver.Grant {
	t.Helper()
	g := must(t, s, name, time.Minute)
	for i := range f.all {
		f.awaitVote(t, i, g)
	}
	return g
}

// awaitVote waits until a server has voted for a grant.
func (f *fleet) awaitVote(t *testing.T, i int, g driver.Grant) {
	t.Helper()
	until(t, "the server has voted", func() bool {
		text, _ := f.do(i, "GET", "holdfast:redlock:l::"+g.Name).(string)
		return strings.HasPrefix(text, g.ID+".")
	})
}

// gate holds back the votes that a client requests.
type gate struct {
	mu     sync.RWMutex // locked while the gate is closed
	client *redlock.Store
}

// gated returns a client behind a gate.
func (f *fleet) gated(t *testing.T) *gate {
	g := &gate{}
	g.client = f.tapped(t, func(c call) ([]string, error) {
		if c.script == "vote" {
			g.mu.RLock()
			defer g.mu.RUnlock()
		}
		return c.send()
	})
	return g
}

// wait sends a request that waits until cancel, and returns when all servers have its position.
func (f *fleet) wait(t *testing.T, s driver.Store, name string, ttl time.Duration) (w *requests.Waiter, cancel context.CancelFunc) {
	t.Helper()
	r := request(name, ttl)
	r.Wait = true
	ctx, cancel := context.WithCancel(t.Context())
	w = requests.Start(t, r, func() (driver.Grant, error) { return s.Acquire(ctx, r) })
	until(t, "the servers have the position", func() bool {
		return !slices.ContainsFunc(f.positions(name), func(id string) bool { return id != r.ID })
	})
	return w, cancel
}

// isBusy requires that a client that does not wait finds the name taken.
func isBusy(t *testing.T, s driver.Store, name string) {
	t.Helper()
	if g, err := acquire(t, s, name, ttl); err == nil {
		t.Fatalf("token %d was granted before the request that has waited longest", g.Token)
	}
}

// TestLongestWaiterIsNext: the servers keep a free name for the request that has waited longest, until that request
// is granted, ends its wait, or is not heard of any more.
func TestLongestWaiterIsNext(t *testing.T) {
	f := start(t, 3, nil)
	a, young := f.open(t), f.open(t)
	t.Run("it is granted first", func(t *testing.T) {
		name, old := newName("first"), f.gated(t)
		held := f.hold(t, a, name)
		first, cancel := f.wait(t, old.client, name, time.Minute)
		defer cancel()
		second := requests.Submit(t, young, request(name, time.Minute))
		old.mu.Lock()
		release(t, a, held)
		for range 3 {
			isBusy(t, a, name)
		}
		if id := f.positions(name); slices.ContainsFunc(id, func(id string) bool { return id != first.Request.ID }) {
			t.Errorf("the positions are those of %q, want %q", id, first.Request.ID)
		}
		old.mu.Unlock()
		g := first.Granted()
		second.Pending()
		release(t, old.client, g)
		release(t, young, second.Granted())
	})
	t.Run("it is not heard of", func(t *testing.T) {
		name, dead := newName("dead"), f.gated(t)
		held := f.hold(t, a, name)
		_, cancel := f.wait(t, dead.client, name, time.Second)
		dead.mu.Lock()
		defer dead.mu.Unlock()
		defer cancel()
		release(t, a, held)
		release(t, a, must(t, a, name, time.Minute)) // must repeats the request
	})
	t.Run("it ends its wait", func(t *testing.T) {
		name := newName("withdrawn")
		held := f.hold(t, a, name)
		first, cancel := f.wait(t, young, name, time.Minute)
		cancel()
		_, _ = first.Failed()
		until(t, "no server has a position", func() bool { return strings.Join(f.positions(name), "") == "" })
		release(t, a, held)
		g, err := acquire(t, a, name, time.Minute)
		check(t, err)
		release(t, a, g)
	})
	t.Run("the clock was set back", func(t *testing.T) {
		name := newName("clock")
		for i := range f.all {
			f.do(i, "SET", "holdfast:redlock:p:holdfast:redlock:l::"+name, "1 dead", "PX", "3600000")
		}
		g, err := acquire(t, a, name, time.Minute)
		check(t, err)
		release(t, a, g)
		for i := range f.all {
			f.do(i, "DEL", "holdfast:redlock:p:holdfast:redlock:l::"+name)
		}
	})
	until(t, "nothing is left", func() bool { return len(f.leftovers(t)) == 0 })
}

// TestWaiterBehindAnotherPollsSeldom: a server keeps a free name for a request that has waited longer, another one does
// not answer, and the third refuses all requests. Until the position expires, a younger waiter polls as if it had the
// answers of all servers.
func TestWaiterBehindAnotherPollsSeldom(t *testing.T) {
	f := start(t, 3, nil)
	a, dead := f.open(t), f.gated(t)
	name := newName("behind")
	held := f.hold(t, a, name)
	first, cancel := f.wait(t, dead.client, name, time.Second)
	dead.mu.Lock()
	defer dead.mu.Unlock()
	defer cancel()
	release(t, a, held)

	var polls atomic.Int64
	answers := make(chan struct{})
	young := f.tapped(t, func(c call) ([]string, error) {
		switch {
		case c.script != "vote":
		case c.server == 0:
			polls.Add(1)
		case c.server == 1:
			<-answers
		default:
			return nil, redisstore.ServerError("OOM command not allowed when used memory > 'maxmemory'.")
		}
		return c.send()
	})
	w := requests.Submit(t, young, request(name, time.Minute))
	until(t, "the position expires", func() bool { return f.positions(name)[0] != first.Request.ID })
	n := polls.Load()
	close(answers)
	g := w.Granted()
	if n > 8 {
		t.Errorf("%d polls in the second of a position", n)
	}
	release(t, young, g)
}

// TestLateVoteLeavesNoPosition: a server executes the request of a waiter after the waiter has left, or while it leaves.
// The waiter removes the position that it makes.
func TestLateVoteLeavesNoPosition(t *testing.T) {
	f := start(t, 3, nil)
	t.Run("after it has left", func(t *testing.T) { f.lateVote(t, false) })
	t.Run("while it leaves", func(t *testing.T) { f.lateVote(t, true) })
}

// lateVote holds back the vote of the first server. While the waiter leaves, the other servers get the request that
// removes its queue entry only after the first one has got it twice: before the late vote, and after it.
func (f *fleet) lateVote(t *testing.T, leaving bool) {
	a := f.open(t)
	name := newName("late")
	f.hold(t, a, name)
	var mu sync.Mutex
	late, sent := make(chan struct{}), make(chan struct{})
	answered, removed := make(chan struct{}), make(chan struct{})
	ends := 0
	s := f.tapped(t, func(c call) ([]string, error) {
		mu.Lock()
		hold := c.script == "vote" && c.server == 0 && len(c.args) > 10 && sent != nil
		if hold {
			close(sent)
			sent = nil
		}
		mu.Unlock()
		if hold {
			<-late
			defer close(answered)
		}
		if c.script != "end" || !leaving {
			return c.send()
		}
		if c.server != 0 {
			select {
			case <-removed:
			case <-t.Context().Done():
			}
			return c.send()
		}
		v, err := c.send()
		mu.Lock()
		defer mu.Unlock()
		switch ends++; ends {
		case 1:
			close(late)
		case 2:
			close(removed)
		}
		return v, err
	})
	r := request(name, time.Minute)
	r.Wait = true
	ctx, cancel := context.WithCancel(t.Context())
	mu.Lock()
	began := sent
	mu.Unlock()
	w := requests.Start(t, r, func() (driver.Grant, error) { return s.Acquire(ctx, r) })
	<-began
	cancel()
	_, _ = w.Failed()
	if !leaving {
		close(late)
	}
	<-answered
	f.do(0, "PERSIST", "holdfast:redlock:p:holdfast:redlock:l::"+name) // it does not expire
	until(t, "the position is removed", func() bool { return strings.Join(f.positions(name), "") == "" })
	if left, err := f.do(0, "ZCARD", "holdfast:redlock:q:holdfast:redlock:l::"+name).(int64); left != 0 || !err {
		t.Errorf("%d queue entries are left", left)
	}
}

// TestPositionOfGrantEndsEverywhere: a server had given its vote to another client when the request was granted. It
// has the position of the request until the release. A position keeps no holder from a server that has lost its vote.
func TestPositionOfGrantEndsEverywhere(t *testing.T) {
	f := start(t, 3, nil)
	a, s, other := f.open(t), f.open(t), f.open(t)
	name := newName("granted")
	key := "holdfast:redlock:l::" + name
	held := f.hold(t, a, name)
	w, cancel := f.wait(t, s, name, time.Minute)
	defer cancel()
	f.do(0, "DEL", key)
	until(t, "the holder has the vote again", func() bool { // the waiter may have had it for a moment
		a.Renew(t.Context(), []driver.Grant{held})
		text, _ := f.do(0, "GET", key).(string)
		return strings.HasPrefix(text, held.ID+".")
	})
	f.do(0, "SET", key, "other.1 5 1 1000 1&x&&") // the vote for another client
	release(t, a, held)
	g := w.Granted()
	if got := f.positions(name); got[0] != g.ID || got[1] != "" || got[2] != "" {
		t.Fatalf("positions %q, want that of %s at the first server", got, g.ID)
	}
	f.do(0, "PERSIST", "holdfast:redlock:p:"+key) // it does not expire
	release(t, s, g)
	until(t, "no server has a position", func() bool { return strings.Join(f.positions(name), "") == "" })
	release(t, other, must(t, other, name, time.Minute))
}
