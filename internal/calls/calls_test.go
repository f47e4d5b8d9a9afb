package calls

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/internal/must"
)

func TestStopAdmitsNoCallsAndTasks(t *testing.T) {
	c := New()
	if c.Stopped() || !c.Stop() || c.Stop() || !c.Stopped() {
		t.Error("Stop does not return true once")
	}
	if err := c.Enter(); err != ErrClosed {
		t.Errorf("Enter returns %v", err)
	}
	if _, _, err := c.Call(t.Context()); err != ErrClosed {
		t.Errorf("Call returns %v", err)
	}
	if c.Go(func() { t.Error("the task runs") }) {
		t.Error("Go returns true")
	}
	c.Running.Wait()
	c.Tasks.Wait()
}

func TestCloseWaitsForCallsAndTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		ctx, end, err := c.Call(t.Context())
		must.Succeed(t, err)
		release := make(chan struct{})
		c.Go(func() { <-release })
		c.Stop()
		closed := false
		go func() {
			c.Running.Wait()
			c.Tasks.Wait()
			closed = true
		}()
		if ctx.Err() != nil {
			t.Error("the context of the call ends before Cancel")
		}
		c.Cancel()
		synctest.Wait()
		if ctx.Err() != context.Canceled {
			t.Error("the context of the call does not end with Cancel")
		}
		for _, next := range []func(){end, func() { close(release) }} {
			if closed {
				t.Error("Close does not wait")
			}
			next()
			synctest.Wait()
		}
		if !closed {
			t.Error("Close still waits")
		}
	})
}
