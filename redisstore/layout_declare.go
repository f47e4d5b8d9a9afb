package redisstore

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	minPeerTTL = time.Millisecond
	// peerFallback limits how long a lost notification delays a waiter.
	peerFallback = time.Second
)

// declare changes g from the guarantees of the native layout to those of this layout.
func (p *peers) declare(g *driver.Guarantees) {
	g.Kind += "-" + string(p.layout)
	g.Order = driver.OrderNone
	g.Shared, g.Semaphore, g.Mixed, g.Slots, g.Linger, g.Reserves = false, false, false, false, false, false
	g.MinTTL, g.Granularity = minPeerTTL, minPeerTTL
	g.Visible = driver.VisibleHolders
	g.Tokens = "the server's clock in microseconds, above the last token of the name (kept for 10 s) and above all that this client has seen. " +
		"Only holdfast's grants have a token: a lock of another client makes no older token stale"
	g.Notes = append(g.Notes,
		"all clients of a name must use the same kind of lock",
		"for a lock of another client, only its owner is shown, and it cannot be broken here")
	p.rules.amend(g)
}

// The functions below are the values of rules.amend. Each declares what is special about one layout.

func amendPlain(g *driver.Guarantees) {
	g.Wake, g.Fallback = driver.WakePoll, 0
	g.Notes = append(g.Notes, "a release by holdfast notifies holdfast's waiters; a release by another client does not",
		"a lock of another client without a time to live lasts until it is released")
}

func amendLock(g *driver.Guarantees) { g.Fallback = peerFallback }

func amendSpin(g *driver.Guarantees) { g.Wake, g.Fallback = driver.WakePoll, 0 }

func amendFenced(g *driver.Guarantees) {
	g.Fallback = peerFallback
	g.Tokens = "Redisson's own counter of the name, which all clients increment. Tokens start again after a flush or a restart without data, " +
		"and repeat after a failover to a replica without the last ones"
}

func amendFair(g *driver.Guarantees) {
	g.Fallback, g.Order = peerFallback, driver.OrderFIFO
	g.Notes = append(g.Notes, "a dead waiter blocks the waiters behind it for the fair wait, which must be the same for all clients",
		"Redisson uses the Java client's clock to remove dead waiters. If that clock is ahead, living waiters are removed, too, and queue again at the end")
}

func amendReadWrite(g *driver.Guarantees) {
	g.Fallback, g.Shared, g.Mixed = peerFallback, true, true
	g.Notes = append(g.Notes, "new readers can block a writer forever")
}

const permitsNote = "the name's first client sets the number of permits; a request of limit n is granted while fewer than n are held and one is free"

func amendSemaphore(g *driver.Guarantees) {
	g.Fallback, g.Semaphore = peerFallback, true
	g.Notes = append(g.Notes, permitsNote+"; for permits of Java clients only the number of free permits counts",
		"the permit of a dead Java client is lost; the permit of a dead holdfast client is free after its TTL, at the next request of a holdfast client")
}

func amendPermits(g *driver.Guarantees) {
	g.Fallback, g.Semaphore = peerFallback, true
	g.EarlyEnd = append(g.EarlyEnd, "a Java client whose wall clock is ahead of the server's")
	g.Notes = append(g.Notes, permitsNote)
}
