package holdfast

import (
	"fmt"
	"strings"
	"testing"
)

var queuePhaseNames = [...]string{
	idle: "idle", requesting: "requesting", swapping: "swapping", delaying: "delaying", offered: "offered",
	pausing: "pausing", finished: "finished",
}

func (p queuePhase) String() string { return queuePhaseNames[p] }

var queueEventNames = [...]string{
	waiterJoined: "waiterJoined", waiterLeft: "waiterLeft", storeAnswered: "storeAnswered",
	requestGranted: "requestGranted", requestFailed: "requestFailed", requestBusy: "requestBusy",
	requestRefused: "requestRefused", storeClosed: "storeClosed", releaseBegan: "releaseBegan",
	swapAnswered: "swapAnswered", requestDue: "requestDue", lockerClosed: "lockerClosed",
}

func (k queueEventKind) String() string { return queueEventNames[k] }

var queueEffectNames = []string{
	"noteAll", "serveHead", "giveBack", "failHead", "failAll", "failUnanswered", "delay", "pause",
	"returnSwap", "offerSwap", "wake", "request", "cancelRequest", "finish",
}

func (e queueEffect) String() string { return namesOf(uint32(e), queueEffectNames) }

// queueSituation is a queue of the table: a waiter waits, whose request is the one under way, if there is one.
type queueSituation struct {
	s queueState
	f queueFacts
}

// queueConditions change the situation of a transition. They can be combined.
var queueConditions = map[string]func(*queueSituation){
	"no waiter is left":                func(x *queueSituation) { x.f.waits, x.f.fits = false, false },
	"the head needs another request":   func(x *queueSituation) { x.f.fits = false },
	"a swap is possible":               func(x *queueSituation) { x.f.swaps = true },
	"the Locker is closed":             func(x *queueSituation) { x.f.closed, x.f.swaps = true, false },
	"the grant has ended":              func(x *queueSituation) { x.f.usable = false },
	"the store has answered it before": func(x *queueSituation) { x.f.answered, x.s.held = true, true },
	"it was cancelled":                 func(x *queueSituation) { x.s.cancelled = true },
	"the store did not answer in time": func(x *queueSituation) { x.f.unanswered = true },
	"requests failed before":           func(x *queueSituation) { x.s.failures = 2 },
}

type queueTransition struct {
	from  queuePhase
	event queueEventKind
	when  string // conditions, joined by " and "
	to    queuePhase
	do    queueEffect
}

var queueTransitions = []queueTransition{
	{idle, waiterJoined, "", idle, 0},
	{idle, requestDue, "", requesting, request},
	{idle, requestDue, "no waiter is left", finished, failAll | finish},
	{idle, requestDue, "the Locker is closed", finished, failAll | finish},

	{requesting, waiterJoined, "", requesting, 0},
	{requesting, waiterJoined, "requests failed before", requesting, 0},
	{requesting, waiterLeft, "", requesting, 0},
	{requesting, waiterLeft, "the head needs another request", requesting, cancelRequest},
	{requesting, waiterLeft, "no waiter is left", requesting, cancelRequest},
	{requesting, waiterLeft, "no waiter is left and it was cancelled", requesting, 0},
	{requesting, storeAnswered, "", requesting, noteAll},
	{requesting, requestGranted, "", idle, serveHead},
	{requesting, requestGranted, "a swap is possible", delaying, serveHead | delay},
	{requesting, requestGranted, "no waiter is left", idle, giveBack},
	{requesting, requestGranted, "the head needs another request", idle, giveBack},
	{requesting, requestGranted, "the Locker is closed", idle, giveBack},
	{requesting, requestGranted, "the grant has ended", pausing, failUnanswered | pause},
	{requesting, requestFailed, "", pausing, failUnanswered | pause},
	{requesting, requestGranted, "the grant has ended and the Locker is closed", idle, 0},
	{requesting, requestFailed, "it was cancelled", idle, 0},
	{requesting, requestFailed, "it was cancelled and the store did not answer in time", pausing, failUnanswered | pause},
	{requesting, requestFailed, "the Locker is closed", idle, 0},
	{requesting, requestBusy, "", pausing, noteAll | failUnanswered | pause},
	{requesting, requestBusy, "it was cancelled", idle, 0},
	{requesting, requestRefused, "", idle, failHead},
	{requesting, requestRefused, "the head needs another request", idle, 0},
	{requesting, requestRefused, "it was cancelled", idle, 0},
	{requesting, storeClosed, "", idle, failAll},
	{requesting, storeClosed, "it was cancelled", idle, 0},
	{requesting, lockerClosed, "the Locker is closed", requesting, cancelRequest},

	{swapping, storeAnswered, "", swapping, noteAll},
	{swapping, swapAnswered, "", requesting, returnSwap},
	{swapping, swapAnswered, "no waiter is left", requesting, returnSwap | cancelRequest},
	{swapping, swapAnswered, "the Locker is closed", requesting, returnSwap | cancelRequest},

	{delaying, waiterJoined, "", delaying, 0},
	{delaying, releaseBegan, "", idle, wake},
	{delaying, releaseBegan, "a swap is possible", offered, offerSwap | wake},
	{delaying, requestDue, "", requesting, request},
	{delaying, requestDue, "no waiter is left", finished, failAll | finish},
	{delaying, lockerClosed, "the Locker is closed", idle, wake},

	{offered, waiterJoined, "", offered, 0},
	{offered, requestDue, "a swap is possible", swapping, request},
	{offered, requestDue, "", requesting, returnSwap | request},
	{offered, requestDue, "no waiter is left", finished, failAll | returnSwap | finish},
	{offered, requestDue, "the Locker is closed", finished, failAll | returnSwap | finish},

	{pausing, waiterJoined, "", pausing, 0},
	{pausing, waiterJoined, "requests failed before", pausing, pause | wake},
	{pausing, requestDue, "", requesting, request},
	{pausing, requestDue, "no waiter is left", finished, failAll | finish},
	{pausing, lockerClosed, "the Locker is closed", idle, wake},
}

// TestEveryQueueTransition compares the state machine of a queue with the table, and checks that every pair of
// phase and event without a row changes nothing.
func TestEveryQueueTransition(t *testing.T) {
	listed := map[string]bool{}
	situation := func(from queuePhase) queueSituation {
		return queueSituation{queueState{phase: from}, queueFacts{waits: true, fits: true, usable: true}}
	}
	for _, row := range queueTransitions {
		listed[fmt.Sprint(row.from, row.event)] = true
		x := situation(row.from)
		for _, c := range strings.Split(row.when, " and ") {
			if c != "" {
				queueConditions[c](&x)
			}
		}
		if s, do := x.s.next(row.event, x.f); s.phase != row.to || do != row.do {
			t.Errorf("%s, %s, %q: %s, %s; want %s, %s", row.from, row.event, row.when, s.phase, do, row.to, row.do)
		}
	}
	for from := idle; from <= finished; from++ {
		for k := waiterJoined; k <= lockerClosed; k++ {
			// Swap has ended the release before its request has an outcome.
			impossible := from == swapping && k >= requestGranted && k <= storeClosed || from == finished && k == waiterJoined
			for name, change := range queueConditions {
				x := situation(from)
				change(&x)
				closes := x.f.closed && k == waiterLeft // lockerClosed comes first
				if s, do := x.s.next(k, x.f); !listed[fmt.Sprint(from, k)] && !impossible && !closes && (s != x.s || do != 0) {
					t.Errorf("%s, %s, %q is not in the table: %s, %s", from, k, name, s.phase, do)
				}
			}
		}
	}
}

// TestFailureCountOfAQueueRestarts: a new waiter, an answer and a grant each end a row of failures.
func TestFailureCountOfAQueueRestarts(t *testing.T) {
	f := queueFacts{waits: true, fits: true, usable: true}
	for _, c := range []struct {
		what   string
		phase  queuePhase
		event  queueEventKind
		change func(*queueFacts)
		want   int8
	}{
		{"a further failure", requesting, requestFailed, func(*queueFacts) {}, 2},
		{"an answer before the failure", requesting, requestFailed, func(f *queueFacts) { f.answered = true }, 1},
		{"a grant", requesting, requestGranted, func(*queueFacts) {}, 0},
		{"a grant that has ended", requesting, requestGranted, func(f *queueFacts) { f.usable = false }, 2},
		{"a waiter", pausing, waiterJoined, func(*queueFacts) {}, 1},
	} {
		facts := f
		c.change(&facts)
		if s, _ := (queueState{phase: c.phase, failures: 2}).next(c.event, facts); s.failures != c.want {
			t.Errorf("%s: %d failures, want %d", c.what, s.failures, c.want)
		}
	}
}
