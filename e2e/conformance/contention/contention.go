// Package contention makes goroutines of several clients contend for one lock while answers are lost.
package contention

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// timeout is the timeout of a contention, and a TTL that outlives it: what is left behind does not expire
// before the test fails.
const timeout = 2 * time.Minute

// Client is a client that loses answers.
type Client struct {
	Store driver.Store
	// Lose loses the answer to the client's next request. It is called before every 16th Unlock. It is nil
	// if the store loses answers to swaps without it.
	Lose func() error
	// Errors are the errors that the loss of an answer may cause, beside ErrUnavailable from Unlock.
	Errors []error
}

// WithLostAnswers makes goroutines of two clients contend for a name, until each client has lost 6 answers and
// its Unlock has returned ErrUnavailable for at least that many: unavailable. It requires that no two
// goroutines hold the lock together, that tokens rise, and that observer sees nothing left at the end.
func WithLostAnswers(t *testing.T, name string, observer driver.Inspector, unavailable int, open func() Client, options ...holdfast.Option) {
	t.Helper()
	const losses, every = 6, 16
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var inside atomic.Int32
	var last atomic.Uint64
	var all sync.WaitGroup
	for range 2 {
		c := open()
		l, err := holdfast.New(c.Store, options...)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		mayCause := func(err error) bool {
			return ctx.Err() == nil && slices.ContainsFunc(c.Errors, func(e error) bool { return errors.Is(err, e) })
		}
		var pairs, lost atomic.Int32
		for range 4 {
			all.Go(func() {
				for pairs.Load() < losses*every || lost.Load() < int32(unavailable) {
					k, err := l.Lock(ctx, name, holdfast.TTL(timeout))
					if mayCause(err) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if inside.Add(1) != 1 {
						t.Error("two holders")
					}
					if before := last.Swap(k.Token()); before >= k.Token() {
						t.Errorf("token %d after %d", k.Token(), before)
					}
					inside.Add(-1)
					if pairs.Add(1)%every == 0 && c.Lose != nil {
						if err := c.Lose(); err != nil {
							t.Error(err)
						}
					}
					switch err := k.Unlock(); {
					case errors.Is(err, holdfast.ErrUnavailable):
						lost.Add(1)
					case err != nil && !mayCause(err):
						t.Errorf("Unlock: %v", err)
					}
				}
			})
		}
	}
	all.Wait()
	for {
		st, err := observer.Inspect(ctx, name)
		if err == nil && len(st.Holders)+len(st.Waiters) == 0 {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("left behind: %+v, %v", st, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
