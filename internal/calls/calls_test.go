package calls

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
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

func TestWithdrawReturnsTheOutcome(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	why, failed := driver.Errorf(driver.CodeWithdrawn, "the caller has left"), errors.New("no answer")
	for _, c := range []struct {
		undo error
		code driver.Code
	}{{nil, driver.CodeWithdrawn}, {ErrClosed, driver.CodeClosed}, {failed, driver.CodeUnknown}} {
		err := Withdraw(ctx, time.Minute, why, func(ctx context.Context) error {
			if _, limited := ctx.Deadline(); !limited || ctx.Err() != nil {
				t.Error("undo has no context of its own")
			}
			return c.undo
		})
		if driver.CodeOf(err) != c.code || c.undo == failed && !(errors.Is(err, why) && errors.Is(err, failed)) {
			t.Errorf("undo returns %v: %v, want code %v", c.undo, err, c.code)
		}
	}
}

func TestReadyRefusesACallForAValue(t *testing.T) {
	c := New()
	must.Succeed(t, c.Ready(t.Context(), "k", nil))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{c.Ready(t.Context(), "", nil), c.Ready(ended, "k", nil)} {
		if code := driver.CodeOf(err); code != driver.CodeInvalid && code != driver.CodeUnavailable {
			t.Errorf("%v", err)
		}
	}
	c.Stop()
	if err := c.Ready(t.Context(), "k", nil); err != ErrClosed {
		t.Errorf("%v after Stop, want ErrClosed", err)
	}
}
