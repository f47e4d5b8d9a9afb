package sqlkit

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// MaxTTL is the longest TTL of a store on an SQL database.
const MaxTTL = 24 * time.Hour

// RoundTTL rounds a TTL up to a multiple of unit, the granularity of the server's timer.
func RoundTTL(ttl, unit time.Duration) (time.Duration, error) {
	if ttl > MaxTTL {
		return 0, driver.Errorf(driver.CodeInvalid, "TTL %s: at most %s is allowed", ttl, MaxTTL)
	}
	return max((ttl+unit-1)/unit*unit, unit), nil
}

// guarantees returns what the engines have in common.
func guarantees(kind string) driver.Guarantees {
	return driver.Guarantees{
		Kind: kind, Scope: driver.ScopeNetwork, TryFirst: true, MaxTTL: MaxTTL, LeftoversExpire: true,
		Reserves: true, Pause: driver.PauseLoses, Break: driver.BreakNow,
	}
}

// SessionGuarantees returns the guarantees of a store with the engine [Sessions]. The store
// adds those of its recipe. unit is the granularity of the server's timer. kill is the
// statement or function with which an administrator ends a session.
func SessionGuarantees(kind string, minTTL, unit time.Duration, kill string) driver.Guarantees {
	g := guarantees(kind)
	g.Crash, g.Order, g.Wake = driver.CrashFreesAtOnce, driver.OrderFIFO, driver.WakePush
	g.LeftoversExpire = false // no timer ends a wait in the server's queue
	g.Tokens = "the server's clock in microseconds, read when the lock is granted: tokens rise unless the clock is set back. With tokens=durable a committed row: tokens always rise"
	g.EarlyEnd = []string{"an operator's break", kill, "the end of the connection or of the server", "a failover"}
	g.Notice = pingEvery
	g.MinTTL, g.Granularity, g.Visible = minTTL, unit, driver.VisibleAll
	return g
}

// PassNote is a note in the guarantees of recipes that are a [Passer].
const PassNote = "the next local waiter of a process that holds a lock requests it with its release, and at most 5 ms after its grant. If no other client waits, the session hands the lock off, within 5 ms of the first grant; programs that lock by hand are not seen to wait"

// OptimisticGuarantees returns the guarantees of a store with the engine [Optimistic]. wakes
// reports whether the store has a [Waker]; without one, its waiters poll.
func OptimisticGuarantees(kind string, wakes bool) driver.Guarantees {
	g := guarantees(kind)
	g.Crash, g.Order, g.Wake = driver.CrashFreesAfterTTL, driver.OrderNone, driver.WakePoll
	if wakes {
		g.Wake, g.Fallback = driver.WakePush, OptimisticFallback
	}
	g.Shared, g.Semaphore, g.Mixed, g.Slots = true, true, true, true
	g.Tokens = "the name's row: the last token plus one, or the database's clock in microseconds if that is larger. Tokens rise even after a restart or with a clock that is set back"
	g.EarlyEnd = []string{"an operator's break", "rows deleted or changed by hand", "the database's clock set forward", "a failover to a replica that lags"}
	g.Notice = 2 * time.Second
	g.MinTTL, g.Granularity, g.Linger, g.Visible = time.Millisecond, time.Microsecond, true, driver.VisibleHolders
	return g
}
