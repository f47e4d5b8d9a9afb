package redis

import (
	"flag"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var (
	manyLocks = flag.Int("locks", 10_000, "how many locks TestManyHoldersHearOfFlush holds")
	manyDelay = flag.Duration("delay", 50*time.Millisecond, "how long its link takes for an answer")
)

// TestManyHoldersHearOfFlush: ten thousand locks are held over a slow link. Every holder
// is notified of a flush, and a look at a grant is a small part of a call.
func TestManyHoldersHearOfFlush(t *testing.T) {
	locks, delay := *manyLocks, *manyDelay
	r := start(t)
	p := behindProxy(t, r)
	s := open(t, "redis://"+p.Address())
	requests := make([]driver.Request, locks)
	var all sync.WaitGroup
	for lane := range 64 {
		all.Go(func() {
			for i := lane; i < locks; i += 64 {
				requests[i] = request(fmt.Sprintf("%s-%d", t.Name(), i), driver.Exclusive, 10*time.Minute)
				if _, err := s.Acquire(t.Context(), requests[i]); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	if err := p.Delay(delay); err != nil {
		t.Fatal(err)
	}
	// Two looks at each.
	scripts, looked := calls(t, r, "evalsha"), calls(t, r, "hget")
	eventually(t, "the grants are not looked at", func() bool { return calls(t, r, "hget") >= looked+2*locks })
	scripts, looked = calls(t, r, "evalsha")-scripts, calls(t, r, "hget")-looked
	if scripts > looked/20 {
		t.Errorf("%d calls for %d looks at grants, want 20 looks in each call at least", scripts, looked)
	}
	flushed := time.Now()
	do(t, r, "FLUSHALL")
	for i := range requests {
		lost(t, requests[i], driver.CauseGone)
	}
	t.Logf("%d holders have heard of the flush after %s, by answers that take %s", locks, time.Since(flushed), delay)
}

// serverCalls is how many commands the server has carried out, those in scripts included.
func serverCalls(t *testing.T, stats string) (n int) {
	t.Helper()
	for line := range strings.Lines(stats) {
		name, rest, ok := strings.Cut(line, ":calls=")
		if !ok || !strings.HasPrefix(name, "cmdstat_h") {
			continue
		}
		var c int
		if _, err := fmt.Sscanf(rest, "%d,", &c); err != nil {
			t.Fatal(err)
		}
		n += c
	}
	return n
}

// TestSharedGrantCostsTheSameBesideMany: a shared grant does not look at the others,
// neither when it takes the slot of one that has left nor when others' leases expire.
func TestSharedGrantCostsTheSameBesideMany(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	cost := func(readers int) int {
		name := fmt.Sprintf("%s-%d", t.Name(), readers)
		held := make([]driver.Grant, readers)
		for i := range held {
			held[i] = must(t, s, request(name, driver.Unlimited, 10*time.Minute))
		}
		least := math.MaxInt // a look at the held grants may fall between
		for i := range 20 {
			// A low slot becomes free, is taken, and the next one needs another.
			if err := s.Release(t.Context(), held[i], 0); err != nil {
				t.Fatal(err)
			}
			must(t, s, request(name, driver.Unlimited, 10*time.Minute))
			before := serverCalls(t, do(t, r, "INFO", "commandstats").(string))
			must(t, s, request(name, driver.Unlimited, 10*time.Minute))
			least = min(least, serverCalls(t, do(t, r, "INFO", "commandstats").(string))-before)
		}
		return least
	}
	few, many := cost(20), cost(3000)
	t.Logf("commands on hashes for a shared grant: %d beside 20 readers, %d beside 3000", few, many)
	if many > few+10 {
		t.Errorf("%d commands for a shared grant beside 3000 readers, %d beside 20", many, few)
	}
}

// TestExpiredReadersDoNotStopServer: thousands of leases expire together. Those who ask
// clear them away in parts, and a waiting writer is granted.
func TestExpiredReadersDoNotStopServer(t *testing.T) {
	const readers = 3000
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	var all sync.WaitGroup
	for lane := range 32 {
		all.Go(func() {
			for i := lane; i < readers; i += 32 {
				if _, err := s.Acquire(t.Context(), request("x", driver.Unlimited, 3*time.Second)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	w := queue(t, other, request("x", driver.Exclusive, long))
	g := w.granted()
	got, err := s.Inspect(t.Context(), "x")
	if err != nil || len(got.Holders) != 1 {
		t.Errorf("%d holders, %v", len(got.Holders), err)
	}
	release(t, other, g)
	// All that was there is gone, or forgotten soon.
	if left := leftovers(t, r); len(left) > 0 {
		t.Errorf("%v", left)
	}
}
