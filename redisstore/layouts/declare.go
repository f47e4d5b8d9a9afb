package layouts

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// fallbackInterval limits how long a lost notification delays a waiter.
const fallbackInterval = time.Second

// declare completes the guarantees.
func (s *store) declare(g *driver.Guarantees) {
	g.Kind += "-" + string(s.layout)
	g.Order, g.Fallback, g.Visible = driver.OrderNone, fallbackInterval, driver.VisibleHolders
	g.Granularity = time.Millisecond
	g.Tokens = "the server's clock in microseconds, above the last token of the name (kept for 10 s) and all that this client has seen. " +
		"Locks of other clients have no token, and make no older token stale"
	g.Notes = append(g.Notes,
		"all clients of a name must use the same kind of lock",
		"a lock of another client shows only its owner, and cannot be broken here")
	if s.rules.amend != nil {
		s.rules.amend(g)
	}
}

// The functions below are the values of rules.amend. Each declares what is special about one layout.

const pollNote = "waiters find a release by another client by polling"

func amendPlain(g *driver.Guarantees) {
	g.Fallback = plainPoll
	g.Notes = append(g.Notes, pollNote,
		"another client's lock without a time to live lasts until its release")
}

func amendSpin(g *driver.Guarantees) {
	g.Fallback = spinPoll
	g.Notes = append(g.Notes, pollNote)
}

func amendFenced(g *driver.Guarantees) {
	g.Tokens = "Redisson's counter of the name. Tokens start again after a flush or a restart without data, " +
		"and repeat after a failover to a replica without the last ones"
}

func amendFair(g *driver.Guarantees) {
	g.Order = driver.OrderFIFO
	g.Notes = append(g.Notes, "while the name is free, each dead waiter blocks the waiters behind it for the fair wait, which must be the same for all clients",
		"a Java client whose clock is ahead removes living waiters, too, which queue again at the end")
}

func amendReadWrite(g *driver.Guarantees) {
	g.Shared, g.Mixed = true, true
	g.Notes = append(g.Notes, "new readers can block a writer forever")
}

const permitsNote = "the name's first client sets the number of permits; a request of limit n is granted while fewer than n are held and one is free"

func amendSemaphore(g *driver.Guarantees) {
	g.Semaphore = true
	g.Notes = append(g.Notes, permitsNote+"; for permits of Java clients only the number of free permits counts",
		"the permit of a dead Java client is lost; the permit of a dead holdfast client is free after its TTL, at the next request of a holdfast client")
}

func amendPermits(g *driver.Guarantees) {
	g.Semaphore = true
	g.EarlyEnd = append(g.EarlyEnd, "a Java client whose wall clock is ahead of the server's")
	g.Notes = append(g.Notes, permitsNote)
}
