package driver

import (
	"fmt"
	"strings"
	"time"
)

// The values of Scope, Crash, Pause, Order, Wake, BreakKind and Visible are short words for
// programs. Describe returns what a person reads.
type (
	// Scope is how far a store's locks reach.
	Scope string
	// Crash is how the death of a holder frees its grants.
	Crash string
	// Pause is what a holder that is stopped for longer than its TTL loses.
	Pause string
	// Order is the order in which waiters are served.
	Order string
	// Wake is how a waiter learns that it is its turn.
	Wake string
	// BreakKind is how a grant can be taken away.
	BreakKind string
	// Visible is what an inspection shows.
	Visible string
)

// How far locks reach.
const (
	ScopeProcess Scope = "process"
	ScopeMachine Scope = "machine"
	ScopeNetwork Scope = "network"
)

// When the lock of a dead process is free again.
const (
	// CrashFreesAtOnce: the kernel or the server notices the end of the process.
	CrashFreesAtOnce Crash = "at-once"
	// CrashFreesAfterTTL: the lease runs out.
	CrashFreesAfterTTL Crash = "after-ttl"
	// CrashFreesSpace: the store dies with the process.
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
	OrderNone Order = "none"
)

// The ways of waking.
const (
	WakePush Wake = "push"
	WakePoll Wake = "poll"
)

// The kinds of breaking.
const (
	BreakNone BreakKind = "none"
	// BreakAsk: the store asks the holder to end. The grant stands until it does.
	BreakAsk BreakKind = "ask"
	// BreakNow: the grant ends at the store, and the holder learns of it.
	BreakNow BreakKind = "now"
)

// What can be seen.
const (
	VisibleNothing Visible = "nothing"
	VisibleHolders Visible = "holders"
	VisibleAll     Visible = "all"
)

var descriptions = map[any]string{
	ScopeProcess: "this process", ScopeMachine: "this machine", ScopeNetwork: "every client of the server",
	CrashFreesAtOnce: "at once", CrashFreesAfterTTL: "when the TTL has passed", CrashFreesSpace: "together with the process",
	PauseKeeps: "keeps the lock", PauseLoses: "loses the lock after its TTL",
	OrderFIFO: "first come, first served", OrderNone: "none",
	WakePush: "push", WakePoll: "poll",
	BreakNone: "no", BreakAsk: "the holder is asked, and keeps the lock until it has ended", BreakNow: "at once, and the holder is told",
	VisibleNothing: "nothing", VisibleHolders: "holders", VisibleAll: "holders and waiters",
}

// Describe returns the words for people.
func (s Scope) Describe() string { return descriptions[s] }

// Describe returns the words for people.
func (c Crash) Describe() string { return descriptions[c] }

// Describe returns the words for people.
func (p Pause) Describe() string { return descriptions[p] }

// Describe returns the words for people.
func (o Order) Describe() string { return descriptions[o] }

// Describe returns the words for people.
func (w Wake) Describe() string { return descriptions[w] }

// Describe returns the words for people.
func (b BreakKind) Describe() string { return descriptions[b] }

// Describe returns the words for people.
func (v Visible) Describe() string { return descriptions[v] }

// Guarantees is what a store promises, in one place: the documentation's tables
// and the command print from it, the core acts on it, and the conformance suite
// checks it.
type Guarantees struct {
	// Kind names the recipe: "memory", "file", "redis".
	Kind  string
	Scope Scope
	Crash Crash
	Pause Pause
	Order Order
	Wake  Wake
	// Fallback bounds what a lost wake-up costs a waiter, 0 if none can be lost.
	Fallback time.Duration
	// TryFirst: a request without Wait costs no more than one with it, and leaves no
	// more at the store if its answer is lost. The core then makes that request
	// first, on its caller's own goroutine. It is taken for granted below the network.
	TryFirst bool
	// Shared and Semaphore tell which limits beside Exclusive the store grants;
	// Mixed, whether grants of different limits exclude one another properly on
	// one name; Slots, whether a permit has a number.
	Shared, Semaphore, Mixed, Slots bool
	// Tokens says where tokens come from and what they survive.
	Tokens string
	// Reserves: an exclusive grant can have several tokens; see Request.Tokens. The core
	// then hands such a grant off to waiters of its process, each with a token of its own,
	// at most HandoffMax times and within HandoffTime of the grant.
	Reserves bool
	// EarlyEnd lists what can end a grant before its TTL, beside a Break, and Notice
	// bounds how long its holder's context then goes on.
	EarlyEnd []string
	Notice   time.Duration
	// MinTTL, MaxTTL and Granularity bound a lease; all zero where grants have
	// none. The core refuses what is outside before the store sees it.
	MinTTL, MaxTTL, Granularity time.Duration
	// Lapses: what a failed Undo or Release has left at the store ends when its TTL has
	// passed, whatever else the process holds, so that the core need not ask for longer
	// than some TTLs. It is not so where a place or a grant lives as long as a session
	// that serves others too.
	Lapses bool
	// Linger: Release can leave a grant standing for a while.
	Linger  bool
	Break   BreakKind
	Visible Visible
	// Notes are what a user should know beside this.
	Notes []string
}

// Row is one line of a table of guarantees.
type Row struct{ Key, Value string }

// Rows are the guarantees as people read them.
func (g Guarantees) Rows() []Row {
	rows := []Row{
		{"locks reach", g.Scope.Describe()},
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
		{"inspection", g.Visible.Describe()},
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

// The bounds of handoffs inside a process, where the store reserves tokens.
const (
	// HandoffMax is how many times a process hands a grant off.
	HandoffMax = 64
	// HandoffTime is how long after the grant the last of these handoffs may happen.
	HandoffTime = 5 * time.Millisecond
)

func (g Guarantees) order() string {
	if g.Reserves {
		return fmt.Sprintf("%s; a process may first hand a lock off to its own waiters, at most %d times, and within %s of the grant", g.Order.Describe(), HandoffMax, HandoffTime)
	}
	return g.Order.Describe()
}

func (g Guarantees) wake() string {
	if g.Wake == WakePush && g.Fallback > 0 {
		return fmt.Sprintf("%s; a lost one costs at most %s", g.Wake, g.Fallback)
	}
	return string(g.Wake)
}

func (g Guarantees) early() string {
	if len(g.EarlyEnd) == 0 {
		return "no"
	}
	return fmt.Sprintf("%s; noticed within %s", strings.Join(g.EarlyEnd, ", "), g.Notice)
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
