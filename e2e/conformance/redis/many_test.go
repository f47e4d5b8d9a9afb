package redis

import (
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

var (
	manyLocks = flag.Int("locks", 10_000, "the number of locks that TestEveryHolderNoticesFlush holds")
	manyDelay = flag.Duration("delay", 50*time.Millisecond, "the delay of the link in that test")
)

// TestEveryHolderNoticesFlush: a client holds ten thousand locks over a slow link. Every holder is
// notified of a flush at the next check of its grant, and one call of the script checks many grants.
// noticeTimeout is the sum of the interval and the timeout of the checks.
func TestEveryHolderNoticesFlush(t *testing.T) {
	locks, delay := *manyLocks, *manyDelay
	r := start(t)
	p := proxy(t, r)
	s := open(t, "redis://"+p.Address())
	requests := make([]driver.Request, locks)
	takeAll(t, s, requests)
	check(t, p.Delay(delay))
	// Wait until each grant was checked twice.
	scripts, checked := calls(t, r, "evalsha"), calls(t, r, "hget")
	eventually(t, "the store does not check the grants", func() bool { return calls(t, r, "hget") >= checked+2*locks })
	scripts, checked = calls(t, r, "evalsha")-scripts, calls(t, r, "hget")-checked
	if scripts > checked/20 {
		t.Errorf("%d calls for %d checks of grants, want at least 20 checks in each call", scripts, checked)
	}
	// A check that finds no grant takes two commands. On a busy machine the answer to a check may come
	// too late, and the client checks again. That does not happen after every flush.
	var least int
	for round := range 5 {
		if round > 0 {
			takeAll(t, s, requests)
		}
		flushed := time.Now()
		before := hashCommands(t, do(t, r, "EVAL", "local stats = redis.call('INFO', 'commandstats') redis.call('FLUSHALL') return stats", "0").(string))
		for i := range requests {
			lost(t, requests[i], driver.CauseGone)
		}
		took := time.Since(flushed)
		least = hashCommands(t, do(t, r, "INFO", "commandstats").(string)) - before
		t.Logf("%d holders noticed the flush within %s, over a link with a delay of %s, by %d commands", locks, took, delay, least)
		if least <= 2*locks {
			return
		}
	}
	t.Errorf("%d grants were checked by %d commands until each holder was notified of a flush, want 2 for each: the first check", locks, least)
}

// takeAll fills requests with requests for different names, sends all at the same time, and requires
// that each is granted.
func takeAll(t *testing.T, s driver.Store, requests []driver.Request) {
	t.Helper()
	each(t, len(requests), 64, func(i int) error {
		requests[i] = request(fmt.Sprintf("%s-%d", t.Name(), i), driver.Exclusive, 10*time.Minute)
		_, err := s.Acquire(t.Context(), requests[i])
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
}

// hashCommands returns the number of commands on hashes that the server has executed, including those in
// scripts.
func hashCommands(t *testing.T, stats string) (n int) {
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

// TestSharedGrantCostsTheSameBesideMany: the cost of a shared grant does not depend on the number of
// other readers. That holds after a reader has left, and while other leases expire.
func TestSharedGrantCostsTheSameBesideMany(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	cost := func(readers int) int {
		name := fmt.Sprintf("%s-%d", t.Name(), readers)
		held := make([]driver.Grant, readers)
		for i := range held {
			held[i] = must(t, s, request(name, driver.Unlimited, 10*time.Minute))
		}
		least := math.MaxInt // the store may check the held grants in between
		for i := range 20 {
			// A low slot becomes free and is taken again. The next grant needs another slot.
			check(t, s.Release(t.Context(), held[i], 0))
			must(t, s, request(name, driver.Unlimited, 10*time.Minute))
			before := hashCommands(t, do(t, r, "INFO", "commandstats").(string))
			must(t, s, request(name, driver.Unlimited, 10*time.Minute))
			least = min(least, hashCommands(t, do(t, r, "INFO", "commandstats").(string))-before)
		}
		return least
	}
	few, many := cost(20), cost(3000)
	t.Logf("commands on hashes for a shared grant: %d beside 20 readers, %d beside 3000", few, many)
	if many > few+10 {
		t.Errorf("%d commands for a shared grant beside 3000 readers, %d beside 20", many, few)
	}
}

// TestGrantCostsTheSameBeforeManyWaiters: the cost of a release and of the grant after it does not depend on the
// number of waiters.
func TestGrantCostsTheSameBeforeManyWaiters(t *testing.T) {
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	cost := func(waiters int) int {
		name := fmt.Sprintf("%s-%d", t.Name(), waiters)
		holder := s
		g := must(t, holder, request(name, driver.Exclusive, long))
		queued := make([]*waiter, waiters)
		for i := range queued {
			queued[i] = queue(t, other, request(name, driver.Exclusive, long))
		}
		least := math.MaxInt // waiters may refresh their entries in between
		for _, w := range queued[:10] {
			before := hashCommands(t, do(t, r, "INFO", "commandstats").(string))
			release(t, holder, g)
			g, holder = w.Granted(), other
			least = min(least, hashCommands(t, do(t, r, "INFO", "commandstats").(string))-before)
		}
		release(t, holder, g)
		return least
	}
	few, many := cost(12), cost(2000)
	t.Logf("commands on hashes for a release and a grant: %d before 12 waiters, %d before 2000", few, many)
	if many > few+10 {
		t.Errorf("%d commands for a release and a grant before 2000 waiters, %d before 12", many, few)
	}
}

// TestExpiredReadersDoNotStopServer: thousands of leases expire together. Later requests remove them
// in parts, and a waiting writer is granted.
func TestExpiredReadersDoNotStopServer(t *testing.T) {
	t.Parallel()
	const readers = 3000
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	each(t, readers, 32, func(int) error {
		_, err := s.Acquire(t.Context(), request("x", driver.Unlimited, 3*time.Second))
		return err
	})
	w := queue(t, other, request("x", driver.Exclusive, long))
	g := w.Granted()
	got, err := s.Inspect(t.Context(), "x")
	if err != nil || len(got.Holders) != 1 {
		t.Errorf("%d holders, %v", len(got.Holders), err)
	}
	release(t, other, g)
	// Every key is deleted, or expires soon.
	if left := leftovers(t, r); len(left) > 0 {
		t.Errorf("%v", left)
	}
}
