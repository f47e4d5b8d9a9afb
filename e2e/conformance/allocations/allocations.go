// Package allocations checks how many allocations a lock costs the client.
package allocations

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
)

// rounds is the time for which AtMost repeats its rounds.
const rounds = 30 * time.Second

// AtMost checks that a Lock and an Unlock of a free name together allocate at most the given
// number of times.
//
// The count includes what the background tasks of the process allocate. On a busy machine
// they allocate more for each pair, and a client allocates more while its connection is
// new. So AtMost runs many short rounds, and passes if one of them is within the limit.
func AtMost(t *testing.T, url string, most float64) {
	t.Helper()
	ctx := context.Background() // a context that can be cancelled costs a few allocations more
	l, err := holdfast.Open(ctx, url)
	must.Succeed(t, err)
	defer func() {
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	pair := func() {
		k, err := l.Lock(ctx, "allocations")
		must.Succeed(t, err)
		must.Succeed(t, k.Unlock())
	}
	least := testing.AllocsPerRun(10, pair)
	for began := time.Now(); least > most && time.Since(began) < rounds; {
		least = min(least, testing.AllocsPerRun(10, pair))
	}
	if least > most {
		t.Errorf("%.0f allocations in a Lock and an Unlock, want at most %.0f", least, most)
	}
}
