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
	c.e = NewSessions(func(context.Context) (Link, error) { return l, nil }, c, 2, "")
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
