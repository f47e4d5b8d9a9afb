package sqlkit

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

type countedLink struct{ closed atomic.Bool }

func (*countedLink) Run(context.Context, ...string) (Answers, error) { return nil, nil }
func (*countedLink) Gone() <-chan struct{}                           { return make(chan struct{}) }
func (*countedLink) Watch()                                          {}
func (l *countedLink) Close()                                        { l.closed.Store(true) }

// closing is a recipe whose lock comes in the moment in which the store is closed.
type closing struct {
	Recipe
	e *Sessions
}

func (*closing) Begin(context.Context, Link) (Identity, error)      { return Identity{Conn: 1}, nil }
func (*closing) Check(r *driver.Request) (time.Duration, error)     { return r.TTL, nil }
func (*closing) Sort(err error) (error, bool)                       { return err, false }
func (*closing) Ping(context.Context, *Session, *Ask) (bool, error) { return true, nil }
func (c *closing) Lock(context.Context, *Session, *Ask) (Got, error) {
	// Close has begun and has left this session to its call.
	c.e.mu.Lock()
	c.e.closed = true
	c.e.mu.Unlock()
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}

type nobody struct{}

func (nobody) Owner() driver.Owner      { return driver.Owner{} }
func (nobody) Queued([]driver.Holder)   {}
func (nobody) Lost(driver.Cause, error) {}

// TestGrantWhileClosing: a wait that ends with the lock while the store is closed gives
// the session, and with it the lock, back.
func TestGrantWhileClosing(t *testing.T) {
	l := &countedLink{}
	c := &closing{}
	c.e = NewSessions(func(context.Context) (Link, error) { return l, nil }, c, Idle{Least: 2, Most: 2}, "")
	_, err := c.e.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Second, Wait: true, From: nobody{}})
	if err == nil {
		t.Error("it was granted")
	}
	if !l.closed.Load() {
		t.Error("the session that has the lock stays open")
	}
	c.e.cancel()
	c.e.tasks.Wait()
}

// telling is a recipe whose Ping writes down who holds when it is let.
type telling struct {
	closing
	begun, let chan struct{}
}

func (*telling) Lock(context.Context, *Session, *Ask) (Got, error) {
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}

func (r *telling) Ping(_ context.Context, _ *Session, a *Ask) (bool, error) {
	close(r.begun)
	<-r.let
	a.Told = true
	return true, nil
}

func (*telling) Unlock(context.Context, *Session, *Ask) (bool, error) { return true, nil }

// TestLookWhilePinged: a look at a young grant leaves alone what a renewal is writing
// (the race detector tells), and comes back to it.
func TestLookWhilePinged(t *testing.T) {
	r := &telling{begun: make(chan struct{}), let: make(chan struct{})}
	e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, r, Idle{Least: 2, Most: 2}, "")
	defer e.Close(t.Context())
	g, err := e.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Hour, From: nobody{}})
	if err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	l := e.leases["1"]
	l.since = time.Now().Add(time.Hour) // the engine's own looks find it young
	p := e.pingLocked(l, false)
	e.mu.Unlock()
	<-r.begun
	pinged := func() bool {
		e.tendOnce(l.since.Add(2 * tellAfter))
		e.mu.Lock()
		defer e.mu.Unlock()
		return l.pinged
	}
	looked := make(chan bool)
	go func() {
		is := pinged()
		close(r.let)
		looked <- is
	}()
	if <-looked {
		t.Error("it was looked at while a renewal had the session")
	}
	<-p.done
	if !pinged() {
		t.Error("it is not looked at any more")
	}
	if err := e.Release(t.Context(), g, 0); err != nil {
		t.Error(err)
	}
}
