package sqltest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// SwapWithLostAnswers lets goroutines of two processes contend for one name, while answers to releases and
// swaps are lost again and again. It requires that no two goroutines hold the lock together, that tokens
// rise, and that each goroutine gets the lock. At the end the store must have no holder and no waiter.
func SwapWithLostAnswers(t *testing.T, d *Database, recipes []string) {
	d.Each(t, recipes, func(t *testing.T, params, database string) {
		other := d.Store(t, database, params)
		defer Close(t, other)
		const name = "lost-answers"
		const enough, every = 6, 16 // lost answers of each process, and pairs of Lock and Unlock between two of them
		reads := 0                  // the number of reads of a release before its write
		if !d.onSession(strings.TrimPrefix(params, "recipe=")) {
			reads = 1
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var last atomic.Uint64
		var inside atomic.Int32
		var all sync.WaitGroup
		for range 2 {
			s, p := d.proxied(t, database, params)
			defer Close(t, s)
			l, err := holdfast.New(s, holdfast.LocalHandoff(0))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := l.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			var pairs, lost atomic.Int32
			for range 4 {
				all.Go(func() {
					for lost.Load() < enough {
						k, err := l.Lock(ctx, name, holdfast.TTL(time.Minute))
						if errors.Is(err, holdfast.ErrUnavailable) && ctx.Err() == nil {
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
						if pairs.Add(1)%every == 0 {
							if err := p.LoseAnswer(reads); err != nil {
								t.Error(err)
							}
						}
						switch err := k.Unlock(); {
						case errors.Is(err, holdfast.ErrUnavailable):
							lost.Add(1)
						case err != nil && !errors.Is(err, holdfast.ErrLost): // the lost answer was that of a ping
							t.Errorf("Unlock: %v", err)
						}
					}
				})
			}
		}
		all.Wait()
		if !Soon(func() bool {
			st, err := other.Inspect(t.Context(), name)
			return err == nil && len(st.Holders)+len(st.Waiters) == 0
		}) {
			t.Error("something is left behind")
		}
	})
}
