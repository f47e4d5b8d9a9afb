package sqlkit

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

type countedLink struct{ closed atomic.Bool }

func (*countedLink) Run(context.Context, ...string) (Answers, error) { return nil, nil }
func (*countedLink) Gone() <-chan struct{}                           { return make(chan struct{}) }
func (*countedLink) Watch()                                          {}
func (l *countedLink) Close()                                        { l.closed.Store(true) }

// closing is a recipe that gets the lock while the store is being closed.
type closing struct {
	Recipe
	e *Sessions
}

func (*closing) Begin(context.Context, Link) (Identity, error)              { return Identity{Conn: 1}, nil }
func (*closing) Check(r *driver.Request) (time.Duration, error)             { return r.TTL, nil }
func (*closing) Runs(context.Context, Link, Identity) (bool, error)         { return true, nil }
func (*closing) Sort(err error) (error, bool)                               { return err, false }
func (*closing) Ping(context.Context, *Session, *LockRequest) (bool, error) { return true, nil }
func (c *closing) Lock(context.Context, *Session, *LockRequest) (Got, error) {
	// Close has begun and has left this session to its call.
	c.e.mu.Lock()
	c.e.Stop()
	c.e.mu.Unlock()
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}

type noRequester struct{}

func (noRequester) Owner() driver.Owner      { return driver.Owner{} }
func (noRequester) Queued([]driver.Holder)   {}
func (noRequester) Lost(driver.Cause, error) {}

// TestGrantWhileClosingIsReturned: a waiter gets the lock while the store is being closed.
// The store closes the session, which ends the lock.
func TestGrantWhileClosingIsReturned(t *testing.T) {
	l := &countedLink{}
	c := &closing{}
	c.e = NewSessions(func(context.Context) (Link, error) { return l, nil }, c, Idle{Min: 2, Max: 2}, "")
	_, err := c.e.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Second, Wait: true, From: noRequester{}})
	if err == nil {
		t.Error("it was granted")
	}
	if !l.closed.Load() {
		t.Error("the session that has the lock stays open")
	}
	c.e.Cancel()
	c.e.Tasks.Wait()
}

// recording is a recipe whose Ping records the holder when the test closes let.
type recording struct {
	closing
	begun, let chan struct{}
}

func (*recording) Lock(context.Context, *Session, *LockRequest) (Got, error) {
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}

func (r *recording) Ping(_ context.Context, _ *Session, a *LockRequest) (bool, error) {
	close(r.begun)
	<-r.let
	a.Recorded = true
	return true, nil
}

func (*recording) Unlock(context.Context, *Session, *LockRequest) (bool, error) { return true, nil }

// TestCheckSkipsSessionInRenewal: when the engine checks a young grant, it does not touch a
// session that a renewal is using (the race detector checks that). The engine checks the
// grant again later.
func TestCheckSkipsSessionInRenewal(t *testing.T) {
	r := &recording{begun: make(chan struct{}), let: make(chan struct{})}
	e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, r, Idle{Min: 2, Max: 2}, "")
	defer e.Close(t.Context())
	g, err := e.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Hour, From: noRequester{}})
	must.Succeed(t, err)
	e.mu.Lock()
	l := e.leases["1"]
	l.due = time.Now().Add(time.Hour) // the alarm sees a young grant
	p := e.pingLocked(l, false)
	e.mu.Unlock()
	<-r.begun
	pinged := func() bool {
		e.mu.Lock()
		l.due = time.Now()
		e.mu.Unlock()
		e.tend(l.s)
		e.mu.Lock()
		defer e.mu.Unlock()
		return l.due.IsZero()
	}
	checked := make(chan bool)
	go func() {
		is := pinged()
		close(r.let)
		checked <- is
	}()
	if <-checked {
		t.Error("the check used the session during a renewal")
	}
	<-p.done
	if !pinged() {
		t.Error("no later check of the session")
	}
	must.Report(t, e.Release(t.Context(), g, 0))
}
