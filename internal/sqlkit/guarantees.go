package sqlkit

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
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
		Kind: kind, Scope: driver.ScopeNetwork, Reach: "every client of the server with the same database", TryFirst: true, MaxTTL: MaxTTL, LeftoversExpire: true,
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
	g.Tokens = "the server's clock in microseconds, so they rise unless it is set back; with tokens=durable also above a committed row, which a failover may lose"
	g.EarlyEnd = []string{"an operator's break", kill, "the end of the connection or of the server", "a failover"}
	g.Notice = pingEvery
	g.MinTTL, g.Granularity, g.Visible, g.VisibleAfter = minTTL, unit, driver.VisibleAll, VisibleAfter
	g.Notes = []string{
		"a held lock and a waiter cost a connection each, at most max_conns in a process; further requests wait in the process",
		"a waiter whose connection a proxy has dropped and keeps open continues on another one, within 5s after the grant to the dead one",
		"the next waiter of the same process requests the lock with a release within 5 ms of the grant. If no other client of holdfast waits, the session hands the lock off, within 5 ms of the first grant",
	}
	g.Wanted = driver.WakePoll
	return g
}

// PermitsNote is a note in the guarantees of recipes of row locks.
const PermitsNote = "waiters for semaphores poll, at most 100ms apart, without an order: clients that take permits or shared locks again and again may keep out waiters for permits, and permits those for shared locks, until they stop. Neither keeps out a writer"

// OptimisticGuarantees returns the guarantees of a store with the engine of [NewOptimistic]. wakes
// reports whether the store listens; otherwise its waiters poll.
func OptimisticGuarantees(kind string, wakes bool) driver.Guarantees {
	g := guarantees(kind)
	var o record.Options
	if wakes {
		o.Poll = optimisticFallback
	}
	o.Declare(&g)
	g.Tokens = "the name's row: the last token plus one, or the database's clock in microseconds if that is larger; also after a restart, and with a clock set back"
	g.EarlyEnd = []string{"an operator's break", "rows deleted or changed by hand", "the database's clock set forward", "a failover to a replica that lags"}
	return g
}
