//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// section is one lock that a worker requested, as the history records it. A moment without
// an event is 0.
type section struct {
	worker             string
	gen                int
	name               string
	limit, slot        int
	token              uint64
	requested, granted int64
	asked, mayEnd      int64 // see setAsked and judgeLockModel
	firstUntil         int64 // valid until, as recorded with the grant
	until              int64 // the latest validity recorded
	renewals           []renewal
	alive              int64 // the last moment at which the context had not ended
	unlock, unlocked   int64
	lost               int64
	closing, killed    int64
	failed, stuck      int64
	keep, sticky       int64    // the MinHold and the time of Sticky, as recorded with the unlock
	grant              *request // see setHolds
	cause, err         string
	events             []*Event // those that a reader of a violation needs
}

// story returns the events of the section, of the request or of the work.
func (s *section) story() []Event { return copied(s.events) }
func (q *request) story() []Event { return copied(q.events) }
func (w *work) story() []Event    { return copied(w.events) }

func copied(events []*Event) (all []Event) {
	for _, e := range events {
		all = append(all, *e)
	}
	return all
}

// renewal is a later end of validity, until, and the moment at which the holder recorded
// it.
type renewal struct{ at, until int64 }

// end returns the moment from which the section certainly no longer counts as live. That is
// the first of its unlock, its loss, the close of its Locker, the kill of its process, and
// the recorded end of validity. The last applies to a stopped process, too. Otherwise every
// pause would look like a broken rule.
func (s *section) end() int64 {
	end := s.until
	for _, t := range []int64{s.unlock, s.lost, s.killed} {
		if t != 0 {
			end = min(end, t)
		}
	}
	if s.closing != 0 {
		end = min(end, max(s.closing, s.granted))
	}
	return max(end, s.granted)
}

func (s *section) holder() string { return s.worker }

// request is one request at the store.
type request struct {
	events               []*Event
	worker, id, name     string
	limit, gen           int
	sent, placed, answer int64
	unknown, undone      int64
	undo                 int64 // the last attempt to undo the request
	ttl                  int64
	token                uint64
	err                  string
	wait                 bool
	repeats              bool       // a repetition of a request that was busy
	next                 *request   // the next repetition
	freed                int64      // when the store had confirmed the release, and a MinHold has passed
	left                 int64      // when the first release that leaves the grant standing was sent
	unsure               int64      // the latest deadline of a renewal or release whose answer was lost
	unanswered           int64      // the longest time without an answer to a release that leaves the grant standing
	until                int64      // see setEnds
	tokens               int        // the number of its tokens, 0 for one
	holds                []*section // see setHolds
}

// work is one update of a register, or an attempt.
type work struct {
	worker           string
	token            uint64
	guarded          bool
	begin, read, end int64
	value            int64
	outcome          Kind // kindWrote, kindStale, kindQuit, or "" without an end
	events           []*Event
}

// pending reports whether the history has no end of the update. It may have written or not.
func (w *work) pending() bool { return w.outcome == "" }

// bound limits a grant's deadline. When the store answered, at the moment in at, it had set
// the deadline to at most ttl after that moment.
type bound struct {
	at, ttl int64
	token   uint64
}

// disturbance is the interval in which a fault affected a worker and a name. An empty
// worker or name stands for all. Event documents early, rewinds, loses and takes. begin is
// the event with which it began.
type disturbance struct {
	begin        *Event
	from, to     int64
	worker, name string
	kind, note   string
	early        bool
	rewinds      bool
	loses        bool
	keepsOrder   bool
	takes        int64
}

// lastTaken returns the latest request time of a grant that the fault may take away.
func (d *disturbance) lastTaken() int64 {
	if d.takes != 0 {
		return d.from + d.takes
	}
	return d.to
}

// on reports whether the fault affected a name, and affects whether it affected a name and one of some workers.
func (d *disturbance) on(name string) bool { return d.name == "" || d.name == name }

func (d *disturbance) affects(name string, workers ...string) bool {
	return d.on(name) && (d.worker == "" || slices.Contains(workers, d.worker))
}

// all reports whether the fault affected every worker and every name.
func (d *disturbance) all() bool { return d.worker == "" && d.name == "" }

// collected is a history, sorted by name and by register.
type collected struct {
	start, last  int64
	slack        time.Duration // see judge
	drain        int64
	guarantees   driver.Guarantees
	events       int
	names        map[string]*nameHistory
	registers    map[string][]*work
	closing      map[opKey]int64 // when a Locker was closed, by worker and client generation
	disturbances []disturbance
	rewinds      []disturbance // the disturbances that bring the store back to an earlier state
	left         []Event
	killed       map[string]int64
	stopped      map[string]bool
	vanished     map[opKey]int64 // by worker and client generation
	kinds        map[string]int  // the number of faults of each kind
	longestTTL   map[opKey]int64 // by worker and client generation
	longestStand int64           // the longest TTL, or time for which a grant stands after its release

	schedules map[string]*schedule
	onces     map[string][]*onceCall // by key
	onceCalls map[opKey]*onceCall
	ids       map[string][]Event    // by sequence
	values    map[string][]*valueOp // by key
	puts      map[opKey]*valueOp
}

type nameHistory struct {
	name     string
	sections []*section
	requests []*request
	bounds   []bound
	leaves   []Event // the events of kindLeave
	// granted are the requests that were granted, in the order of their tokens.
	granted []*request
	// deadlines are the latest deadlines that the store can have set, by token.
	deadlines map[uint64]int64
}

// history returns the history of a name.
func (c *collected) history(name string) *nameHistory {
	h := c.names[name]
	if h == nil {
		h = &nameHistory{name: name, deadlines: map[uint64]int64{}}
		c.names[name] = h
	}
	return h
}

// finish sets granted and deadlines, and the holds of each grant.
func (h *nameHistory) finish() {
	h.granted = slices.DeleteFunc(slices.Clone(h.requests), func(q *request) bool { return q.token == 0 })
	slices.SortFunc(h.granted, func(a, b *request) int { return cmp.Compare(a.token, b.token) })
	for _, b := range h.bounds {
		h.deadlines[b.token] = max(h.deadlines[b.token], min(b.at+b.ttl, forever))
	}
	h.setHolds()
}

type opKey struct {
	worker string
	op     int
}

// collect sorts the events by name. They come in order of time.
func collect(events []Event) (*collected, error) {
	if len(events) == 0 {
		return nil, fmt.Errorf("the history is empty")
	}
	c := &collected{
		names: map[string]*nameHistory{}, registers: map[string][]*work{}, closing: map[opKey]int64{},
		killed: map[string]int64{}, stopped: map[string]bool{}, vanished: map[opKey]int64{}, longestTTL: map[opKey]int64{}, kinds: map[string]int{},
		schedules: map[string]*schedule{}, onces: map[string][]*onceCall{}, onceCalls: map[opKey]*onceCall{},
		ids: map[string][]Event{}, values: map[string][]*valueOp{}, puts: map[opKey]*valueOp{},
		start: events[0].T, slack: Slack, last: events[len(events)-1].T, events: len(events),
	}
	k := &collector{
		collected: c,
		sections:  map[opKey]*section{}, byWorker: map[string][]*section{},
		requests: map[string]*request{}, works: map[string]*work{}, faults: map[string]*disturbance{},
	}
	for i := range events {
		k.add(&events[i])
	}
	k.finish()
	return c, nil
}

// collector adds events to a history. Its maps find the record that a later event continues.
// After a kill the first event of a record may be missing. Then the collector ignores the
// later ones.
type collector struct {
	*collected
	sections map[opKey]*section
	byWorker map[string][]*section
	requests map[string]*request     // by ID
	works    map[string]*work        // the work under way, by workKey
	faults   map[string]*disturbance // the faults and pauses under way, by faultKey
}

func (k *collector) add(e *Event) {
	switch e.K {
	case kindRun:
		if e.Store != nil {
			k.guarantees = *e.Store
		}
	case kindDrain:
		k.drain = e.T
	case kindStop:
		k.stopped[e.W] = true
	case kindVanished:
		k.vanished[opKey{e.W, e.Gen}] = e.T
	case kindLeft:
		k.left = append(k.left, *e)
	case kindClosing:
		k.addClosing(e)
	case kindKill, kindPause, kindResume, kindFault, kindHealed:
		k.addFault(e)
	case kindLock, kindGranted, kindFailed, kindRenewed, kindAlive, kindLost, kindUnlock, kindUnlocked, kindStuck:
		k.addLock(e)
	case kindRequest, kindPlaced, kindAnswer, kindKept, kindUnknown, kindUndo, kindUndone, kindLeave, kindFreed, kindUnsure:
		k.addRequest(e)
	case kindBegin, kindRead, kindWrote, kindStale, kindQuit:
		k.addWork(e)
	case kindEvery, kindEveryEnd, kindTick, kindTicked, kindMissed:
		k.addTick(e)
	case kindOnce, kindRan, kindOnceDone:
		k.addOnce(e)
	case kindID:
		k.ids[e.Res] = append(k.ids[e.Res], *e)
	case kindGet, kindPut, kindPutDone:
		k.addValue(e)
	}
}

func (k *collector) addClosing(e *Event) {
	k.closing[opKey{e.W, e.Gen}] = e.T
	for _, s := range k.byWorker[e.W] {
		if s.gen <= e.Gen && s.closing == 0 && s.unlock == 0 {
			s.closing = e.T
			s.events = append(s.events, e)
		}
	}
	k.disturbances = append(k.disturbances, disturbance{begin: e, from: e.T, to: e.T, worker: e.W, kind: faultClose})
}

func (k *collector) addFault(e *Event) {
	switch e.K {
	case kindKill:
		k.killed[e.W] = e.T
		k.kinds[string(e.K)]++
		k.disturbances = append(k.disturbances, disturbance{begin: e, from: e.T, to: e.T, worker: e.W, kind: faultKill})
	case kindPause, kindFault:
		kind := cmp.Or(e.Fault, string(e.K))
		k.kinds[kind]++
		k.faults[faultKey(kind, e)] = &disturbance{
			begin: e, from: e.T, to: e.T + e.For, worker: e.W, name: e.Name, kind: kind, note: e.Note,
			early: e.Early, rewinds: e.Rewinds, loses: e.Loses, keepsOrder: e.KeepsOrder, takes: e.Takes,
		}
	case kindResume, kindHealed:
		kind := e.Fault
		if e.K == kindResume {
			kind = string(kindPause)
		}
		key := faultKey(kind, e)
		if d := k.faults[key]; d != nil {
			d.to = max(e.T, d.from)
			k.disturbances = append(k.disturbances, *d)
			if d.rewinds {
				k.rewinds = append(k.rewinds, *d)
			}
			delete(k.faults, key)
		}
	}
}

func faultKey(kind string, e *Event) string { return kind + "\x00" + e.W + "\x00" + e.Name }

func (k *collector) addLock(e *Event) {
	key := opKey{e.W, e.Op}
	if e.K == kindLock {
		s := &section{worker: e.W, gen: e.Gen, name: e.Name, limit: e.Limit, requested: e.T, events: []*Event{e}}
		k.sections[key] = s
		k.byWorker[e.W] = append(k.byWorker[e.W], s)
		h := k.history(e.Name)
		h.sections = append(h.sections, s)
	} else if s := k.sections[key]; s != nil {
		s.add(e)
	}
}

func (k *collector) addRequest(e *Event) {
	switch e.K {
	case kindRequest:
		q := &request{worker: e.W, id: e.ID, name: e.Name, limit: e.Limit, gen: e.Gen, ttl: e.TTL, sent: e.T, wait: e.Wait, repeats: e.Repeated, events: []*Event{e}}
		if before := k.requests[e.ID]; before != nil {
			before.next = q
		}
		k.longestTTL[opKey{e.W, e.Gen}] = max(k.longestTTL[opKey{e.W, e.Gen}], e.TTL)
		k.longestStand = max(k.longestStand, e.TTL)
		k.requests[e.ID] = q
		h := k.history(e.Name)
		h.requests = append(h.requests, q)
	case kindKept:
		k.addBound(e)
	case kindLeave:
		h := k.history(e.Name)
		h.leaves = append(h.leaves, *e)
		k.longestStand = max(k.longestStand, e.For)
		if q := k.requests[e.ID]; q != nil {
			q.freed = e.Until + e.For
			q.left = cmp.Or(q.left, e.T)
		}
	default:
		q := k.requests[e.ID]
		if q == nil {
			return
		}
		q.add(e)
		if e.K == kindAnswer && e.Token != 0 {
			k.addBound(e)
		}
	}
}

// addBound adds the bound of a grant or a renewal.
func (k *collector) addBound(e *Event) {
	ttl := e.TTL
	if ttl == int64(driver.Forever) {
		ttl = forever
	}
	h := k.history(e.Name)
	h.bounds = append(h.bounds, bound{e.T, ttl, e.Token})
}

func (k *collector) addWork(e *Event) {
	key := workKey(e)
	if e.K == kindBegin {
		w := &work{worker: e.W, token: e.Token, guarded: e.Guarded, begin: e.T, events: []*Event{e}}
		k.works[key] = w
		k.registers[e.Res] = append(k.registers[e.Res], w)
		return
	}
	w := k.works[key]
	if w == nil {
		return
	}
	w.events = append(w.events, e)
	if e.K == kindRead {
		w.read, w.value = e.T, e.Value
		return
	}
	w.end, w.outcome = e.T, e.K
	delete(k.works, key)
}

// finish adds the faults that have not ended, and what follows from all events.
func (k *collector) finish() {
	for _, d := range k.faults {
		k.disturbances = append(k.disturbances, *d)
	}
	for _, h := range k.names {
		h.finish()
	}
	slices.SortFunc(k.disturbances, func(a, b disturbance) int { return cmp.Compare(a.from, b.from) })
	for w, t := range k.killed {
		for _, s := range k.byWorker[w] {
			if s.granted != 0 && s.unlock == 0 {
				s.killed = t
				s.events = append(s.events, &Event{T: t, W: w, K: kindKill})
			}
		}
	}
}

func workKey(e *Event) string { return fmt.Sprintf("%s/%d/%s", e.W, e.Op, e.Res) }

// add adds an event to the section.
func (s *section) add(e *Event) {
	until := e.Until
	if until == 0 {
		until = forever
	}
	switch e.K {
	case kindGranted, kindUnlock, kindStuck:
		s.events = append(s.events, e)
	}
	switch e.K {
	case kindGranted:
		s.granted, s.token, s.slot = e.T, e.Token, e.Slot
		s.firstUntil, s.until = until, max(s.until, until)
	case kindRenewed:
		// A worker may record a renewal just before the grant that was renewed.
		if until > s.until {
			s.until = until
			s.renewals = append(s.renewals, renewal{e.T, until})
			s.events = slices.DeleteFunc(s.events, func(e *Event) bool { return e.K == kindRenewed }) // the last one is enough
			s.events = append(s.events, e)
		}
	case kindAlive:
		s.alive = max(s.alive, e.T)
	case kindLost:
		if s.lost == 0 {
			s.lost, s.cause = e.T, e.Cause
			s.events = append(s.events, e)
		}
	case kindUnlock:
		s.unlock, s.keep, s.sticky = e.T, e.For, e.Sticky
	case kindUnlocked:
		s.unlocked = e.T
		s.err = e.Err
	case kindFailed:
		s.failed, s.err = e.T, e.Err
	case kindStuck:
		s.stuck = e.T
	}
}

// add adds an event to the request.
func (q *request) add(e *Event) {
	switch e.K {
	case kindPlaced, kindAnswer, kindUnknown, kindUndone:
		q.events = append(q.events, e)
	}
	switch e.K {
	case kindPlaced:
		q.placed = e.T
	case kindAnswer:
		q.answer, q.token, q.tokens, q.err = e.T, e.Token, e.Tokens, e.Err
	case kindUnknown:
		q.unknown = e.T
	case kindUndo:
		q.undo = e.T
	case kindUndone:
		q.undone = e.T
	case kindFreed:
		q.freed = e.T
	case kindUnsure:
		q.unsure = max(q.unsure, e.T+e.TTL)
		if e.Until != 0 {
			q.left = cmp.Or(q.left, e.Until)
			q.unanswered = max(q.unanswered, e.T-e.Until)
		}
	}
}

// undisturbed reports whether no fault affected the workers or the name during the interval
// or shortly before it.
func (c *collected) undisturbed(from, to int64, name string, workers ...string) bool {
	return c.undisturbedBy(func(*disturbance) bool { return true }, from, to, name, workers...)
}

// undisturbedBy is undisturbed for some of the faults.
func (c *collected) undisturbedBy(some func(*disturbance) bool, from, to int64, name string, workers ...string) bool {
	for i := range c.disturbances {
		d := &c.disturbances[i]
		if d.from > to {
			break
		}
		if d.to+int64(c.slack) < from {
			continue
		}
		if d.affects(name, workers...) && some(d) {
			return false
		}
	}
	return true
}

// rewound reports whether a grant may come from the time after the store went back to an
// earlier state. That time ends when the clients must have noticed the change.
func (c *collected) rewound(from, to int64) bool {
	return slices.ContainsFunc(c.rewinds, func(d disturbance) bool { return d.from <= to && from <= d.to+c.notice() })
}

// notice is how long after a fault the clients may notice its effect.
func (c *collected) notice() int64 { return int64(c.guarantees.Notice + c.slack) }

// excused reports whether the leftover of e may stand until its TTL has passed: the store lost the write that
// ended it, or its client could not undo it for long enough.
func (c *collected) excused(e *Event) bool {
	if e.W == "" || e.ID == "" {
		// The coordinator found e after the run, when every client had had time to clean up, or
		// e is not at the store.
		return false
	}
	late := c.notice()
	if h := c.names[e.Name]; h != nil && c.guarantees.LeftoversExpire {
		for _, q := range h.requests {
			if q.id == e.ID && c.outlived(q) {
				return true
			} else if q.id == e.ID {
				late += q.ttl
			}
		}
	}
	return slices.ContainsFunc(c.disturbances, func(d disturbance) bool { return d.loses && d.from <= e.T && e.T <= d.to+late })
}

// outlived reports whether a client retried the undo of a request for three TTLs, which is enough if leftovers
// expire. A server that comes back after that may still grant the request from its queue. A client that is paused
// after an attempt finds when it goes on that the time has passed.
func (c *collected) outlived(q *request) bool {
	last := q.undo
	for _, d := range c.disturbances {
		if d.kind == string(kindPause) && d.worker == q.worker && d.from <= last+int64(Slack) && last < d.to {
			last = d.to
		}
	}
	return c.guarantees.LeftoversExpire && q.unknown != 0 && q.undone == 0 && last-q.unknown > 3*q.ttl
}

// Slack is the delay that the verdict allows on a busy machine before a goroutine runs. The
// rules of exclusion, tokens and registers use it only for a fault that takes grants away or
// rewinds the store.
const Slack = 500 * time.Millisecond
