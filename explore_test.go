//go:build !race

// The exploration has one goroutine, and would be slow.

package holdfast

import (
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/internal/story"
)

// # Exploration
//
// A world is two Lockers with three callers each, one name, a store as the contract of package driver declares
// it, and the calls on their way. The state machines of the lease and of the queue are the library's own. The
// world replaces what surrounds them: the mutex (one action is one step under it, and each effect after it is
// an action of its own), the goroutines, the timers, and the store. explore visits every order of the
// possible actions up to a depth, each state once, and checks the invariants in each.
//
// The store is a model in the forms of storeModels. Faults, of which a history has at most two: a request that is
// refused, applied without an answer, applied later, or applied twice; a caller that gives up; Close; Break; an Unlock
// that stops waiting for a swap.
//
// Not explored: shared locks and semaphores, MaxHold and Drain, a suspended machine, the fast path and TryLock, several
// names, hooks, the moment between the search for a Lock to join and the join. A pause or a delay of the queue may end at
// any time; that it ends in time is not explored.

var exploreDeeper = flag.Int("explore", 0, "explore every interleaving by this number of actions deeper")

const (
	lockers, callers, slots, calls, outcomes = 2, 3, 3, 6, 6

	exploreTick  = 10 * time.Millisecond
	exploreTTL   = 3 // ticks
	exploreKeep  = 2 // ticks, the MinHold of the first caller where callers have one
	exploreTicks = 4 // pass at most
	epoch        = time.Hour
)

// storeModel is what a store declares.
type storeModel struct {
	name                                string
	fifo, poll, reserves, swap, linger  bool
	provisional, ends, minHold, handoff bool
	sticky                              bool // callers have the option
}

// mCaller is a goroutine that locks the name once.
type mCaller struct {
	phase callerPhase
	lease int8
	hold  int32 // the number of handoffs before its hold
	token uint8
	ended bool // its context has ended
}

type callerPhase uint8

const (
	away callerPhase = iota
	waits
	serves // it has a holder and no Lock yet
	holds
	unlocks // the context is ending, and left follows
	releases
	gone
)

// mLease is a lease with what the Locker keeps for it.
type mLease struct {
	used, lost, timer, answered, broken bool
	s                                   leaseState
	age                                 int8  // of the send that counts
	stood                               int8  // for how many ticks the present holder has it, where callers have a MinHold
	token, tokens                       uint8 // of the grant
	locks                               uint8 // a bit for each caller with an open Lock
	gave                                int8  // how often it was given back
	undoes, returns                     bool  // the background has to undo it, or to release it
	keep                                int8  // for how many ticks a release leaves it standing
	offers                              bool  // its Unlock waits for the outcome of a swap
	watches, recalled                   bool  // a watch of the name runs, and it has reported a waiter
}

// todo are effects that follow a step, after the mutex.
type todo struct {
	do     effect
	lease  int8
	caller int8 // of the event, or -1
	locks  uint8
	cancel bool // ends the queue's request
	keep   int8
}

type mLocker struct {
	closed  bool
	exists  bool // the queue
	q       queueState
	line    [callers]int8 // the waiters, counted from 1
	qlease  int8          // -1 for none
	swap    int8          // the lease whose release is offered or under way, -1 for none
	callers [callers]mCaller
	leases  [slots]mLease
	todo    [outcomes]todo
}

type callKind uint8

const (
	noCall callKind = iota
	acquireCall
	swapCall
	releaseCall
	renewCall
	undoCall
)

type callPhase uint8

const (
	sent    callPhase = iota
	queued            // the store has an entry
	applied           // the store has done it
)

// mCall is a request to the store. Its client may have given it up.
type mCall struct {
	kind          callKind
	phase         callPhase
	l, lease, old int8
	age           int8
	ok            bool // the answer
	oldOK         bool // of the release of a swap
	oldTold       bool
	orphan        bool // its client does not wait for the answer
	cancelled     bool
	seen, queued  bool // a poll found the name held; the client has reported that
	background    bool
	keep          int8
	again         bool // it was applied twice
	provisional   bool
}

// grantID names a request: 0 for none.
type grantID int8

func idOf(l, lease int8) grantID { return grantID(l*slots+lease) + 1 }

type world struct {
	lockers [lockers]mLocker
	calls   [calls]mCall
	holder  grantID
	kept    bool
	expires int8 // ticks until the store ends the grant
	undone  uint16
	line    [calls]grantID // the store's entries
	token   uint8          // the last one that the store has given
	opened  uint8          // the largest token of a hold
	minHold int8           // for how many ticks the name is kept, and by which grant
	keeper  grantID
	faults  int8
	ticks   int8
}

// explorer explores one store.
type explorer struct {
	m      storeModel
	faults int8
	ticks  int8
	broken string // the invariant that the last action broke
}

func (x *explorer) breaks(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

func duration(ticks int8) time.Duration { return time.Duration(ticks) * exploreTick }

// performed are the effects that follow after the mutex, each in an action of its own.
const performed = endAll | endOne | endLimit | stopLinger | release | releaseLater | undo | renew

// step does what Locker.step does.
func (x *explorer) step(w *world, l, i int8, e event, c int8) effects {
	k := &w.lockers[l]
	s := &k.leases[i]
	f := facts{now: epoch, age: duration(s.age), storeKeeps: x.m.linger}
	switch e.kind {
	case joined:
		f.stale = k.callers[c].hold != s.s.handoffs
	case ticked:
		for c := range k.callers {
			f.used = f.used || s.locks>>c&1 != 0 && !k.callers[c].ended
		}
	case unlocked, left, dropped:
		f.next, f.nextValid = k.line[0] != 0 && !k.closed, (&settings{}).validFor(s.s.ttl)
		if x.m.sticky && k.line[0] == 0 && !k.closed && k.kept() < 0 {
			f.sticky = exploreTick
		}
	case closed:
		if x.m.minHold && s.locks&1 != 0 {
			f.minHold = duration(exploreKeep)
		}
	}
	hold, locks := s.s.handoffs, s.locks
	before := s.s
	next, fx := s.s.next(e, f)
	s.s = next
	if fx.cause != "" {
		s.lost = true
		if w.keeper == idOf(l, i) {
			w.minHold = 0
		}
	}
	if fx.do&link != 0 {
		s.locks |= 1 << c
	}
	if fx.do&unlink != 0 {
		s.locks &^= 1 << c
	}
	if fx.do&(release|undo) != 0 || fx.do&releaseLater != 0 && e.kind != releaseUnconfirmed {
		if s.gave++; s.gave > 1 {
			x.breaks("a lease is given back twice")
		}
	}
	if next.phase == ended && before.phase != ended && e.kind != denied && s.gave == 0 {
		x.breaks("a lease ends, and is neither released nor undone")
	}
	s.timer = s.timer || fx.do&linger != 0
	if next.phase == kept && before.phase == held {
		x.contextsEnded(w, l, i, hold)
		s.watches = true
	}
	if fx.do&take != 0 {
		x.contextsEnded(w, l, i, hold)
		s.locks, s.stood, s.timer = 0, 0, false
	}
	t := todo{do: fx.do & performed, lease: i, caller: c, locks: locks | s.locks, keep: int8((fx.keep + exploreTick - 1) / exploreTick)}
	if fx.do&handOff != 0 {
		x.contextsEnded(w, l, i, hold)
		if w.minHold > 0 {
			x.breaks("a handoff before the MinHold has passed")
		}
		s.locks = 0
		x.serve(w, l, i)
		_, t.cancel = x.stepQueue(w, l, waiterLeft, false)
	}
	if t.do&(release|releaseLater) != 0 && t.keep > 0 && !x.m.linger {
		x.breaks("a release with a MinHold, and the store keeps none")
	}
	if t.do != 0 || t.cancel {
		x.follow(k, t)
	}
	return fx
}

func (x *explorer) follow(k *mLocker, t todo) {
	for i := range k.todo {
		if k.todo[i] == (todo{}) {
			k.todo[i] = t
			return
		}
	}
	panic("no place for an outcome")
}

// contextsEnded checks that no Lock of a hold has a context that lives.
func (x *explorer) contextsEnded(w *world, l, i int8, hold int32) {
	for _, c := range w.lockers[l].callers {
		if c.lease == i && c.hold == hold && !c.ended && (c.phase == holds || c.phase == unlocks || c.phase == releases) {
			x.breaks("a lease is given up while a context of it lives")
		}
	}
}

// serve gives a lease to the head of the queue.
func (x *explorer) serve(w *world, l, i int8) {
	k := &w.lockers[l]
	s := &k.leases[i]
	if k.closed || s.s.phase != held {
		x.breaks("a waiter gets a lease after Close, or one that has ended")
	}
	c := &k.callers[k.pop(0)]
	*c = mCaller{phase: serves, lease: i, hold: s.s.handoffs}
	s.stood = 0
	c.token = uint8(tokenOf(&driver.Grant{Token: uint64(s.token), Tokens: int(s.tokens)}, s.s.handoffs))
}

// kept returns the lease that is kept, -1 for none.
func (k *mLocker) kept() int8 {
	for i := range k.leases {
		if k.leases[i].used && k.leases[i].s.phase == kept {
			return int8(i)
		}
	}
	return -1
}

// take does what Locker.takeKept does. The last caller requests another TTL. take reports whether the caller has the
// lease.
func (x *explorer) take(w *world, l, caller int8) bool {
	k := &w.lockers[l]
	i := k.kept()
	if i < 0 {
		return false
	}
	s := &k.leases[i]
	e := event{kind: taken, valid: (&settings{}).validFor(s.s.ttl)}
	if caller == callers-1 {
		e.kind = recalled
	}
	if fx := x.step(w, l, i, e, -1); fx.do&take == 0 {
		return false
	}
	k.callers[caller] = mCaller{phase: serves, lease: i, hold: s.s.handoffs}
	k.callers[caller].token = uint8(tokenOf(&driver.Grant{Token: uint64(s.token), Tokens: int(s.tokens)}, s.s.handoffs))
	return true
}

// pop removes the waiter at a place of the queue.
func (k *mLocker) pop(at int) int8 {
	c := k.line[at] - 1
	copy(k.line[at:], k.line[at+1:])
	k.line[callers-1] = 0
	return c
}

// stepQueue does what Locker.stepQueue does.
func (x *explorer) stepQueue(w *world, l int8, e queueEventKind, usable bool) (do queueEffect, cancel bool) {
	k := &w.lockers[l]
	f := queueFacts{waits: k.line[0] != 0, usable: usable, closed: k.closed}
	if k.qlease >= 0 {
		can := func(c int8) bool { return x.m.swap && !x.m.poll && !k.closed && c != 0 && (x.m.fifo || x.m.reserves) }
		f.fits, f.answered = f.waits, k.leases[k.qlease].answered
		switch e {
		case requestGranted:
			f.swaps = f.waits && can(k.line[1])
		case releaseBegan:
			f.swaps = can(k.line[0])
		case requestDue:
			f.swaps = k.swap >= 0 && can(k.line[0])
		}
	}
	k.q, do = k.q.next(e, f)
	if do&serveHead != 0 {
		x.serve(w, l, k.qlease)
	}
	for at := 0; do&(failHead|failAll) != 0 && k.line[0] != 0 && (at == 0 || do&failAll != 0); at++ {
		k.callers[k.pop(0)].phase = gone
	}
	if do&offerSwap != 0 {
		k.swap = k.qlease
	}
	if do&finish != 0 {
		if k.line[0] != 0 {
			x.breaks("a queue ends and a waiter is left")
		}
		k.exists, k.q, k.qlease = false, queueState{}, -1
	}
	return do, do&cancelRequest != 0
}

// send puts a call on its way.
func (w *world) send(c mCall) {
	for i := range w.calls {
		if w.calls[i].kind == noCall {
			w.calls[i] = c
			return
		}
	}
	panic("no place for a call")
}

// action is one step of one actor; a and b say which.
type action struct {
	kind actionKind
	a, b int8
}

type actionKind uint8

const (
	actPerform actionKind = iota
	actAnswer
	actSwapAnswer
	actTold
	actWithdraw
	actGoOn
	actNotify
	actLeft
	actOpen
	actRequest
	actApply
	actPush
	actUnlock
	actLingered
	actTicked
	actBackground
	actDrop
	actRecall
	actKeepOver
	actTime
	// The rest happens only during the exploration.
	actJoin
	actReenter
	actCheck
	// The rest are faults.
	actCancel
	actClose
	actUnknown
	actRefuse
	actTwice
	actBreak
	actGiveUpSwap
	actKinds
)

// ranges are the numbers of values of a and b.
var ranges = [actKinds][2]int8{
	actPerform: {lockers, outcomes}, actAnswer: {calls, 1}, actSwapAnswer: {calls, 1}, actTold: {calls, 1}, actWithdraw: {calls, 1},
	actGoOn: {lockers, slots}, actNotify: {lockers, slots}, actLeft: {lockers, callers}, actOpen: {lockers, callers},
	actRequest: {lockers, 1}, actApply: {calls, 1}, actPush: {calls, 1}, actUnlock: {lockers, callers},
	actLingered: {lockers, slots}, actTicked: {lockers, slots}, actBackground: {lockers, slots}, actDrop: {calls, 1},
	actRecall: {lockers, slots}, actKeepOver: {lockers, slots},
	actTime: {1, 1}, actJoin: {lockers, callers}, actReenter: {lockers, callers}, actCheck: {lockers, callers},
	actCancel: {lockers, callers}, actClose: {lockers, 1}, actUnknown: {calls, 1}, actRefuse: {calls, 1},
	actTwice: {calls, 1}, actBreak: {1, 1}, actGiveUpSwap: {lockers, slots},
}

// free reports whether another call can be on its way.
func (w *world) free() bool { return w.calls[0].kind == noCall }

// room reports whether there is room for the outcomes and the call of an action of a Locker.
func (w *world) room(l int8) bool {
	return w.free() && w.lockers[l].room(2)
}

// room reports whether there is room for n outcomes.
func (k *mLocker) room(n int) bool {
	for _, t := range k.todo {
		if t == (todo{}) {
			n--
		}
	}
	return n <= 0
}

// Do carries out an action. It reports whether the action was possible; if not, w is unchanged.
func (x *explorer) Do(w *world, a action) bool {
	if a.kind >= actCancel && w.faults >= x.faults || !x.act(w, a) {
		return false
	}
	if a.kind >= actCancel {
		w.faults++
	}
	w.settle()
	return true
}

func (x *explorer) act(w *world, a action) bool {
	switch a.kind {
	case actAnswer, actSwapAnswer, actTold, actWithdraw, actApply, actPush, actDrop, actUnknown, actRefuse, actTwice:
		c := &w.calls[a.a]
		return c.kind != noCall && x.doCall(w, a.kind, c)
	case actTime:
		return x.time(w)
	case actBreak:
		if !x.m.ends || w.holder == 0 || w.kept {
			return false
		}
		w.of(w.holder).broken = true
		w.holder = 0
		return true
	case actPerform:
		return x.perform(w, a.a, &w.lockers[a.a].todo[a.b])
	}
	if !w.room(a.a) {
		return false
	}
	k := &w.lockers[a.a]
	switch a.kind {
	case actRequest:
		return x.request(w, a.a)
	case actClose:
		if k.closed || !k.room(slots+1) {
			return false
		}
		k.closed = true
		for i := range k.leases {
			s := &k.leases[i]
			keeps := x.m.minHold && s.s.phase == held && s.locks&1 != 0 && duration(s.age) < s.s.valid
			if s.used && (s.s.alive() || s.s.phase == lost) {
				x.step(w, a.a, int8(i), event{kind: closed}, -1)
			}
			if keeps {
				w.keep(s, idOf(a.a, int8(i)))
			}
		}
		if k.exists {
			if _, cancel := x.stepQueue(w, a.a, lockerClosed, false); cancel {
				x.follow(k, todo{cancel: true, caller: -1})
			}
		}
		return true
	case actGoOn, actNotify, actLingered, actTicked, actBackground, actGiveUpSwap, actRecall, actKeepOver:
		return k.leases[a.b].used && x.doLease(w, a.kind, a.a, a.b)
	}
	return x.doCaller(w, a.kind, a.a, a.b)
}

func (w *world) of(id grantID) *mLease {
	return &w.lockers[int8(id-1)/slots].leases[int8(id-1)%slots]
}

// doCaller carries out an action of a caller.
func (x *explorer) doCaller(w *world, kind actionKind, l, i int8) bool {
	k := &w.lockers[l]
	c := &k.callers[i]
	switch kind {
	case actJoin:
		if c.phase != away || k.closed || i > 0 && k.callers[i-1].phase == away {
			return false
		}
		if x.take(w, l, i) {
			return true
		}
		if !k.exists {
			k.exists, k.q = true, queueState{}
		}
		c.phase = waits
		for at := range k.line {
			if k.line[at] == 0 {
				k.line[at] = i + 1
				break
			}
		}
		x.stepQueue(w, l, waiterJoined, false)
	case actReenter:
		outer := &k.callers[max(i-1, 0)]
		if c.phase != away || i == 0 || outer.phase != holds && outer.phase != unlocks || outer.ended || x.m.minHold {
			return false
		}
		*c = mCaller{phase: holds, lease: outer.lease, hold: outer.hold, token: outer.token}
		if fx := x.step(w, l, outer.lease, event{kind: joined}, i); fx.do&endOne != 0 {
			c.phase = gone
		}
	case actCancel:
		switch c.phase {
		case waits:
			for at := range k.line {
				if k.line[at] == i+1 {
					k.pop(at)
					break
				}
			}
			c.phase = gone
			if _, cancel := x.stepQueue(w, l, waiterLeft, false); cancel {
				x.follow(k, todo{cancel: true, caller: -1})
			}
		case serves:
			lease := c.lease
			c.phase = gone
			x.step(w, l, lease, event{kind: dropped}, i)
		default:
			return false
		}
	case actOpen:
		if c.phase != serves {
			return false
		}
		c.phase = holds
		fx := x.step(w, l, c.lease, event{kind: opened}, i)
		c.ended = fx.do&endOne != 0 // the caller gets it when it has ended
		if x.live(w, l, i) {
			if c.token < w.opened || c.token == w.opened && (x.m.reserves || c.hold == 0) {
				x.breaks("token %d after token %d", c.token, w.opened)
			}
			w.opened = max(w.opened, c.token)
		}
	case actUnlock:
		if c.phase != holds {
			return false
		}
		e := event{kind: unlocked}
		s := &k.leases[c.lease]
		if x.m.minHold && i == 0 {
			e.keep = duration(exploreKeep)
		}
		c.phase = unlocks
		fx := x.step(w, l, c.lease, e, i)
		if e.keep > 0 && !s.lost {
			w.keep(s, idOf(l, c.lease))
		}
		if fx.final {
			c.phase = releases
		}
	case actLeft:
		if c.phase != unlocks || k.follows(i) {
			return false
		}
		c.phase = releases
		x.step(w, l, c.lease, event{kind: left}, i)
	case actCheck:
		s := &k.leases[c.lease]
		if c.phase != holds || c.ended || s.s.phase == held && duration(s.age) < s.s.valid {
			return false
		}
		x.step(w, l, c.lease, event{kind: checked}, i)
		if !s.lost {
			x.breaks("a reader finds no validity and no loss")
		}
		c.ended = true
	}
	return true
}

// keep begins what is left of the MinHold of a lease.
func (w *world) keep(s *mLease, id grantID) {
	if rest := exploreKeep - s.stood; rest > 0 {
		w.minHold, w.keeper = rest, id
	}
}

// follows reports whether effects of an event of a caller are still to be carried out.
func (k *mLocker) follows(c int8) bool {
	for _, t := range k.todo {
		if t != (todo{}) && t.caller == c {
			return true
		}
	}
	return false
}

// request does what Locker.nextRequest does. A delay or a pause may end at any time.
func (x *explorer) request(w *world, l int8) bool {
	k := &w.lockers[l]
	free := int8(-1)
	for i := range k.leases {
		if !k.leases[i].used {
			free = int8(i)
		}
	}
	if !k.exists || k.q.pending() || free < 0 {
		return false
	}
	do, _ := x.stepQueue(w, l, requestDue, false)
	if do&returnSwap != 0 {
		k.swap = -1 // its Unlock goes on
	}
	if do&request == 0 {
		return true
	}
	s := &k.leases[free]
	*s = mLease{used: true, tokens: 1}
	if x.m.reserves && (k.line[1] != 0 || x.m.sticky) {
		s.tokens = 3
	}
	k.qlease = free
	c := mCall{kind: acquireCall, l: l, lease: free, old: -1}
	if k.q.phase == swapping {
		c.kind, c.old = swapCall, k.swap
	}
	w.send(c)
	return true
}

// doLease carries out an action about a lease.
func (x *explorer) doLease(w *world, kind actionKind, l, i int8) bool {
	k := &w.lockers[l]
	s := &k.leases[i]
	switch kind {
	case actGoOn: // the Unlock that offered a swap sends a release of its own
		if !s.offers || s.s.phase != releasing || k.swap == i {
			return false
		}
		s.offers = false
		w.send(mCall{kind: releaseCall, l: l, lease: i})
	case actGiveUpSwap: // the request timeout of the Unlock is over
		if !s.offers || s.s.phase != releasing || k.swap != i {
			return false
		}
		s.offers = false
		x.step(w, l, i, event{kind: releaseUnconfirmed}, -1)
	case actNotify:
		if !s.broken {
			return false
		}
		s.broken = false
		x.step(w, l, i, event{kind: revoke, cause: driver.CauseTaken}, -1)
	case actLingered:
		if !s.timer || s.s.phase != lingering || epoch-s.s.since < s.s.keep {
			return false
		}
		s.timer = false
		x.step(w, l, i, event{kind: lingered}, -1)
	case actRecall: // the watch finds a waiter of the other Locker
		if !s.watches || s.recalled || !s.s.alive() || !w.waitsBeside(l) {
			return false
		}
		s.recalled = true
		x.step(w, l, i, event{kind: recalled}, -1)
	case actKeepOver: // only the watch recalls for a waiter
		if !s.timer || s.s.phase != kept || w.lockers[1-l].waits() {
			return false
		}
		x.step(w, l, i, event{kind: recalled}, -1)
	case actTicked:
		due := s.s.due(&facts{now: epoch, age: duration(s.age), used: true})
		if !s.s.alive() || due > epoch {
			return false
		}
		before := *s
		x.step(w, l, i, event{kind: ticked}, -1)
		return before != *s
	case actBackground:
		for _, c := range w.calls {
			if c.kind != noCall && c.background && idOf(c.l, c.lease) == idOf(l, i) {
				return false
			}
			// Undo is called after the request has returned to the client.
			if (c.kind == acquireCall || c.kind == swapCall) && !c.orphan && idOf(c.l, c.lease) == idOf(l, i) {
				return false
			}
		}
		switch {
		case s.undoes:
			w.send(mCall{kind: undoCall, l: l, lease: i, background: true})
		case s.returns:
			w.send(mCall{kind: releaseCall, l: l, lease: i, background: true, keep: s.keep})
		default:
			return false
		}
	}
	return true
}

// waitsBeside reports whether the store shows a waiter of the other Locker.
func (w *world) waitsBeside(l int8) bool {
	for _, id := range w.line {
		if id != 0 && int8(id-1)/slots != l {
			return true
		}
	}
	return false
}

// waits reports whether a caller waits.
func (k *mLocker) waits() bool { return k.line[0] != 0 }

// perform carries out the next effect of an outcome.
func (x *explorer) perform(w *world, l int8, t *todo) bool {
	k := &w.lockers[l]
	if *t == (todo{}) {
		return false
	}
	s := &k.leases[t.lease]
	hold := s.s.handoffs
	switch {
	case t.do&endAll != 0:
		for c := range k.callers {
			if t.locks>>c&1 != 0 {
				k.callers[c].ended = true
			}
		}
		t.do &^= endAll
	case t.do&(endOne|endLimit) != 0:
		k.callers[t.caller].ended = true
		t.do &^= endOne | endLimit
	case t.do&stopLinger != 0:
		s.timer = false
		t.do &^= stopLinger
	case t.do&renew != 0:
		if !w.free() {
			return false
		}
		w.send(mCall{kind: renewCall, l: l, lease: t.lease})
		t.do &^= renew
	case t.cancel:
		for i := range w.calls {
			if c := &w.calls[i]; (c.kind == acquireCall || c.kind == swapCall) && c.l == l && c.lease == k.qlease && !c.orphan {
				if c.kind == swapCall && !c.oldTold {
					x.breaks("a request is cancelled before the release that goes with it has its outcome")
				}
				c.cancelled = true
			}
		}
		t.cancel = false
	case t.do&release != 0:
		if !w.free() {
			return false
		}
		x.contextsEnded(w, l, t.lease, hold)
		t.do &^= release
		s.keep = t.keep
		if t.keep == 0 && x.m.swap && k.exists && k.qlease == t.lease {
			if do, _ := x.stepQueue(w, l, releaseBegan, false); do&offerSwap != 0 {
				s.offers = true
				break
			}
		}
		w.send(mCall{kind: releaseCall, l: l, lease: t.lease, keep: t.keep})
	case t.do&releaseLater != 0:
		x.contextsEnded(w, l, t.lease, hold)
		s.returns, s.keep = true, t.keep
		t.do &^= releaseLater
	case t.do&undo != 0:
		s.undoes = true
		t.do &^= undo
	}
	if t.do == 0 && !t.cancel {
		*t = todo{}
	}
	return true
}

// live reports whether the context of a caller's Lock lives: it was not ended, and Err finds no loss.
func (x *explorer) live(w *world, l, i int8) bool {
	c := &w.lockers[l].callers[i]
	s := &w.lockers[l].leases[c.lease]
	return (c.phase == holds || c.phase == unlocks) && !c.ended && c.hold == s.s.handoffs &&
		s.s.phase == held && duration(s.age) < s.s.valid && !s.broken
}

// doCall carries out an action about a call: at the store, or with its answer.
func (x *explorer) doCall(w *world, kind actionKind, c *mCall) bool {
	request := c.kind == acquireCall || c.kind == swapCall
	id := idOf(c.l, c.lease)
	s := &w.lockers[c.l].leases[c.lease]
	switch kind {
	case actApply:
		if c.phase != sent || x.m.poll && c.seen && w.holder != 0 {
			return false
		}
		x.apply(w, c)
		return true
	case actPush: // the store grants to an entry, when the client has claimed it
		if c.phase != queued || w.holder != 0 || x.m.fifo && w.line[0] != id {
			return false
		}
		w.leaveLine(id)
		c.age = 0
		x.grant(w, c)
		if x.m.provisional {
			c.age, w.expires, c.provisional = 1, 1, true
		}
		return true
	case actDrop:
		if !c.orphan {
			return false
		}
		*c = mCall{}
		return true
	case actTwice: // a copy of the call arrives once more
		if !c.orphan || c.phase != applied || c.again {
			return false
		}
		c.phase, c.again = sent, true
		return true
	}
	if c.orphan || !w.lockers[c.l].room(3) {
		return false
	}
	switch kind {
	case actTold: // the client hears that it is queued
		if !request || c.phase != queued && !c.seen || c.queued {
			return false
		}
		c.queued, s.answered = true, true
		if w.lockers[c.l].qlease == c.lease {
			x.stepQueue(w, c.l, storeAnswered, false)
		}
	case actSwapAnswer:
		if c.kind != swapCall || c.oldTold || c.phase == sent {
			return false
		}
		x.endSwap(w, c, map[bool]eventKind{true: released, false: releaseDenied}[c.oldOK])
	case actWithdraw: // the wait ends because its context has ended
		if !request || !c.cancelled || c.phase == applied || c.phase == sent && c.kind == swapCall {
			return false
		}
		if c.phase == sent { // it may still arrive
			return x.unknown(w, c)
		}
		w.leaveLine(id)
		x.failed(w, c, denied, requestFailed)
	case actUnknown:
		return x.unknown(w, c)
	case actRefuse: // nothing was done
		if c.phase != sent || !request {
			return false
		}
		if c.kind == swapCall {
			x.endSwap(w, c, releaseImpossible)
		}
		x.failed(w, c, denied, requestRefused)
	case actAnswer:
		if c.phase != applied || c.kind == swapCall && !c.oldTold {
			return false
		}
		x.answer(w, c)
	}
	return true
}

// endSwap reports the outcome of the release of a swap to the queue, and to the Unlock if it still waits.
// releaseImpossible stands for a release that was not sent.
func (x *explorer) endSwap(w *world, c *mCall, outcome eventKind) {
	k := &w.lockers[c.l]
	c.oldTold = true
	_, cancel := x.stepQueue(w, c.l, swapAnswered, false)
	if cancel {
		x.follow(k, todo{cancel: true, caller: -1})
	}
	if s := &k.leases[c.old]; outcome != releaseImpossible && s.offers {
		s.offers = false
		x.step(w, c.l, c.old, event{kind: outcome}, -1)
	}
	k.swap = -1
}

// unknown takes the answer of a call away. The call may still arrive.
func (x *explorer) unknown(w *world, c *mCall) bool {
	c.orphan = true
	switch c.kind {
	case swapCall:
		if !c.oldTold {
			x.endSwap(w, c, releaseUnconfirmed)
		}
		x.failed(w, c, unanswered, requestFailed)
	case acquireCall:
		x.failed(w, c, unanswered, requestFailed)
	case releaseCall:
		if !c.background {
			x.step(w, c.l, c.lease, event{kind: releaseUnconfirmed, keep: duration(c.keep)}, -1)
		}
		c.background = false
	case renewCall:
		x.step(w, c.l, c.lease, event{kind: renewalFailed, keep: exploreTick}, -1)
	case undoCall:
		c.background = false
	}
	return true
}

// failed does what Locker.endRequest does.
func (x *explorer) failed(w *world, c *mCall, e eventKind, q queueEventKind) {
	l, lease := c.l, c.lease
	if !c.orphan {
		*c = mCall{}
	}
	x.step(w, l, lease, event{kind: e}, -1)
	if w.lockers[l].qlease == lease {
		x.stepQueue(w, l, q, false)
	}
}

// apply is what the store does with a call.
func (x *explorer) apply(w *world, c *mCall) {
	id := idOf(c.l, c.lease)
	if c.kind == swapCall && !c.again {
		c.oldOK = w.holder == idOf(c.l, c.old) && !w.kept
		if c.oldOK {
			w.holder = 0
		}
	}
	c.phase = applied
	switch c.kind {
	case acquireCall, swapCall:
		waiting := w.line[0] != 0
		switch {
		case w.undone>>id&1 != 0 || c.again:
			c.ok = false
		case w.holder == 0 && !(x.m.fifo && waiting):
			x.grant(w, c)
		case x.m.poll:
			c.phase, c.seen = sent, true
		default:
			c.phase = queued
			for at := range w.line {
				if w.line[at] == 0 {
					w.line[at] = id
					break
				}
			}
		}
	case releaseCall:
		c.ok = w.holder == id && !w.kept
		switch {
		case c.ok && c.keep > 0:
			w.kept, w.expires = true, c.keep
		case c.ok:
			w.holder = 0
		}
	case renewCall:
		if c.ok = w.holder == id && !w.kept; c.ok {
			w.expires = exploreTTL
		}
	case undoCall:
		w.undone |= 1 << id
		w.leaveLine(id)
		if w.holder == id && !w.kept {
			w.holder = 0
		}
		for i := range w.calls {
			if r := &w.calls[i]; r.kind == acquireCall || r.kind == swapCall {
				if idOf(r.l, r.lease) == id && r.orphan {
					r.phase, r.ok = applied, false
				}
			}
		}
		c.ok = true
	}
}

// leaveLine removes an entry.
func (w *world) leaveLine(id grantID) {
	for at := range w.line {
		if w.line[at] == id {
			copy(w.line[at:], w.line[at+1:])
			w.line[calls-1] = 0
		}
	}
}

// grant grants a request.
func (x *explorer) grant(w *world, c *mCall) {
	id := idOf(c.l, c.lease)
	if w.minHold > 0 && w.keeper != id {
		x.breaks("a grant before the MinHold of another has passed")
	}
	s := w.of(id)
	c.phase, c.ok = applied, true
	w.holder, w.kept, w.expires = id, false, exploreTTL
	s.token = w.token + 1
	w.token += s.tokens
}

// answer gives the answer of a call to its client.
func (x *explorer) answer(w *world, c *mCall) {
	k := &w.lockers[c.l]
	i := c.lease
	s := &k.leases[i]
	was := *c
	*c = mCall{}
	e := event{ttl: duration(exploreTTL), sent: epoch - duration(was.age)}
	switch was.kind {
	case acquireCall, swapCall:
		if !was.ok {
			*c = was
			x.failed(w, c, denied, requestFailed)
			return
		}
		e.kind, e.provisional = granted, was.provisional
		if was.provisional {
			e.ttl = duration(exploreTTL - 1)
		}
		e.valid = (&settings{}).validFor(e.ttl)
		s.age = was.age
		switch {
		case x.m.reserves:
			e.spare, e.within = int32(s.tokens)-1, driver.HandoffTime
		case x.m.handoff:
			e.spare = 2
		}
		if j := k.kept(); j >= 0 { // the store has ended it
			x.step(w, was.l, j, event{kind: revoke, cause: driver.CauseGone}, -1)
		}
		x.step(w, was.l, i, e, -1)
		if do, _ := x.stepQueue(w, was.l, requestGranted, s.s.phase == held); do&giveBack != 0 {
			x.step(w, was.l, i, event{kind: dropped}, -1)
		}
	case releaseCall:
		switch {
		case was.background:
			s.returns = false
		case was.ok:
			x.step(w, was.l, i, event{kind: released}, -1)
		default:
			x.step(w, was.l, i, event{kind: releaseDenied}, -1)
		}
	case renewCall:
		switch {
		case !was.ok:
			x.step(w, was.l, i, event{kind: revoke, cause: driver.CauseGone}, -1)
		case s.s.alive():
			s.age = was.age
			e.kind, e.valid = renewed, (&settings{}).validFor(e.ttl)
			x.step(w, was.l, i, e, -1)
		}
	case undoCall:
		s.undoes = false
	}
}

// time lets a tick pass everywhere. Every process may stand still meanwhile.
func (x *explorer) time(w *world) bool {
	if w.ticks >= x.ticks {
		return false
	}
	w.ticks++
	for l := range w.lockers {
		for i := range w.lockers[l].leases {
			s := &w.lockers[l].leases[i]
			if !s.used {
				continue
			}
			s.age, s.keep = min(s.age+1, exploreTTL+1), max(s.keep-1, 0)
			if x.m.minHold {
				s.stood = min(s.stood+1, exploreKeep)
			}
			for _, at := range []*time.Duration{&s.s.renewAt, &s.s.since, &s.s.handoffUntil} {
				if *at != 0 {
					*at = max(*at-exploreTick, epoch-duration(exploreTTL+1))
				}
			}
		}
	}
	for i := range w.calls {
		if w.calls[i].kind != noCall {
			w.calls[i].age = min(w.calls[i].age+1, exploreTTL+1)
		}
	}
	if w.holder != 0 {
		if w.expires--; w.expires <= 0 {
			if !w.kept && w.keeper == w.holder {
				w.minHold = 0 // the process did not renew it
			}
			w.holder, w.kept = 0, false
		}
	}
	w.minHold = max(w.minHold-1, 0)
	return true
}

// settle removes what has no further effect, so that equal states look equal.
func (w *world) settle() {
	if w.minHold == 0 {
		w.keeper = 0
	}
	if w.holder == 0 {
		w.expires = 0
	}
	for l := range w.lockers {
		k := &w.lockers[l]
		for c := range k.callers {
			a := &k.callers[c]
			s := &k.leases[a.lease]
			if a.phase == releases && !k.follows(int8(c)) && (s.s.phase != releasing || s.s.handoffs != a.hold || !s.used) {
				a.phase = gone
			}
			if a.phase == gone {
				*a = mCaller{phase: gone}
			}
		}
		for i := range k.leases {
			if s := &k.leases[i]; s.used && s.s.phase == ended && !w.refers(int8(l), int8(i)) {
				*s = mLease{}
				w.undone &^= 1 << idOf(int8(l), int8(i))
				if k.qlease == int8(i) {
					k.qlease = -1
				}
			}
		}
	}
	// The order of the calls has no meaning.
	for i := 1; i < calls; i++ {
		for j := i; j > 0 && less(&w.calls[j], &w.calls[j-1]); j-- {
			w.calls[j], w.calls[j-1] = w.calls[j-1], w.calls[j]
		}
	}
}

func less(a, b *mCall) bool {
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	return idOf(a.l, a.lease) < idOf(b.l, b.lease)
}

// refers reports whether anything still refers to a lease that has ended.
func (w *world) refers(l, i int8) bool {
	k := &w.lockers[l]
	id := idOf(l, i)
	s := &k.leases[i]
	if s.undoes || s.returns || s.timer || s.broken || s.offers || w.holder == id || w.keeper == id || k.swap == i || k.qlease == i && k.q.phase != idle && k.q.phase != pausing {
		return true
	}
	for _, c := range w.calls {
		if c.kind != noCall && c.l == l && (c.lease == i || c.kind == swapCall && c.old == i && !c.oldTold) {
			return true
		}
	}
	for _, t := range k.todo {
		if t != (todo{}) && t.lease == i && !(t.do == 0 && t.cancel) {
			return true
		}
	}
	for _, c := range k.callers {
		if c.lease == i && c.phase != away && c.phase != waits && c.phase != gone {
			return true
		}
	}
	for _, e := range w.line {
		if e == id {
			return true
		}
	}
	return false
}

// Broken checks the invariants that hold in every state.
func (x *explorer) Broken(w *world) string {
	var first *mLease
	for l := range w.lockers {
		for i := range w.lockers[l].callers {
			if !x.live(w, int8(l), int8(i)) {
				continue
			}
			s := &w.lockers[l].leases[w.lockers[l].callers[i].lease]
			if first != nil && first != s {
				x.breaks("two contexts live")
			}
			first = s
			if w.holder == 0 || w.of(w.holder) != s {
				x.breaks("a context lives, and the store has ended its lease")
			}
		}
	}
	if w.holder != 0 && !w.kept && w.of(w.holder).s.phase == ended && !w.removes(w.holder) {
		x.breaks("a lease that has ended is left at the store")
	}
	broken := x.broken
	x.broken = ""
	return broken
}

// removes reports whether anything under way may still remove the grant.
func (w *world) removes(id grantID) bool {
	s, l := w.of(id), int8(id-1)/slots
	for _, c := range w.calls {
		if c.kind != noCall && c.l == l && (idOf(l, c.lease) == id || c.kind == swapCall && idOf(l, c.old) == id) {
			return true
		}
	}
	for _, t := range w.lockers[l].todo {
		if t.do&(release|releaseLater|undo) != 0 && idOf(l, t.lease) == id {
			return true
		}
	}
	return s.undoes || s.returns
}

// Quiet reports whether no caller waits and nothing is left at the store or on its way.
func (x *explorer) Quiet(w *world) bool {
	for l := range w.lockers {
		k := &w.lockers[l]
		for _, c := range k.callers {
			if c.phase != away && c.phase != gone {
				return false
			}
		}
		for i := range k.leases {
			if k.leases[i].used {
				return false
			}
		}
		if k.exists || k.todo != [outcomes]todo{} {
			return false
		}
	}
	return w.holder == 0 && w.line == [calls]grantID{} && w.calls == [calls]mCall{}
}

// settling is the explorer on the way to a quiet state: time passes.
type settling struct{ *explorer }

func (x settling) Do(w *world, a action) bool {
	x.explorer.ticks = w.ticks + 1
	defer func() { x.explorer.ticks = exploreTicks }()
	return x.explorer.Do(w, a)
}

// mirrored returns the world with the Lockers exchanged. It is the same world to the invariants.
func (w *world) mirrored() world {
	m := *w
	m.lockers[0], m.lockers[1] = w.lockers[1], w.lockers[0]
	flip := func(id grantID) grantID {
		if id == 0 {
			return 0
		}
		return (id-1+slots)%(2*slots) + 1
	}
	m.holder, m.keeper = flip(w.holder), flip(w.keeper)
	m.undone = 0
	for id := grantID(1); id <= 2*slots; id++ {
		m.undone |= w.undone >> id & 1 << flip(id)
	}
	for i := range m.line {
		m.line[i] = flip(w.line[i])
	}
	for i := range m.calls {
		if m.calls[i].kind != noCall {
			m.calls[i].l = 1 - m.calls[i].l
		}
	}
	m.settle()
	return m
}

var exploreSeed = maphash.MakeSeed()

// Hash returns the same number for both of two worlds that differ by an exchange of the Lockers.
func (x *explorer) Hash(w *world) uint64 {
	m := w.mirrored()
	return min(maphash.Comparable(exploreSeed, *w), maphash.Comparable(exploreSeed, m))
}

func newWorld() (w world) {
	for l := range w.lockers {
		w.lockers[l].qlease, w.lockers[l].swap = -1, -1
	}
	return w
}

var storeModels = []storeModel{
	{name: "in order, push, reserved tokens", fifo: true, reserves: true, linger: true, ends: true},
	{name: "in order, push, swap, provisional", fifo: true, reserves: true, swap: true, provisional: true, linger: true},
	{name: "in order, push, swap alone", fifo: true, swap: true},
	{name: "in order, push, swap, handoffs", fifo: true, swap: true, handoff: true, ends: true},
	{name: "any order, push", ends: true},
	{name: "any order, poll, reserved tokens", poll: true, reserves: true},
	{name: "a MinHold that the store keeps", fifo: true, linger: true, minHold: true},
	{name: "a MinHold that the process keeps", fifo: true, minHold: true, handoff: true},
	{name: "kept leases", fifo: true, reserves: true, linger: true, ends: true, sticky: true},
	{name: "kept leases, swap, provisional", fifo: true, reserves: true, swap: true, provisional: true, linger: true, sticky: true},
}

// starts are the states from which the exploration starts.
var starts = []struct {
	name  string
	depth int
	path  []action
	kept  bool // only where leases are kept
}{
	{"free", 9, nil, false},
	{"held, two callers and another process wait", 6, []action{
		{actJoin, 0, 0}, {actRequest, 0, 0}, {actApply, calls - 1, 0}, {actAnswer, calls - 1, 0}, {actOpen, 0, 0},
		{actJoin, 0, 1}, {actRequest, 0, 0}, {actApply, calls - 1, 0}, {actJoin, 1, 0}, {actRequest, 1, 0}, {actApply, calls - 1, 0},
	}, false},
	{"granted while another caller waits", 6, []action{
		{actJoin, 0, 0}, {actJoin, 0, 1}, {actRequest, 0, 0}, {actApply, calls - 1, 0}, {actAnswer, calls - 1, 0}, {actOpen, 0, 0},
		{actJoin, 1, 0}, {actRequest, 1, 0}, {actApply, calls - 1, 0},
	}, false},
	{"renewed, and a process waits", 6, []action{
		{actJoin, 0, 0}, {actRequest, 0, 0}, {actApply, calls - 1, 0}, {actAnswer, calls - 1, 0}, {actOpen, 0, 0},
		{actJoin, 1, 0}, {actRequest, 1, 0}, {actApply, calls - 1, 0},
		{actTime, 0, 0}, {actTicked, 0, slots - 1}, {actPerform, 0, 0}, {actApply, calls - 1, 0},
	}, false},
	{"kept, and a process waits", 6, []action{
		{actJoin, 0, 0}, {actRequest, 0, 0}, {actApply, calls - 1, 0}, {actAnswer, calls - 1, 0}, {actOpen, 0, 0},
		{actUnlock, 0, 0}, {actPerform, 0, 0}, {actLeft, 0, 0},
		{actJoin, 1, 0}, {actRequest, 1, 0}, {actApply, calls - 1, 0},
	}, true},
	{"a process waits behind another", 6, []action{
		{actJoin, 0, 0}, {actRequest, 0, 0}, {actApply, calls - 1, 0}, {actAnswer, calls - 1, 0}, {actOpen, 0, 0},
		{actJoin, 1, 0}, {actRequest, 1, 0}, {actApply, calls - 1, 0},
	}, false},
}

// play plays a path, and calls visit before and after each action.
func (x *explorer) play(t *testing.T, path []action, visit func(a action, before, after *world)) world {
	w := newWorld()
	for _, a := range path {
		before := w
		if !x.Do(&w, a) {
			t.Fatalf("%v is not possible", a)
		}
		if visit != nil {
			visit(a, &before, &w)
		}
	}
	return w
}

// words describe the actions.
var words = [actKinds]string{
	actAnswer: "the answer", actSwapAnswer: "the answer to the release", actTold: "the name is held", actWithdraw: "withdrawn",
	actGoOn: "release not sent by swap", actNotify: "hears of the end", actLeft: "Unlock goes on", actOpen: "has the Lock",
	actRequest: "request of the head", actApply: "done", actPush: "granted to the entry", actUnlock: "Unlock",
	actLingered: "MinHold over", actTicked: "lease due", actBackground: "background sends", actDrop: "lost",
	actRecall: "a waiter is seen", actKeepOver: "kept for long enough",
	actTime: "10 ms pass", actJoin: "Lock", actReenter: "Lock, reentrant", actCheck: "Err reads the clock",
	actCancel: "gives up", actClose: "Close", actUnknown: "no answer", actRefuse: "refused", actTwice: "arrives again",
	actBreak: "Break", actGiveUpSwap: "no answer in time",
}

var callWords = [...]string{acquireCall: "request", swapCall: "swap", releaseCall: "release", renewCall: "renewal", undoCall: "undo"}

// story draws a path: the Lockers are the clients, and a thick line marks a context that lives.
func (x *explorer) story(t *testing.T, path []action) string {
	var b strings.Builder
	b.WriteString(story.Head("store"))
	x.play(t, path, func(a action, before, after *world) {
		s := story.Step{Actor: story.Server, Text: words[a.kind]}
		actors := [lockers]story.Actor{story.A, story.B}
		switch {
		case ranges[a.kind][0] == calls:
			c := before.calls[a.a]
			s.Actor, s.Text = actors[c.l], fmt.Sprintf("%s %d", callWords[c.kind], c.lease)
			s.Answer = words[a.kind]
			if a.kind == actApply && after.holder == idOf(c.l, c.lease) && before.holder != after.holder {
				s.Answer = fmt.Sprintf("token %d", after.of(after.holder).token)
			}
		case a.kind == actPerform:
			do := before.lockers[a.a].todo[a.b]
			s.Actor, s.Text = actors[a.a], strings.TrimSpace(fmt.Sprintf("after it: %s", do.do&-do.do))
			if do.do == 0 {
				s.Text = "after it: cancel"
			}
		case ranges[a.kind][0] == lockers:
			s.Actor, s.Text = actors[a.a], words[a.kind]
			switch a.kind {
			case actLeft, actOpen, actUnlock, actJoin, actReenter, actCheck, actCancel:
				s.Text = fmt.Sprintf("%d: %s", a.b+1, s.Text)
			}
		}
		for l := range int8(lockers) {
			for c := range int8(callers) {
				s.Holds[actors[l]] = s.Holds[actors[l]] || x.live(after, l, c)
			}
		}
		b.WriteString(s.Line() + "\n")
	})
	return b.String()
}

func TestEveryInterleavingKeepsTheInvariants(t *testing.T) {
	actions := explore.Ranges(ranges[:], func(kind int, a, b int8) action { return action{actionKind(kind), a, b} })
	calm := slices.IndexFunc(actions, func(a action) bool { return a.kind > actTime })
	for _, m := range storeModels {
		for _, start := range starts {
			if start.kept && !m.sticky {
				continue
			}
			t.Run(m.name+", "+start.name, func(t *testing.T) {
				x := &explorer{m: m, faults: 2, ticks: exploreTicks}
				s := explore.Search[world, action]{Model: x, Actions: actions, Calm: calm, Settles: settling{x}, Nth: 8}
				f := s.Run(x.play(t, start.path, nil), explore.Depth(start.depth, *exploreDeeper))
				f.Report(t, func(path []action) string { return x.story(t, append(start.path, path...)) })
			})
		}
	}
}
