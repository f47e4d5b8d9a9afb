package layouts

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

const (
	pushYield = 50 * time.Millisecond // a waiter in Java has received the message by then
	// maxTurn limits a turn after a sign of another client, and maxLoneTurn any turn.
	maxTurn     = time.Second
	maxLoneTurn = 4 * time.Second
	// turnFor is how long the last sign of a turn counts.
	turnFor = 10 * time.Second
	// overtakenPoll is the interval of a waiter that was overtaken in the last overtakenFor.
	overtakenPoll = time.Millisecond
	overtakenFor  = time.Second
)

// turn is what this process knows about the competition for one name.
type turn struct {
	began  time.Time     // of its first grant
	length time.Duration // after which the turn ends
	freed  time.Time     // the last release
	yields time.Time     // no request before this time
	heard  bool          // other clients received the message of the last release
	signed time.Time     // the last sign of another client; without messages, the last sign or grant
	waited time.Time     // since when another client holds the name; zero if none was seen
}

// turns are the turns of one layout: see the package comment.
type turns struct {
	yield   time.Duration // 0: the layout has a queue, and no turns
	polls   bool          // other clients poll
	mu      sync.Mutex
	all     map[string]*turn // by key
	sweepAt int              // the number of turns at which sign removes old ones
}

// sign returns the turn of a key, and makes it with that length if there is none. The mutex is held.
func (t *turns) sign(key string, length time.Duration, now time.Time) *turn {
	of := t.all[key]
	if of == nil {
		if len(t.all) >= t.sweepAt {
			maps.DeleteFunc(t.all, func(_ string, old *turn) bool { return now.Sub(old.signed) > turnFor })
			t.sweepAt = max(2*len(t.all), 100)
		}
		of = &turn{length: length}
		t.all[key] = of
	}
	of.signed = now
	return of
}

// blocked records that another client holds the name.
func (t *turns) blocked(key string) {
	if t.yield == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if of := t.sign(key, t.yield, now); of.waited.IsZero() {
		of.waited = now
	}
}

// granted records a grant of this process, which may begin a turn. A turn is short if waiters of other
// clients listen, because they are sure to use its end. After another client held the lock, a turn
// takes as long as that. Otherwise no client has used the last pause, and turns become longer.
func (t *turns) granted(key string) {
	if t.yield == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	of := t.all[key]
	if t.polls {
		of = t.sign(key, maxTurn, now)
	} else if of == nil {
		return
	}
	switch {
	case of.waited.IsZero() && now.Sub(of.freed) < t.yield && !of.began.IsZero():
		return // the turn continues
	case of.heard:
		of.length = t.yield
	case !of.waited.IsZero():
		of.length = min(max(now.Sub(of.waited), t.yield), maxTurn)
	case !of.freed.IsZero():
		of.length = min(2*of.length, maxLoneTurn)
	}
	of.began, of.waited = now, time.Time{}
}

// released records a release of this process. heard reports whether other clients received its message.
func (t *turns) released(key string, heard bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if heard && t.yield > 0 {
		t.sign(key, t.yield, now)
	}
	of := t.all[key]
	switch {
	case of == nil:
		return
	case now.Sub(of.signed) > turnFor:
		delete(t.all, key)
		return
	}
	of.freed, of.heard = now, heard
	if !of.began.IsZero() && now.Sub(of.began) >= of.length {
		of.yields = now.Add(t.yield)
	}
}

// pause returns the time until this process may request the name.
func (t *turns) pause(key string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of := t.all[key]; of != nil {
		return time.Until(of.yields)
	}
	return 0
}

// interval computes when a waiter repeats its request although no message came.
type interval struct {
	backoff   backoff.Backoff // in the layouts without messages between all clients
	holder    string
	left      int64     // until the holder's lease ends, ms
	overtaken time.Time // when the waiter last saw another grant of another client
}

// next returns the delay after an answer that names the holders, and when a lease of theirs ends.
func (i *interval) next(ctx context.Context, left int64, holders []driver.Holder) time.Duration {
	if i.backoff.Max == 0 {
		return server.Jitter(wakeup.Fallback(ctx, fallbackInterval))
	}
	now := time.Now()
	if len(holders) == 1 {
		// A lease that ends later than before was renewed, or is that of another grant.
		passed := i.holder != "" && (holders[0].ID != i.holder || left > i.left)
		if i.holder, i.left = holders[0].ID, left; passed && holders[0].Note != "" {
			i.overtaken = now
		}
	}
	if now.Sub(i.overtaken) < overtakenFor {
		return wakeup.Fallback(ctx, overtakenPoll)
	}
	return wakeup.Fallback(ctx, i.backoff.Next())
}
