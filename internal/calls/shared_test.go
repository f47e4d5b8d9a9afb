package calls

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
)

// A value is made once for several callers, and goes on when the context of the first one has ended.
func TestSharedValueIsMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, made := New(), 0
		v := Shared[string, int]{Calls: c, Timeout: time.Minute, Make: func(ctx context.Context, key string) (int, error) {
			made++
			time.Sleep(time.Second)
			return len(key), ctx.Err()
		}}
		brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := v.Get(brief, "abc"); err != context.DeadlineExceeded {
			t.Errorf("%v, want the end of the context", err)
		}
		if len(v.Made()) > 0 {
			t.Error("the value is there before it is made")
		}
		for range 2 {
			n, err := v.Get(t.Context(), "abc")
			must.Succeed(t, err)
			if n != 3 || made != 1 || v.Made()["abc"] != 3 {
				t.Errorf("%d, made %d times; %v", n, made, v.Made())
			}
		}
		c.Stop()
		if _, err := v.Get(t.Context(), "abc"); err != ErrClosed {
			t.Errorf("%v after Stop, want ErrClosed", err)
		}
	})
}

// A value that failed or is over is made again. A value that is over does not stay.
func TestSharedValueThatIsOverIsMadeAgain(t *testing.T) {
	c, over, failed := New(), map[int]bool{}, errors.New("failed")
	made := 0
	v := Shared[string, int]{Calls: c, Timeout: time.Minute, Over: func(n int) bool { return over[n] }, Make: func(context.Context, string) (int, error) {
		if made++; made == 1 {
			return 0, failed
		}
		return made, nil
	}}
	if _, err := v.Get(t.Context(), "a"); err != failed {
		t.Errorf("%v, want the error of Make", err)
	}
	if n, err := v.Get(t.Context(), "a"); n != 2 || err != nil {
		t.Errorf("%d, %v, want 2", n, err)
	}
	over[2] = true
	if n, err := v.Get(t.Context(), "b"); n != 3 || err != nil {
		t.Errorf("%d, %v, want 3", n, err)
	}
	if all := v.Made(); len(all) != 1 || all["b"] != 3 {
		t.Errorf("%v, want only b", all)
	}
	if n, err := v.Get(t.Context(), "a"); n != 4 || err != nil {
		t.Errorf("%d, %v, want 4", n, err)
	}
}

// A caller that has waited for the task of another one waits for one more if that has failed, and for no third one.
func TestSharedFailureOfAnotherCallerIsRepeatedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		made := 0
		v := Shared[string, int]{Calls: New(), Timeout: time.Minute, Make: func(context.Context, string) (int, error) {
			made++
			time.Sleep(time.Second)
			return 0, failed
		}}
		took := make(chan time.Duration)
		for range 3 {
			go func() {
				began := time.Now()
				if _, err := v.Get(t.Context(), "a"); err != failed {
					t.Errorf("%v, want the error of Make", err)
				}
				took <- time.Since(began)
			}()
			synctest.Wait()
		}
		if first, second, third := <-took, <-took, <-took; first != time.Second || second != 2*time.Second || third != 2*time.Second || made != 2 {
			t.Errorf("the callers have waited for %s, %s and %s, for %d tasks", first, second, third, made)
		}
	})
}

// The end of the store is not the end of a caller's context.
func TestSharedTaskEndsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := Shared[string, int]{Calls: New(), Timeout: time.Minute, Make: func(ctx context.Context, _ string) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		go func() {
			synctest.Wait()
			v.Calls.Stop()
			v.Calls.Cancel()
		}()
		if _, err := v.Get(t.Context(), "a"); err != ErrClosed {
			t.Errorf("%v, want ErrClosed", err)
		}
	})
}
