package holdfast

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

var update = flag.Bool("update", false, "write docs/lease.md instead of comparing it")

var phaseNames = [...]string{
	requested: "requested", revoked: "revoked", held: "held", lingering: "lingering", kept: "kept",
	lost: "lost", releasing: "releasing", ended: "ended",
}

func (p phase) String() string { return phaseNames[p] }

var eventNames = [...]string{
	granted: "granted", denied: "denied", unanswered: "unanswered", opened: "opened", joined: "joined",
	unlocked: "unlocked", left: "left", dropped: "dropped", revoke: "revoke", checked: "checked",
	ticked: "ticked", resumed: "resumed", renewed: "renewed", renewalFailed: "renewalFailed",
	limitReached: "limitReached", lingered: "lingered", taken: "taken", recalled: "recalled",
	closed: "closed", released: "released",
	releaseDenied: "releaseDenied", releaseUnconfirmed: "releaseUnconfirmed", releaseImpossible: "releaseImpossible",
}

func (k eventKind) String() string { return eventNames[k] }

var effectNames = []string{
	"link", "unlink", "contend", "endAll", "endOne", "endLimit", "reportLoss", "stopLinger", "renew", "reportRenewal", "handOff",
	"reportRelease", "release", "reportUnconfirmed", "releaseLater", "undo", "linger", "take",
}

func (e effect) String() string { return namesOf(uint32(e), effectNames) }

func namesOf(set uint32, all []string) string {
	var names []string
	for i, name := range all {
		if set&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// situation is a lease of the table. It has a TTL of 30 s, of which 27 s are valid, was
// granted at 100 s, and has one open Lock. Nothing is due.
const (
	tableTTL   = 30 * time.Second
	tableValid = 27 * time.Second
	tableSent  = 100 * time.Second
)

type situation struct {
	s leaseState
	e event
	f facts
}

func (x *situation) at(age time.Duration) {
	x.f.age, x.f.now = age, tableSent+age
}

func newSituation(p phase, k eventKind) *situation {
	x := &situation{
		s: leaseState{phase: p, open: 1},
		e: event{kind: k, sent: tableSent, ttl: tableTTL, valid: tableValid},
		f: facts{used: true},
	}
	x.at(time.Second)
	if p != requested && p != revoked {
		x.s.ttl, x.s.valid, x.s.since, x.s.renewAt = tableTTL, tableValid, tableSent, tableSent+tableTTL/3
	}
	if p == requested || p == revoked || k == dropped || k == opened && p == held {
		x.s.open = 0
	}
	if p == kept {
		x.s.open, x.s.spare, x.f.used = 0, 1, false
	}
	if k == left {
		x.s.open, x.s.leaving = 0, 1
	}
	if k == revoke {
		x.e.cause = driver.CauseTaken
	}
	return x
}

// conditions change the situation of a transition. They can be combined.
var conditions = map[string]func(*situation){
	"expired":                       func(x *situation) { x.at(tableValid) },
	"machine slept":                 func(x *situation) { x.at(tableValid); x.f.slept = time.Minute },
	"a local waiter is next":        func(x *situation) { x.f.next, x.s.spare = true, 1 },
	"no handoff is left":            func(x *situation) { x.s.spare = 0 },
	"the time for handoffs is over": func(x *situation) { x.s.handoffUntil = x.f.now },
	"a MinHold is not over":         func(x *situation) { x.s.keep = time.Minute },
	"the store keeps it":            func(x *situation) { x.f.storeKeeps = true },
	"other Locks are open":          func(x *situation) { x.s.open++ },
	"another Unlock is under way":   func(x *situation) { x.s.leaving++ },
	"its Unlock has begun":          func(x *situation) { x.s.open, x.s.leaving = 0, 1 },
	"renewal due":                   func(x *situation) { x.at(tableTTL / 3) },
	"renewal under way":             func(x *situation) { x.s.renewing = true },
	"the lease has another holder":  func(x *situation) { x.f.stale = true },
	"no Lock is open":               func(x *situation) { x.f.used = false },
	"with its first Lock":           func(x *situation) { x.e.lock = &Lock{} },
	"little validity left":          func(x *situation) { x.at(tableValid / 2) },
	"Sticky":                        func(x *situation) { x.f.sticky, x.s.spare = time.Minute, 1 },
	"it was recalled":               func(x *situation) { x.s.recalled = true },
	"it was kept":                   func(x *situation) { x.s.quiet = true },
}

// transition is one row of the table of all transitions.
type transition struct {
	from  phase
	event eventKind
	when  string // conditions, joined by " and "
	to    phase
	do    effect
	cause driver.Cause
}

var transitions = []transition{
	{requested, granted, "", held, 0, ""},
	{requested, granted, "with its first Lock", held, link, ""},
	{requested, granted, "expired", ended, undo, ""},
	{requested, denied, "", ended, 0, ""},
	{requested, unanswered, "", ended, undo, ""},
	{requested, revoke, "", revoked, 0, CauseTaken},
	{revoked, granted, "", ended, undo, ""},
	{revoked, denied, "", ended, 0, ""},
	{revoked, unanswered, "", ended, undo, ""},

	{held, opened, "", held, link, ""},
	{held, joined, "", held, link, ""},
	{held, joined, "its Unlock has begun", held, endOne, ""},
	{held, joined, "the lease has another holder", held, endOne, ""},
	{held, unlocked, "other Locks are open", held, endOne, ""},
	{held, unlocked, "another Unlock is under way", held, endOne, ""},
	{held, unlocked, "", releasing, endOne | release, ""},
	{held, unlocked, "a MinHold is not over", held, endOne, ""},
	{held, unlocked, "a MinHold is not over and the store keeps it", releasing, endOne | release, ""},
	{held, unlocked, "a local waiter is next", held, contend | endOne, ""},
	{held, unlocked, "a local waiter is next and no handoff is left", releasing, contend | endOne | release, ""},
	{held, unlocked, "a local waiter is next and the time for handoffs is over", releasing, contend | endOne | release, ""},
	{held, unlocked, "expired", ended, endAll | endOne | reportLoss | releaseLater, CauseExpired},
	{held, unlocked, "expired and other Locks are open", lost, endAll | endOne | reportLoss, CauseExpired},
	{held, left, "other Locks are open", held, unlink, ""},
	{held, left, "another Unlock is under way", held, unlink, ""},
	{held, left, "", releasing, unlink | release, ""},
	{held, left, "a MinHold is not over", lingering, unlink | linger, ""},
	{held, left, "a MinHold is not over and the store keeps it", releasing, unlink | release, ""},
	{held, left, "a local waiter is next", held, unlink | handOff | reportRelease, ""},
	{held, left, "a local waiter is next and little validity left", releasing, unlink | release, ""},
	{held, left, "a local waiter is next and no handoff is left", releasing, unlink | release, ""},
	{held, left, "a local waiter is next and the time for handoffs is over", releasing, unlink | release, ""},
	{held, left, "a local waiter is next and a MinHold is not over", lingering, unlink | linger, ""},
	{held, unlocked, "Sticky", held, endOne, ""},
	{held, unlocked, "Sticky and it was recalled", releasing, endOne | release, ""},
	{held, left, "Sticky", kept, unlink | reportRelease | linger, ""},
	{held, left, "Sticky and it was recalled", releasing, unlink | release, ""},
	{held, left, "Sticky and no handoff is left", releasing, unlink | release, ""},
	{held, left, "Sticky and little validity left", releasing, unlink | release, ""},
	{held, left, "Sticky and a MinHold is not over", lingering, unlink | linger, ""},
	{held, left, "Sticky and a MinHold is not over and the store keeps it", releasing, unlink | release, ""},
	{held, left, "Sticky and a local waiter is next", held, unlink | handOff | reportRelease, ""},
	{held, dropped, "", ended, releaseLater, ""},
	{held, dropped, "Sticky", ended, releaseLater, ""},
	{held, dropped, "a local waiter is next", held, handOff | reportRelease, ""},
	{held, dropped, "a local waiter is next and no handoff is left", ended, releaseLater, ""},
	{held, dropped, "a local waiter is next and the time for handoffs is over", ended, releaseLater, ""},
	{held, revoke, "", lost, endAll | reportLoss, CauseTaken},
	{held, checked, "expired", lost, endAll | reportLoss, CauseExpired},
	{held, checked, "machine slept", lost, endAll | reportLoss, CauseSlept},
	{held, ticked, "expired", lost, endAll | reportLoss, CauseExpired},
	{held, ticked, "renewal due", held, renew, ""},
	{held, ticked, "renewal due and renewal under way", held, 0, ""},
	{held, ticked, "renewal due and no Lock is open", held, 0, ""},
	{held, resumed, "", held, renew, ""},
	{held, resumed, "expired", lost, endAll | reportLoss, CauseExpired},
	{held, renewed, "", held, reportRenewal, ""},
	{held, renewalFailed, "", held, reportRenewal, ""},
	{held, limitReached, "", held, endLimit, ""},
	{held, limitReached, "no Lock is open", held, 0, ""},
	{held, recalled, "", held, 0, ""},
	{held, closed, "", ended, endAll | reportLoss | releaseLater, CauseClosed},
	{held, closed, "a MinHold is not over", lingering, endAll | reportLoss | linger, CauseClosed},
	{held, closed, "a MinHold is not over and the store keeps it", ended, endAll | reportLoss | releaseLater, CauseClosed},
	{held, closed, "a MinHold is not over and expired", ended, endAll | reportLoss | releaseLater, CauseClosed},

	{lingering, joined, "", lingering, endOne, ""},
	{lingering, revoke, "", ended, endAll | reportLoss | stopLinger | releaseLater, CauseTaken},
	{lingering, checked, "expired", ended, endAll | reportLoss | stopLinger | releaseLater, CauseExpired},
	{lingering, ticked, "expired", ended, endAll | reportLoss | stopLinger | releaseLater, CauseExpired},
	{lingering, ticked, "renewal due and no Lock is open", lingering, renew, ""},
	{lingering, resumed, "no Lock is open", lingering, renew, ""},
	{lingering, resumed, "machine slept", ended, endAll | reportLoss | stopLinger | releaseLater, CauseSlept},
	{lingering, renewed, "", lingering, reportRenewal, ""},
	{lingering, renewalFailed, "", lingering, reportRenewal, ""},
	{lingering, lingered, "", releasing, endAll | stopLinger | release, ""},

	{kept, joined, "", kept, endOne, ""},
	{kept, taken, "", held, take, ""},
	{kept, taken, "little validity left", releasing, stopLinger | release, ""},
	{kept, taken, "expired", ended, stopLinger | releaseLater, CauseExpired},
	{kept, recalled, "", releasing, stopLinger | release, ""},
	{kept, revoke, "", ended, stopLinger | releaseLater, CauseTaken},
	{kept, checked, "expired", ended, stopLinger | releaseLater, CauseExpired},
	{kept, ticked, "expired", ended, stopLinger | releaseLater, CauseExpired},
	{kept, ticked, "renewal due", kept, renew, ""},
	{kept, resumed, "", kept, renew, ""},
	{kept, resumed, "machine slept", ended, stopLinger | releaseLater, CauseSlept},
	{kept, renewed, "", kept, 0, ""},
	{kept, renewalFailed, "", kept, 0, ""},
	{kept, closed, "", ended, stopLinger | releaseLater, ""},

	{lost, opened, "", lost, endOne, ""},
	{lost, joined, "", lost, endOne, ""},
	{lost, unlocked, "other Locks are open", lost, endOne, ""},
	{lost, unlocked, "another Unlock is under way", lost, endOne, ""},
	{lost, unlocked, "", ended, endOne | releaseLater, ""},
	{lost, left, "other Locks are open", lost, 0, ""},
	{lost, left, "another Unlock is under way", lost, 0, ""},
	{lost, left, "", ended, releaseLater, ""},
	{lost, left, "a local waiter is next", ended, releaseLater, ""},
	{lost, dropped, "", ended, releaseLater, ""},
	{lost, closed, "", ended, endAll | releaseLater, ""},

	{releasing, joined, "", releasing, endOne, ""},
	{releasing, released, "", ended, reportRelease, ""},
	{releasing, releaseDenied, "", ended, reportLoss, CauseGone},
	{releasing, released, "it was kept", ended, 0, ""},
	{releasing, releaseDenied, "it was kept", ended, 0, ""},
	{releasing, releaseUnconfirmed, "it was kept", ended, reportUnconfirmed | releaseLater, ""},
	{releasing, releaseUnconfirmed, "", ended, reportUnconfirmed | releaseLater, ""},
	{releasing, releaseImpossible, "", ended, reportUnconfirmed, ""},

	{ended, opened, "", ended, endOne, ""},
	{ended, joined, "", ended, endOne, ""},
	{ended, unlocked, "", ended, endOne, ""},
}

// TestEveryTransition compares the state machine with the table, and checks that
// every pair of phase and event without a row changes nothing.
func TestEveryTransition(t *testing.T) {
	listed := map[[2]string]bool{}
	for _, row := range transitions {
		listed[[2]string{row.from.String(), row.event.String()}] = true
		x := newSituation(row.from, row.event)
		for _, c := range strings.Split(row.when, " and ") {
			if c == "" {
				continue
			}
			conditions[c](x)
		}
		before := x.s
		s, fx := x.s.next(x.e, x.f)
		if s.phase != row.to || fx.do != row.do || fx.cause != row.cause {
			t.Errorf("%s, %s, %q: %s, %s, %q; want %s, %s, %q", row.from, row.event, row.when, s.phase, fx.do, fx.cause, row.to, row.do, row.cause)
		}
		if x.s != before {
			t.Errorf("%s, %s: next has changed the state that it was given", row.from, row.event)
		}
		if again, fx2 := x.s.next(x.e, x.f); again != s || fx2 != fx {
			t.Errorf("%s, %s: not the same when called again", row.from, row.event)
		}
	}
	for from := requested; from <= ended; from++ {
		for k := granted; k <= releaseImpossible; k++ {
			if listed[[2]string{from.String(), k.String()}] || k == unlocked && (from == lingering || from == kept) {
				continue // Such a lease has no Lock to unlock.
			}
			for name, change := range conditions {
				x := newSituation(from, k)
				change(x)
				// A Lock of an event that cannot occur in this phase ends; see endOne.
				if s, fx := x.s.next(x.e, x.f); s.phase != from || fx.do&^endOne != 0 || fx.cause != "" {
					t.Errorf("%s, %s, %q is not in the table: %s, %s", from, k, name, s.phase, fx.do)
				}
			}
		}
	}
}

// TestTransitionAmounts checks the durations that the effects and the state carry.
func TestTransitionAmounts(t *testing.T) {
	x := newSituation(held, left)
	x.s.keep, x.f.storeKeeps = 20*time.Second, true
	x.at(5 * time.Second)
	if _, fx := x.s.next(x.e, x.f); fx.keep != 15*time.Second || fx.within != tableValid-5*time.Second {
		t.Errorf("release: keep %s, within %s", fx.keep, fx.within)
	}
	x.s.forever = true
	if _, fx := x.s.next(x.e, x.f); fx.within != driver.Forever {
		t.Errorf("release of a lease without expiry: within %s", fx.within)
	}

	x = newSituation(held, left)
	x.f.next, x.f.nextValid, x.s.handoffs, x.s.spare = true, 29*time.Second, 3, 2
	if s, _ := x.s.next(x.e, x.f); s.handoffs != 4 || s.spare != 1 || s.valid != 29*time.Second || s.since != x.f.now || s.keep != 0 {
		t.Errorf("handoff: %+v", s)
	}

	x = newSituation(held, left)
	x.f.sticky, x.s.spare = time.Minute, 1
	if _, fx := x.s.next(x.e, x.f); fx.keep != time.Minute {
		t.Errorf("kept for %s", fx.keep)
	}
	x = newSituation(kept, taken)
	x.e.valid, x.s.keep = 29*time.Second, time.Second
	if s, _ := x.s.next(x.e, x.f); s.handoffs != 1 || s.spare != 0 || s.valid != 29*time.Second || s.since != x.f.now || s.keep != 0 {
		t.Errorf("taken: %+v", s)
	}
	x.at(29 * time.Second / 2)
	if _, fx := x.s.next(x.e, x.f); fx.do&release == 0 || fx.within != tableValid-29*time.Second/2 {
		t.Errorf("taken with little validity left: %s, within %s", fx.do, fx.within)
	}
	x.s.forever = true
	if _, fx := x.s.next(x.e, x.f); fx.do != take {
		t.Errorf("taken without an end: %s", fx.do)
	}
	x = newSituation(kept, recalled)
	if s, fx := x.s.next(x.e, x.f); !s.quiet || fx.within != tableValid-time.Second {
		t.Errorf("recalled: quiet %t, within %s", s.quiet, fx.within)
	}
	x = newSituation(held, recalled)
	if s, _ := x.s.next(x.e, x.f); !s.recalled {
		t.Error("the recall of a held lease is forgotten")
	}
	x = newSituation(kept, closed)
	if _, fx := x.s.next(x.e, x.f); !fx.quiet || fx.keep != 0 {
		t.Errorf("closed: %+v", fx)
	}

	for _, row := range []struct {
		from          phase
		event         eventKind
		open, leaving int32
	}{
		{held, opened, 1, 0},
		{held, joined, 2, 0},
		{held, unlocked, 0, 1},
		{lost, opened, 2, 0},
		{lost, joined, 1, 0},
	} {
		x = newSituation(row.from, row.event)
		x.f.next, x.s.spare = true, 1 // so that a left follows
		if s, _ := x.s.next(x.e, x.f); s.open != row.open || s.leaving != row.leaving {
			t.Errorf("%s, %s: %d Locks are open and %d leave, want %d and %d", row.from, row.event, s.open, s.leaving, row.open, row.leaving)
		}
	}

	x = newSituation(held, closed)
	x.s.keep = time.Minute
	keeping, _ := x.s.next(x.e, x.f)
	keeping, _ = keeping.next(event{kind: ticked}, x.f)
	x.e = event{kind: revoke, cause: driver.CauseTaken}
	if _, fx := keeping.next(x.e, x.f); fx.do != endAll|stopLinger|releaseLater {
		t.Errorf("the second loss of a lease: %s", fx.do)
	}

	x = newSituation(requested, granted)
	x.e.spare, x.e.within = 7, 5*time.Millisecond
	if s, _ := x.s.next(x.e, x.f); s.spare != 7 || s.handoffUntil != x.f.now+5*time.Millisecond {
		t.Errorf("granted with handoffs: %+v", s)
	}

	x = newSituation(requested, granted)
	x.e.provisional, x.e.ttl, x.e.valid = true, 3*time.Second, 2*time.Second
	unconfirmed, _ := x.s.next(x.e, x.f)
	if unconfirmed.renewAt != x.f.now+confirmAfter || unconfirmed.valid != 2*time.Second {
		t.Errorf("granted provisionally: %+v", unconfirmed)
	}
	x.e = event{kind: ticked}
	if _, fx := unconfirmed.next(x.e, x.f); fx.do != 0 {
		t.Errorf("a tick before the confirmation is due: %s", fx.do)
	}
	x.f.now += confirmAfter
	if _, fx := unconfirmed.next(x.e, x.f); fx.do != renew {
		t.Errorf("a tick when the confirmation is due: %s", fx.do)
	}
	x.e = event{kind: renewed, sent: x.f.now, ttl: tableTTL, valid: tableValid}
	if s, _ := unconfirmed.next(x.e, x.f); s.provisional || s.valid != tableValid || s.renewAt != x.f.now+tableTTL/3 {
		t.Errorf("confirmed: %+v", s)
	}

	x = newSituation(held, renewed)
	x.e.sent, x.e.ttl, x.e.valid = tableSent, 15*time.Second, 13*time.Second
	x.f.now = tableSent + 9*time.Second
	s, _ := x.s.next(x.e, x.f)
	if s.ttl != 15*time.Second || s.valid != 13*time.Second || s.renewAt != x.f.now+15*time.Second/20 {
		t.Errorf("renewed with an early send: %+v", s)
	}
	x.e.kind, x.e.keep, x.s.renewing = renewalFailed, time.Second, true
	if s, _ := x.s.next(x.e, x.f); s.renewing || s.renewAt != x.f.now+time.Second || s.valid != tableValid {
		t.Errorf("failed renewal: %+v", s)
	}
	x.s.renewAt, x.s.renewing = tableSent+tableTTL/3, false
	if due := x.s.due(&x.f); due != x.s.renewAt {
		t.Errorf("due at %s, want the renewal", due)
	}
	x.s.renewing = true
	if due := x.s.due(&x.f); due != x.f.now+tableValid-x.f.age {
		t.Errorf("due at %s, want the end of the validity", due)
	}
}

// TestLeasePage keeps docs/lease.md equal to the table. With -update it writes the
// page.
func TestLeasePage(t *testing.T) {
	const path = "docs/lease.md"
	want := leasePage()
	if *update {
		must.Succeed(t, os.WriteFile(path, want, 0o644))
		return
	}
	got, err := os.ReadFile(path)
	must.Succeed(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from the table of transitions: run go test -run TestLeasePage . -update", path)
	}
}

// pageRow is a transition of either machine as the page shows it.
type pageRow struct{ from, event, to string }

func leasePage() []byte {
	var b bytes.Buffer
	b.WriteString(`# The states of a lease and of a queue

For a maintainer of the core. A lease starts as *requested* and changes its phase by events. An *ended* lease is
not used again. ` + "`machine.go`" + ` explains the words. The table ` + "`transitions` in `machine_test.go`" + ` has the conditions and the
effects of each event, and writes this page: ` + "`go test -run TestLeasePage . -update`" + `.

`)
	var leases, queues []pageRow
	for _, row := range transitions {
		leases = append(leases, pageRow{row.from.String(), row.event.String(), row.to.String()})
	}
	for _, row := range queueTransitions {
		queues = append(queues, pageRow{row.from.String(), row.event.String(), row.to.String()})
	}
	writeDiagram(&b, requested.String(), ended.String(), leases)
	b.WriteString(`
## The local queue

The queue of one name is *idle* when its goroutine is about to make a request. A *finished* queue is not used again.
` + "`queue_machine.go`" + ` explains the words, and ` + "`queueTransitions`" + ` is the table.

`)
	writeDiagram(&b, idle.String(), finished.String(), queues)
	return b.Bytes()
}

// writeDiagram writes the changes of the phase.
func writeDiagram(b *bytes.Buffer, first, last string, rows []pageRow) {
	fmt.Fprintf(b, "```mermaid\nstateDiagram-v2\n    direction LR\n    [*] --> %s\n", first)
	type edge struct{ from, to string }
	labels := map[edge][]string{}
	var edges []edge
	for _, row := range rows {
		if row.from == row.to {
			continue
		}
		e := edge{row.from, row.to}
		if labels[e] == nil {
			edges = append(edges, e)
		}
		if !slices.Contains(labels[e], row.event) {
			labels[e] = append(labels[e], row.event)
		}
	}
	for _, e := range edges {
		fmt.Fprintf(b, "    %s --> %s: %s\n", e.from, e.to, strings.Join(labels[e], ", "))
	}
	fmt.Fprintf(b, "    %s --> [*]\n```\n", last)
}
