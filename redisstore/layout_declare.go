package redisstore

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// declare changes what the native layout guarantees into what this one does.
func (p *peers) declare(g *driver.Guarantees) {
	g.Kind += "-" + string(p.layout)
	g.Order, g.Shared, g.Semaphore, g.Mixed, g.Slots, g.Linger, g.Reserves = driver.OrderNone, false, false, false, false, false, false
	g.MinTTL, g.Granularity = minPeerTTL, minPeerTTL
	g.Visible = driver.VisibleHolders
	g.Tokens = "the server's microseconds, above the last token of the name, which is remembered for 10 s, and above all that the asking client has seen; " +
		"only holdfast's grants have one: a lock of another client refuses no older token"
	g.Notes = append(g.Notes,
		"every client of a name has to use the same kind of lock",
		"a lock of another client is shown with its owner alone, and cannot be broken here")
	p.rules.amend(g)
}

func amendPlain(g *driver.Guarantees) {
	g.Wake, g.Fallback = driver.WakePoll, 0
	g.Notes = append(g.Notes, "a release by holdfast wakes the waiters of holdfast; one by another client does not",
		"a lock of another client without a time to live stands until it is released")
}

func amendLock(g *driver.Guarantees) { g.Fallback = peerFallback }

func amendSpin(g *driver.Guarantees) { g.Wake, g.Fallback = driver.WakePoll, 0 }

func amendFenced(g *driver.Guarantees) {
	g.Fallback = peerFallback
	g.Tokens = "Redisson's own counter of the name, which all clients increment and which stays; they begin anew after a flush or a restart without data, " +
		"and repeat after a failover to a replica that has not received the last"
}

func amendFair(g *driver.Guarantees) {
	g.Fallback, g.Order = peerFallback, driver.OrderFIFO
	g.Notes = append(g.Notes, "a waiter that died holds up those behind it for as long as the fair wait, which all clients have to agree on",
		"Redisson judges by the Java client's wall clock whether a waiter has died: one that is ahead drops living waiters, which then queue again at the end")
}

func amendReadWrite(g *driver.Guarantees) {
	g.Fallback, g.Shared, g.Mixed = peerFallback, true, true
	g.Notes = append(g.Notes, "readers can keep out a writer for as long as they come")
}

const permitsNote = "the name's first client sets the number of permits; a request of limit n is granted while fewer than n are held and one is free"

func amendSemaphore(g *driver.Guarantees) {
	g.Fallback, g.Semaphore = peerFallback, true
	g.Notes = append(g.Notes, permitsNote+"; permits that Java holds count by the number of free ones alone",
		"the permit of a Java client that dies is lost; that of a holdfast client is given back when its TTL has passed and a holdfast client asks")
}

func amendPermits(g *driver.Guarantees) {
	g.Fallback, g.Semaphore = peerFallback, true
	g.EarlyEnd = append(g.EarlyEnd, "a Java client whose wall clock is ahead of the server's")
	g.Notes = append(g.Notes, permitsNote)
}

const (
	minPeerTTL   = time.Millisecond
	peerFallback = time.Second
)
