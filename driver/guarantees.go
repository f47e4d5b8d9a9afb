package driver

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// The values of Scope, Crash, Pause, Order, Wake, BreakKind and Visible are short words for
// programs. Describe returns a sentence for people.
type (
	// Scope is how far a store's locks reach.
	Scope string
	// Crash is how the death of a holder frees its grants.
	Crash string
	// Pause is what a holder that is stopped for longer than its TTL loses.
	Pause string
	// Order is the order in which waiters are served.
	Order string
	// Wake is how a waiter is notified.
	Wake string
	// BreakKind is how an operator can break a grant.
	BreakKind string
	// Visible is what an inspection shows.
	Visible string
)

// How far locks reach.
const (
	ScopeProcess Scope = "process"
	// ScopeContainer: the locks are in a container's own layer, of which other containers have copies.
	ScopeContainer Scope = "container"
	ScopeMachine   Scope = "machine"
	ScopeNetwork   Scope = "network"
)

// When the lock of a dead process is free again.
const (
	// CrashFreesAtOnce: the kernel or the server notices the end of the process.
	CrashFreesAtOnce Crash = "at-once"
	// CrashFreesAfterTTL: the lease expires.
	CrashFreesAfterTTL Crash = "after-ttl"
	// CrashFreesSpace: the store ends with the process.
	CrashFreesSpace Crash = "with-process"
)

// What a pause does.
const (
	PauseKeeps Pause = "keeps"
	PauseLoses Pause = "loses"
)

// The orders of waiters.
const (
	OrderFIFO Order = "fifo"
	// OrderLongest: the store keeps a free name for the client that has waited longest, as far as it knows. It
	// learns that from the waiters when they find the name held, so clients of about the same age may change positions.
	OrderLongest Order = "longest"
	OrderNone    Order = "none"
)

// PositionTime returns for how long a store of OrderLongest keeps a free name for a waiter that is not heard of any more.
// ttl is that of its request.
func PositionTime(ttl time.Duration) time.Duration { return min(max(ttl, time.Second), maxPosition) }

const maxPosition = 10 * time.Second

// The ways of waking.
const (
	WakePush Wake = "push"
	WakePoll Wake = "poll"
)

// The kinds of breaking.
const (
	BreakNone BreakKind = "none"
	// BreakNotify: the store only notifies the holder. The grant stands until the holder
	// releases it.
	BreakNotify BreakKind = "notify"
	// BreakNow: the grant ends at the store, and the holder is notified.
	BreakNow BreakKind = "now"
)

// What can be seen.
const (
	VisibleNothing Visible = "nothing"
	VisibleHolders Visible = "holders"
	VisibleAll     Visible = "all"
)

var descriptions = map[any]string{
	ScopeProcess: "this process", ScopeContainer: "this container", ScopeMachine: "this machine", ScopeNetwork: "every client of the server",
	CrashFreesAtOnce: "at once", CrashFreesAfterTTL: "when the TTL has passed", CrashFreesSpace: "together with the process",
	PauseKeeps: "keeps the lock", PauseLoses: "loses the lock after its TTL",
	OrderFIFO: "first come, first served", OrderLongest: "the client that has waited longest, roughly", OrderNone: "none",
	WakePush: "push", WakePoll: "poll",
	BreakNone: "no", BreakNotify: "the store notifies the holder, which keeps the lock until it has ended", BreakNow: "at once, and the store notifies the holder",
	VisibleNothing: "nothing", VisibleHolders: "holders", VisibleAll: "holders and waiters",
}

// Describe returns a sentence for people.
func (s Scope) Describe() string { return descriptions[s] }

// Describe returns a sentence for people.
func (c Crash) Describe() string { return descriptions[c] }

// Describe returns a sentence for people.
func (p Pause) Describe() string { return descriptions[p] }

// Describe returns a sentence for people.
func (o Order) Describe() string { return descriptions[o] }

// Describe returns a sentence for people.
func (w Wake) Describe() string { return descriptions[w] }

// Describe returns a sentence for people.
func (b BreakKind) Describe() string { return descriptions[b] }

// Describe returns a sentence for people.
func (v Visible) Describe() string { return descriptions[v] }

// Guarantees are the guarantees of a store. The documentation and the command print their
// tables from them, the core depends on them, and the conformance suite checks them.
type Guarantees struct {
	// Kind names the recipe: "memory", "file", "redis".
	Kind  string
	Scope Scope
	// Reach names exactly which clients share the locks, beside the namespace: "every client of the same
	// database". If it is empty, Scope describes them.
	Reach string
	Crash Crash
	Pause Pause
	Order Order
	Wake  Wake
	// Fallback limits the delay by a lost notification, 0 if none can be lost.
	Fallback time.Duration
	// Wanted is how a holder learns that a request waits, for the core's Wanted and Sticky: WakePush if Watch of a [Watcher]
	// reports it, else WakePoll. It is empty if Visible is not VisibleAll.
	Wanted Wake
	// TryFirst: a request without Wait costs no more than one with it, and leaves no more at
	// the store if its answer is lost. The core then uses it as its fast path, on the caller's
	// goroutine. The core treats every store that needs no network like that.
	TryFirst bool
	// Shared and Semaphore report whether the store supports those limits beside Exclusive.
	// Mixed reports whether grants of different limits exclude one another by the rule on one
	// name. Slots reports whether a permit has a number.
	Shared, Semaphore, Mixed, Slots bool
	// Tokens is where tokens come from and what they survive.
	Tokens string
	// Reserves: an exclusive grant can have several tokens; see Request.Tokens. The core then
	// hands such a grant off to waiters of its process, each with a token of its own. It does
	// so at most HandoffMax times, and within HandoffTime of the grant.
	Reserves bool
	// EarlyEnd lists what can end a grant before its TTL, beside a Break. After such an end,
	// Notice limits how long the holder's context still continues.
	EarlyEnd []string
	Notice   time.Duration
	// MinTTL, MaxTTL and Granularity are the limits of a lease; all are zero if grants have
	// none. The core refuses other TTLs before the store gets the request.
	MinTTL, MaxTTL, Granularity time.Duration
	// LeftoversExpire: a grant or a queue entry that a failed Undo or Release has left expires
	// with its own TTL, whatever else the process holds. The core then retries for some TTLs
	// only. It is false if the entry or the grant lives as long as a shared session.
	LeftoversExpire bool
	// Linger: Release can leave a grant standing for a while.
	Linger  bool
	Break   BreakKind
	Visible Visible
	// VisibleAfter: an inspection may omit a grant that is younger, or show it without its owner
	// and token. A slow link to the server adds its round trips. A Break finds the grant nevertheless.
	VisibleAfter time.Duration
	// Notes are remarks for users.
	Notes []string
}

// Row is one line of a table of guarantees.
type Row struct{ Key, Value string }

// Rows returns the guarantees as the lines of a table for people.
func (g Guarantees) Rows() []Row {
	rows := []Row{
		{"locks reach", cmp.Or(g.Reach, g.Scope.Describe())},
		{"limits", g.limits()},
		{"a crash frees", g.Crash.Describe()},
		{"a paused holder", g.Pause.Describe()},
		{"order of waiters", g.order()},
		{"wake-up", g.wake()},
		{"fencing tokens", g.Tokens},
		{"may end early", g.early()},
		{"TTL", g.ttl()},
		{"minimum hold", map[bool]string{true: "kept by the store", false: "kept by the process"}[g.Linger]},
		{"break", g.Break.Describe()},
		{"inspection", g.inspection()},
	}
	if g.Wanted != "" {
		rows = append(rows, Row{"Wanted, Sticky", string(g.Wanted)})
	}
	for _, n := range g.Notes {
		rows = append(rows, Row{"note", n})
	}
	return rows
}

func (g Guarantees) limits() string {
	l := []string{"exclusive"}
	if g.Shared {
		l = append(l, "shared")
	}
	if g.Semaphore {
		l = append(l, "semaphore"+map[bool]string{true: " with slots"}[g.Slots])
	}
	s := strings.Join(l, ", ")
	if len(l) > 1 && g.Mixed {
		s += "; any mix on one name"
	}
	return s
}

// Limits of handoffs inside a process, where the store reserves tokens.
const (
	// HandoffMax is how many times a process hands a grant off.
	HandoffMax = 64
	// HandoffTime is how long after the grant the last of these handoffs may happen. It is also
	// how long the core holds a request back for a Swap.
	HandoffTime = 5 * time.Millisecond
)

func (g Guarantees) order() string {
	if g.Reserves {
		return fmt.Sprintf("%s; handoffs inside a process: at most %d, within %s", g.Order.Describe(), HandoffMax, HandoffTime)
	}
	return g.Order.Describe()
}

func (g Guarantees) wake() string {
	if g.Wake == WakePush && g.Fallback > 0 {
		return fmt.Sprintf("%s; a lost notification costs at most %s", g.Wake, g.Fallback)
	}
	return string(g.Wake)
}

func (g Guarantees) early() string {
	if len(g.EarlyEnd) == 0 {
		return "no"
	}
	return fmt.Sprintf("%s; noticed within %s", strings.Join(g.EarlyEnd, ", "), g.Notice)
}

func (g Guarantees) inspection() string {
	if g.VisibleAfter > 0 {
		return fmt.Sprintf("%s; a grant may be omitted for its first %s", g.Visible.Describe(), g.VisibleAfter)
	}
	return g.Visible.Describe()
}

func (g Guarantees) ttl() string {
	if g.MaxTTL == 0 {
		return "none: a grant lasts until it is released or its process ends"
	}
	s := fmt.Sprintf("%s to %s", g.MinTTL, g.MaxTTL)
	if g.Granularity > 0 {
		s += fmt.Sprintf(", rounded up to %s", g.Granularity)
	}
	return s
}
