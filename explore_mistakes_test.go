//go:build !race

package holdfast

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/explore"
	plant "github.com/holdfast-go/holdfast/internal/mutation"
)

// The stores that show the mistakes, as parts of their names.
const (
	tokens = "push,_reserved_tokens"
	swaps  = "push,_swap,_provisional"
	keeps  = "a_MinHold_that_the_process"
	alone  = "push,_swap_alone"
	stored = "a_MinHold_that_the_store"
	sticky = "kept_leases,"
)

// mistakes are mistakes in the two state machines. The exploration must find each of them.
var mistakes = []struct {
	Name   string
	Plants plant.Plants
	In     string // a part of the name of the exploration that finds it
	Deeper int    // than the usual exploration
}{
	// These are mistakes that the check convicts, too.
	{"the context never ends", plant.Plants{"expired": plant.Is("return effects{}")}, tokens, 0},
	{"Close does not release held locks", plant.Plants{"closed": plant.With("| releaseLater", "")}, tokens, 0},
	{"validity beyond the lease", plant.Plants{"validity": plant.And("s.valid *= 2")}, tokens, 0},
	{"a MinHold ends at the unlock", plant.Plants{"rest": plant.Is("return 0")}, keeps, 0},
	{"a MinHold counts half", plant.Plants{"rest": plant.With("s.keep-", "s.keep/2-")}, keeps, 0},
	{"the process keeps no MinHold", plant.Plants{
		"linger": plant.Is("s.phase = releasing\nreturn effects{do: release, within: s.left(f)}"),
	}, keeps, 0},
	{"a reserved token is used twice", plant.Plants{
		"handoff-token": plant.With("handoffs)", "handoffs) / 2"),
	}, tokens, 0},

	// These were defects of this library.
	{"Close releases a lost lease while a context lives", plant.Plants{
		"closed-lost": plant.With("endAll | ", ""),
	}, tokens, 1},

	{"Close sends a MinHold to a store that keeps none", plant.Plants{
		"closed-expired": plant.Is(""), "closed-linger": plant.With("s.lingers(f)", "s.lingers(f) && !s.expired(f)"),
	}, keeps, 0},

	{"a request without an answer is not undone", plant.Plants{"unanswered": plant.With("do: undo", "")}, tokens, 0},
	{"the first Unlock releases", plant.Plants{"last-unlock": plant.With("s.open == 0 && ", "")}, tokens, 0},
	{"an Unlock does not wait for another", plant.Plants{
		"last-unlock": plant.With("s.leaving == 0 && ", ""),
	}, tokens, 0},
	{"Unlock releases before the context has ended", plant.Plants{"end-context": plant.With("|endOne", "")}, tokens, 0},
	{"a handoff in the step of Unlock", plant.Plants{"last-unlock": plant.With("!s.canHandOff(f) && ", "")}, tokens, 0},
	{"Close ends no context", plant.Plants{"closed": plant.With("endAll | ", "")}, tokens, 0},
	{"Close and Unlock release a lost lease", plant.Plants{"closed-ends": plant.Is("")}, tokens, 0},
	{"the end of a MinHold releases nothing", plant.Plants{"lingered": plant.With(" | release,", ",")}, keeps, 0},
	{"a grant is used that the store has revoked", plant.Plants{
		"revoked": plant.With("s.phase == revoked || ", ""),
	}, tokens, 0},
	{"a lost lease is not released", plant.Plants{"lost": plant.With("do: releaseLater", "")}, tokens, 0},
	{"a lost lease counts as held", plant.Plants{"lose": plant.Is("")}, tokens, 0},
	{"one handoff too many", plant.Plants{"spare": plant.With("> 0", ">= 0")}, tokens, 0},
	{"a handoff within a MinHold", plant.Plants{"handoff-rest": plant.With("s.rest(f) == 0 && ", "")}, keeps, 0},
	{"a lease without a waiter is kept", plant.Plants{"dropped": plant.With("do: releaseLater", "")}, tokens, 0},
	{"an unconfirmed release is not repeated", plant.Plants{
		"unconfirmed": plant.With(" | releaseLater", ""),
	}, tokens, 0},

	{"a grant after Close is given to a waiter", plant.Plants{"give-back": plant.With(" || f.closed", "")}, tokens, 0},
	{"a grant without a waiter is forgotten", plant.Plants{"give-back-effect": plant.With("giveBack", "0")}, tokens, 0},
	{"a queue stays in its request after the grant", plant.Plants{
		"granted-phase": plant.Is("s.held = false"),
	}, tokens, 0},
	{"a waiter gets a grant that has ended", plant.Plants{"usable": plant.With("!f.usable", "false")}, tokens, 0},
	{"a queue stays in its request after the failure", plant.Plants{"failed-phase": plant.Is("")}, tokens, 0},
	{"an offered release that cannot go along is forgotten", plant.Plants{"return-swap": plant.Is("do = 0")}, swaps, 0},
	{"a queue goes on after Close", plant.Plants{"due-closed": plant.With(" || f.closed", "")}, tokens, 0},
	{"Close leaves waiters in a queue", plant.Plants{"finish": plant.With("| failAll ", "")}, tokens, 0},
	{"a swap does not wait for the release", plant.Plants{"swap": plant.Is("s.phase = requesting")}, swaps, 0},

	{"a Lock that joins does not count", plant.Plants{
		"open": plant.Is("if e.kind == opened {\ns.open++\n}"),
	}, tokens, 0},
	{"a Lock opens on a lost lease", plant.Plants{"opened-ended": plant.Is("if false {")}, tokens, 0},
	{"an Unlock forgets its MinHold", plant.Plants{"unlock-keep": plant.Is("")}, keeps, 0},
	{"Close forgets a MinHold", plant.Plants{"closed-keep": plant.Is("")}, keeps, 0},
	{"Close ends a MinHold", plant.Plants{"closed-linger": plant.Is("if false {")}, keeps, 0},
	{"a MinHold counts from the start of the Locker", plant.Plants{"granted-hold": plant.With("f.now", "0")}, keeps, 0},
	{"a release has no MinHold", plant.Plants{"release-keep": plant.With("keep: rest, ", "")}, stored, 0},
	{"a grant has one handoff too many", plant.Plants{"granted-hold": plant.With("e.spare", "e.spare + 1")}, tokens, 0},
	{"a handoff is not counted", plant.Plants{"handoffs": plant.Is("")}, tokens, 0},
	{"a hold has the token of the next one", plant.Plants{
		"handoff-token": plant.With("handoffs)", "handoffs) + 1"),
	}, tokens, 0},
	{"a loss before the answer is forgotten", plant.Plants{"revoked-early": plant.Is("")}, tokens, 0},
	{"a revoked request without an answer is not undone", plant.Plants{
		"denied": plant.With(" || s.phase == revoked", ""),
	}, tokens, 0},
	{"a loss releases at once", plant.Plants{
		"lost-effects": plant.With("reportLoss", "reportLoss | releaseLater"),
	}, tokens, 0},
	{"a lease that is lost in its MinHold is not released", plant.Plants{
		"linger-lost": plant.With(" | releaseLater", ""),
	}, keeps, 0},
	{"the last Unlock does not wait for an open Lock", plant.Plants{"left": plant.With("s.open > 0 || ", "")}, tokens, 0},
	{"the last Unlock does not wait for a Lock that ends", plant.Plants{
		"left": plant.With(" || s.leaving > 0", ""),
	}, tokens, 0},
	{"a request is cancelled with its swap", plant.Plants{
		"useless": plant.With("s.phase == requesting", "s.pending()"),
	}, alone, 0},
	{"a swap keeps the lease that it has served", plant.Plants{"granted-swap": plant.With("serveHead | ", "")}, alone, 0},
	{"a recall is forgotten while the lease is held", plant.Plants{"recalled": plant.Is("")}, sticky, 0},
	{"a kept lease is taken with the token of the hold before", plant.Plants{
		"taken": plant.Is("s.valid, s.since, s.keep = e.valid, f.now, 0"),
	}, sticky, 0},
	{"a recall releases nothing", plant.Plants{"recall": plant.With(" | release,", ",")}, sticky, 0},
	{"Close does not release a kept lease", plant.Plants{"closed-kept": plant.With(" | releaseLater", "")}, sticky, 0},
	{"a kept lease that is lost is not released", plant.Plants{"kept-lost": plant.With(" | releaseLater", "")}, sticky, 0},
	{"a lease is kept before the context has ended", plant.Plants{
		"last-unlock": plant.With("&& !s.canKeep(f) ", ""),
	}, sticky, 0},
	{"a release is offered and nothing takes it", plant.Plants{"offered": plant.Is("")}, alone, 0},
}

func TestExplorationFindsMistakes(t *testing.T) {
	marks := explore.Marks(t)
	for _, m := range mistakes {
		explore.Find(t, m, marks, "github.com/holdfast-go/holdfast", "TestEveryInterleavingKeepsTheInvariants")
	}
}

// everyMistakes are mistakes in Every.
var everyMistakes = []struct {
	Name   string
	Plants plant.Plants
	In     string
	Deeper int // by faults
}{
	{"the marker of a served tick ends at once", plant.Plants{
		"every-marker": plant.With("t.settled()", "t.at"),
	}, "equal", 0},
	{"the claim ends with its TTL", plant.Plants{"every-claim": plant.With("2*t.skew+t.ttl", "0")}, "a_clock", 1},
	{"a late replica serves", plant.Plants{"every-late": plant.With(">= t.skew", "< 0")}, "a_clock", 1},
	{"a tick is checked at once", plant.Plants{"every-watch": plant.With("now.Before(t.check)", "false")}, "equal", 0},
	{"a lock of an earlier tick stays", plant.Plants{
		"every-other": plant.With("at.IsZero() || at.Equal(t.at)", "true"),
	}, "behind_an_old_claim", 0},
	{"a tick that is being served is not watched", plant.Plants{"every-done": plant.Is("return true")}, "equal", 0},

	// These were defects of this library.
	{"a tick whose marker is taken counts as reported", plant.Plants{
		"every-known": plant.Is(`t.known = true
			if errors.Is(err, ErrBusy) {
				e.watched = append(e.watched, t)
				return true
			}`),
	}, "paused_before", 0},
	{"a tick is reported although its marker has ended", plant.Plants{
		"every-lost": plant.With(" && !errors.Is(err, ErrLost)", ""),
	}, "paused_with", 0},
}

func TestExplorationOfEveryFindsMistakes(t *testing.T) {
	marks := explore.Marks(t)
	for _, m := range everyMistakes {
		explore.Find(t, m, marks, "github.com/holdfast-go/holdfast", "TestEveryInterleavingServesATickOnce")
	}
}
