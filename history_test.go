package holdfast

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// # Recorded histories
//
// The check records what its workers and their stores do. A recorded sequence of events of one lease must be one that
// the state machine of the lease allows. The machine gets the recorded events, and may get the others at any time:
// the store's notification, the clock, the caller that gives up. What it then does has to include what is recorded.

var historyFile = flag.String("history", "", "replay a history of the check through the state machine of a lease")

// recorded has what a replay needs of an event of package check.
type recorded struct {
	W, K  string
	Name  string `json:"n"`
	ID    string
	Gen   int    `json:"g"`
	Token uint64 `json:"tok"`
	Toks  int    `json:"toks"`
	TTL   int64
	For   int64
	// Sticky is for how long the Locker may keep the lease after an Unlock.
	Sticky int64
	Err    string
	Store  *driver.Guarantees
}

// possible is a state that a lease may be in.
type possible struct {
	s leaseState
	// did has the effects at the store that the machine has decided.
	did effect
	// opened: the present holder has its Lock. dropped: it has given up.
	opened, dropped bool
}

const atStore = release | releaseLater | undo | renew

// The replay has two times, now and much later. A lease is valid now, and has expired later.
const (
	replayValid = 8
	replayLater = 100
)

// terms decide what may happen to a lease without a record.
type terms struct {
	granted bool // the store has answered with a grant
	tokens  int
	forever bool
	closes  bool // its Locker closes
	seen    bool // a caller has recorded what it does with the lease
	keeps   bool // the store keeps a MinHold
	sticky  bool // a lock of its name and worker has the option Sticky; one that was dropped has no record of its own
}

// replayed is the replay of one lease.
type replayed struct {
	terms
	events []recorded
	token  uint64
	states map[possible]bool
	// later has the states that hiddenFrom has found for any lease.
	later map[reached]map[possible]bool
}

type reached struct {
	terms
	possible
}

// variants are the facts that a step may find.
func (r *replayed) variants() (all []facts) {
	for _, now := range []facts{{}, {now: replayLater}, {now: replayLater, age: replayLater}} {
		for _, next := range []bool{false, true} {
			f := now
			f.next, f.used, f.nextValid, f.storeKeeps = next, true, replayValid, r.keeps
			all = append(all, f)
			if r.sticky && !next {
				f.sticky = replayLater
				all = append(all, f)
			}
		}
	}
	return all
}

// step adds the states after an event to a set.
func (r *replayed) step(p possible, e event, to map[possible]bool) {
	for _, f := range r.variants() {
		n := p
		fx := n.s.apply(&e, &f)
		n.did |= fx.do & atStore
		if fx.do&(handOff|take) != 0 {
			n.opened, n.dropped = false, false // the next hold
		}
		n.opened = n.opened || e.kind == opened
		// A renewal is always due, and the other times are one: the replay is about the order of events.
		n.s.renewAt, n.s.since, n.s.handoffUntil, n.s.lossReported = 0, 0, 0, false
		to[n] = true
	}
}

// hidden adds the states that events without a record lead to.
func (r *replayed) hidden() {
	next := r.states
	for len(next) > 0 {
		added := map[possible]bool{}
		for p := range next {
			k := reached{r.terms, p}
			to, ok := r.later[k]
			if !ok {
				to = map[possible]bool{}
				r.hiddenFrom(p, to)
				r.later[k] = to
			}
			maps.Copy(added, to)
		}
		for p := range added {
			if r.states[p] {
				delete(added, p)
			}
			r.states[p] = true
		}
		next = added
	}
}

func (r *replayed) hiddenFrom(p possible, to map[possible]bool) {
	grant := event{kind: granted, ttl: replayValid, valid: replayValid, spare: int32(max(r.tokens, 1)) - 1}
	if !r.seen {
		grant.spare = 0 // a handoff has no record
	}
	if r.forever {
		grant.ttl = driver.Forever
	}
	kinds := []event{{kind: revoke, cause: driver.CauseGone}, {kind: checked}, {kind: ticked}, {kind: lingered}}
	switch {
	case p.s.phase <= revoked && r.granted:
		kinds = append(kinds, grant, event{kind: unanswered})
	case p.s.phase <= revoked:
		kinds = append(kinds, event{kind: denied})
	case p.s.phase == releasing:
		kinds = append(kinds, event{kind: released}, event{kind: releaseDenied}, event{kind: releaseUnconfirmed},
			event{kind: releaseImpossible})
	}
	if p.s.renewing {
		grant.kind = renewed
		kinds = append(kinds, grant, event{kind: renewalFailed})
	}
	if p.s.leaving > 0 {
		kinds = append(kinds, event{kind: left})
	}
	if !r.seen && p.s.phase > revoked {
		if !p.opened && !p.dropped {
			kinds = append(kinds, event{kind: opened})
		} else if p.s.open > 0 {
			kinds = append(kinds, event{kind: unlocked}, event{kind: unlocked, keep: replayLater})
		}
	}
	if r.closes {
		kinds = append(kinds, event{kind: closed})
	}
	if r.sticky {
		kinds = append(kinds, event{kind: recalled})
	}
	if p.s.phase == kept {
		kinds = append(kinds, event{kind: taken, valid: replayValid})
	}
	for _, e := range kinds {
		r.step(p, e, to)
	}
	if p.s.phase > revoked && !p.opened {
		p.dropped = true
		r.step(p, event{kind: dropped}, to)
	}
}

// observe applies a recorded event. It reports whether the machine allows it.
func (r *replayed) observe(e recorded) bool {
	r.hidden()
	before := r.states
	r.states = map[possible]bool{}
	for p := range before {
		switch e.K {
		case "unknown":
			if p.s.phase <= revoked {
				r.step(p, event{kind: unanswered}, r.states)
			} else if p.did&undo != 0 {
				r.states[p] = true
			}
		case "undo", "undone":
			r.require(p, undo)
		case "kept":
			r.require(p, renew)
		case "unsure":
			r.require(p, renew|release|releaseLater)
		case "freed", "leave":
			r.require(p, release|releaseLater)
		case "granted":
			if p.s.phase > revoked && !p.opened && !p.dropped && e.Token == r.token+uint64(p.s.handoffs) {
				r.step(p, event{kind: opened}, r.states)
			}
		case "unlock":
			if p.s.open > 0 {
				r.step(p, event{kind: unlocked, keep: replayLater * min(1, time.Duration(e.For))}, r.states)
			}
		case "stop": // the Locker is closed
			if p.s.phase == ended {
				r.states[p] = true
			}
		default:
			r.states[p] = true
		}
	}
	return len(r.states) > 0
}

// require keeps a state in which the machine has decided one of the effects.
func (r *replayed) require(p possible, did effect) {
	if p.did&did != 0 {
		r.states[p] = true
	}
}

// replay returns the first sequence that the machine does not allow, and the number of leases.
func replay(events []recorded) (refused string, leases int) {
	type id struct{ worker, id string }
	type lock struct {
		worker, name string
		token        uint64
	}
	all, byToken := map[id]*replayed{}, map[lock]*replayed{}
	gens := map[string]map[int][]*replayed{} // by worker and generation of its Locker
	sticky, later, keeps := map[lock]bool{}, map[reached]map[possible]bool{}, false
	// The callers' events are assigned first, because an answer decides which tokens a lease has.
	for _, e := range events {
		switch r := all[id{e.W, e.ID}]; {
		case e.K == "run" && e.Store != nil:
			keeps = e.Store.Linger
		case e.K == "request":
			r = &replayed{terms: terms{keeps: keeps}, states: map[possible]bool{{}: true}, later: later}
			all[id{e.W, e.ID}] = r
			if gens[e.W] == nil {
				gens[e.W] = map[int][]*replayed{}
			}
			gens[e.W][e.Gen] = append(gens[e.W][e.Gen], r)
		case e.K == "answer" && e.Token != 0 && r != nil:
			for i := range max(e.Toks, 1) {
				byToken[lock{e.W, e.Name, e.Token + uint64(i)}] = r
			}
		case e.K == "granted":
			if r := byToken[lock{e.W, e.Name, e.Token}]; r != nil {
				r.seen = true
			}
		case e.K == "unlock" && e.Sticky > 0:
			sticky[lock{worker: e.W, name: e.Name}] = true
		}
	}
	for of, r := range byToken {
		r.sticky = sticky[lock{worker: of.worker, name: of.name}]
	}
	observe := func(r *replayed, e recorded) string {
		r.events = append(r.events, e)
		if r.observe(e) {
			return ""
		}
		var b strings.Builder
		for _, e := range r.events {
			fmt.Fprintf(&b, "%+v\n", e)
		}
		return b.String()
	}
	for _, e := range events {
		var to []*replayed
		r := all[id{e.W, e.ID}]
		switch e.K {
		case "closing", "vanished":
			for _, r := range gens[e.W][e.Gen] {
				r.closes = true
			}
		case "stop":
			for _, some := range gens[e.W] {
				to = append(to, some...)
			}
		case "granted", "unlock":
			r := byToken[lock{e.W, e.Name, e.Token}]
			if r == nil {
				return fmt.Sprintf("no request has the token of %+v", e), len(all)
			}
			to = append(to, r)
		case "answer":
			if r != nil {
				r.token, r.granted = e.Token, e.Token != 0
				r.tokens, r.forever = e.Toks, e.TTL == int64(driver.Forever)
				// A server that is restored from a backup grants a token again.
				for i := range max(e.Toks, 1) {
					byToken[lock{e.W, e.Name, e.Token + uint64(i)}] = r
				}
				to = append(to, r)
			}
		case "unknown", "undo", "undone", "kept", "unsure", "freed", "leave":
			if r != nil {
				to = append(to, r)
			}
		}
		for _, r := range to {
			if refused := observe(r, e); refused != "" {
				return refused, len(all)
			}
		}
	}
	return "", len(all)
}

func TestRecordedHistoryIsAllowed(t *testing.T) {
	if *historyFile == "" {
		t.Skip("tests of the check give a history")
	}
	text, err := os.ReadFile(*historyFile)
	must.Succeed(t, err)
	var events []recorded
	for line := range strings.Lines(string(text)) {
		var e recorded
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		events = append(events, e)
	}
	refused, leases := replay(events)
	if refused != "" {
		t.Errorf("the machine does not allow:\n%s", refused)
	}
	if leases == 0 {
		t.Error("the history has no lease")
	}
	t.Logf("%d leases", leases)
}

// TestReplayRefusesForbiddenHistories requires that a replay finds each change of a history that the machine allows.
func TestReplayRefusesForbiddenHistories(t *testing.T) {
	e := func(kind string, token uint64) recorded {
		return recorded{W: "w", K: kind, Name: "n", ID: "x", Token: token, Toks: 2}
	}
	whole := []recorded{
		e("request", 0), e("answer", 7), e("granted", 7), e("kept", 7), e("unlock", 7), e("freed", 7), e("stop", 0),
	}
	if refused, _ := replay(whole); refused != "" {
		t.Fatalf("refused:\n%s", refused)
	}
	unlock := func(token uint64) recorded {
		e := e("unlock", token)
		e.Sticky = 1
		return e
	}
	again := []recorded{
		e("request", 0), e("answer", 7), e("granted", 7), unlock(7), e("granted", 8), e("kept", 7), unlock(8), e("freed", 7), e("stop", 0),
	}
	if refused, _ := replay(again); refused != "" {
		t.Fatalf("refused:\n%s", refused)
	}
	dropped := []recorded{
		e("request", 0), e("answer", 7), e("granted", 8), unlock(8), e("freed", 7), e("stop", 0),
	}
	if refused, _ := replay(dropped); refused != "" {
		t.Fatalf("refused:\n%s", refused)
	}
	without := func(i int) []recorded { return slices.Delete(slices.Clone(whole), i, i+1) }
	for name, events := range map[string][]recorded{
		"a release without an Unlock":                                  without(4),
		"a Locker that leaves a grant":                                 without(4)[:4:4],
		"an undo of a used grant":                                      slices.Insert(slices.Clone(whole), 5, e("undo", 0)),
		"a lock that is taken again":                                   slices.Insert(slices.Clone(whole), 5, e("granted", 7)),
		"a second holder":                                              slices.Insert(slices.Clone(whole), 5, e("granted", 8)),
		"a use after an unknown outcome":                               slices.Insert(slices.Clone(whole), 2, e("unknown", 0)),
		"a token that was not reserved":                                slices.Replace(slices.Clone(whole), 1, 3, e("answer", 7), e("granted", 9)),
		"a confirmation without a grant":                               {whole[0], e("kept", 7)},
		"an undo of a request that waits":                              {whole[0], e("undo", 0)},
		"a kept lock that is taken with its token":                     slices.Replace(slices.Clone(again), 4, 5, e("granted", 7)),
		"a kept lock that is taken with a token that was not reserved": slices.Insert(slices.Clone(again), 6, unlock(8), e("granted", 9)),
		"a kept lock that is released when it is taken":                slices.Insert(slices.Clone(again), 5, e("freed", 7)),
		"a second holder of a kept lock":                               slices.Delete(slices.Clone(again), 3, 4),
	} {
		if name == "a Locker that leaves a grant" {
			events = append(events, e("stop", 0))
		}
		if refused, _ := replay(events); refused == "" {
			t.Errorf("%s is allowed", name)
		}
	}
}
