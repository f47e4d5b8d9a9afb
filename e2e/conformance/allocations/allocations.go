// Package allocations checks how many allocations a lock costs the client.
package allocations

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// rounds is the time for which AtMost repeats its rounds.
const rounds = 30 * time.Second

// AtMost checks that the Lock and the Unlock of a free name allocate at most so many times.
//
// The count is that of the whole process, with all that its background tasks allocate
// meanwhile. On a busy machine these do more for each pair, for example because a hold is
// long enough to be recorded, and a client does more while its connection is new. So the
// least of many short rounds counts, and the first round within the limit is enough.
func AtMost(t *testing.T, url string, most float64) {
	t.Helper()
	ctx := context.Background() // one that can be cancelled costs a few more
	l, err := holdfast.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	pair := func() {
		k, err := l.Lock(ctx, "allocations")
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	least := testing.AllocsPerRun(10, pair)
	for began := time.Now(); least > most && time.Since(began) < rounds; {
		least = min(least, testing.AllocsPerRun(10, pair))
	}
	if least > most {
		t.Errorf("%.0f allocations in a Lock and an Unlock, want at most %.0f", least, most)
	}
}
