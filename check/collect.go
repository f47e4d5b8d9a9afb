//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// section is one lock that a worker requested, as the history records it. A moment without
// an event is 0.
type section struct {
	worker             string
	op, gen            int
	name               string
	limit, slot        int
	token              uint64
	requested, granted int64
	firstUntil         int64 // valid until, as recorded with the grant
	until, renewed     int64 // the latest validity recorded, and when it was recorded
	renewals           []renewal
	alive              int64 // the last moment at which the context had not ended
	unlock, unlocked   int64
	lost               int64
	closing, killed    int64
	failed, stuck      int64
	cause, err         string
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
	worker, id, name     string
	limit, gen           int
	sent, placed, answer int64
	unknown, undone      int64
	undo                 int64 // the last attempt to undo the request
	ttl                  int64
	token                uint64
	err                  string
}

// work is one update of a register, or an attempt.
type work struct {
	worker, res      string
	op               int
	token            uint64
	guarded          bool
	begin, read, end int64
	value            int64
	outcome          Kind // kindWrote, kindStale, kindQuit, or "" without an end
}

// bound limits a grant's deadline. When the store answered, at the moment in at, it had set
// the deadline to at most ttl after that moment.
type bound struct {
	at, ttl int64
	token   uint64
}

// disturbance is the interval in which a fault affected a worker and a name. An empty
// worker or name stands for all.
type disturbance struct {
	from, to     int64
	worker, name string
	kind, note   string
	early        bool
	rewinds      bool
	loses        bool
	takes        int64
}

// lastTaken returns the latest request time of a grant that the fault may take away.
func (d *disturbance) lastTaken() int64 {
	if d.takes != 0 {
		return d.from + d.takes
	}
	return d.to
}

// collected is a history, sorted by name and by register.
type collected struct {
	start, last  int64
	calm, drain  int64
	guarantees   driver.Guarantees
	events       int
	names        map[string]*nameHistory
	registers    map[string][]*work
	disturbances []disturbance
	rewinds      []disturbance // the disturbances that bring the store back to an earlier state
	left         []Event
	killed       map[string]int64
	stopped      map[string]bool
	vanished     map[opKey]bool // by worker and client generation
	kinds        map[string]int // the number of faults of each kind
}

type nameHistory struct {
	name     string
	sections []*section
	requests []*request
	bounds   []bound
}

type opKey struct {
	worker string
	op     int
}

// collect sorts the events by name. They come in order of time.
func collect(events []Event) (*collected, error) {
	c := &collected{
		names: map[string]*nameHistory{}, registers: map[string][]*work{},
		killed: map[string]int64{}, stopped: map[string]bool{}, vanished: map[opKey]bool{}, kinds: map[string]int{},
		events: len(events),
	}
	if len(events) == 0 {
		return nil, fmt.Errorf("the history is empty")
	}
	c.start, c.last = events[0].T, events[len(events)-1].T
	sections := map[opKey]*section{}
	works := map[string]*work{}
	requests := map[string]*request{}
	open := map[string]*disturbance{}
	byWorker := map[string][]*section{}
	var bounds []Event
	name := func(n string) *nameHistory {
		h := c.names[n]
		if h == nil {
			h = &nameHistory{name: n}
			c.names[n] = h
		}
		return h
	}
	for i := range events {
		e := &events[i]
		s := sections[opKey{e.W, e.Op}]
		switch e.K {
		case kindRun:
			if e.Store != nil {
				c.guarantees = *e.Store
			}
		case kindCalm:
			c.calm = e.T
		case kindDrain:
			c.drain = e.T
		case kindStop:
			c.stopped[e.W] = true
		case kindVanished:
			c.vanished[opKey{e.W, e.Gen}] = true
		case kindLeft:
			c.left = append(c.left, *e)
		case kindKill:
			c.killed[e.W] = e.T
			c.kinds[string(e.K)]++
			c.disturbances = append(c.disturbances, disturbance{from: e.T, to: e.T, worker: e.W, kind: "kill"})
		case kindPause, kindFault:
			kind := cmp.Or(e.Fault, string(e.K))
			c.kinds[kind]++
			open[kind+"\x00"+e.W+"\x00"+e.Name] = &disturbance{from: e.T, to: e.T + e.For, worker: e.W, name: e.Name, kind: kind, note: e.Note, early: e.Early, rewinds: e.Rewinds, loses: e.Loses, takes: e.Takes}
		case kindResume, kindHealed:
			kind := e.Fault
			if e.K == kindResume {
				kind = string(kindPause)
			}
			key := kind + "\x00" + e.W + "\x00" + e.Name
			if d := open[key]; d != nil {
				d.to = max(e.T, d.from)
				c.disturbances = append(c.disturbances, *d)
				if d.rewinds {
					c.rewinds = append(c.rewinds, *d)
				}
				delete(open, key)
			}
		case kindClosing:
			for _, s := range byWorker[e.W] {
				if s.gen <= e.Gen && s.closing == 0 && s.unlock == 0 {
					s.closing = e.T
				}
			}
			c.disturbances = append(c.disturbances, disturbance{from: e.T, to: e.T, worker: e.W, kind: "close"})
		case kindLock:
			s = &section{worker: e.W, op: e.Op, gen: e.Gen, name: strings.Clone(e.Name), limit: e.Limit, requested: e.T}
			sections[opKey{e.W, e.Op}] = s
			byWorker[e.W] = append(byWorker[e.W], s)
			h := name(s.name)
			h.sections = append(h.sections, s)
		case kindGranted, kindFailed, kindRenewed, kindAlive, kindLost, kindUnlock, kindUnlocked, kindStuck:
			if s == nil {
				continue // the lock's first event is missing after a kill
			}
			s.take(e)
		case kindRequest:
			r := &request{worker: e.W, id: e.ID, name: e.Name, limit: e.Limit, gen: e.Gen, ttl: e.TTL, sent: e.T}
			requests[e.ID] = r
			h := name(r.name)
			h.requests = append(h.requests, r)
		case kindPlaced, kindAnswer, kindUnknown, kindUndo, kindUndone:
			r := requests[e.ID]
			if r == nil {
				continue // the request's first event is missing after a kill
			}
			switch e.K {
			case kindPlaced:
				r.placed = e.T
			case kindUnknown:
				r.unknown = e.T
			case kindUndo:
				r.undo = e.T
			case kindUndone:
				r.undone = e.T
			default:
				r.answer, r.token, r.err = e.T, e.Token, e.Err
				if e.Token != 0 {
					bounds = append(bounds, *e)
				}
			}
		case kindKept:
			bounds = append(bounds, *e)
		case kindBegin:
			w := &work{worker: e.W, res: e.Res, op: e.Op, token: e.Token, guarded: e.Guarded, begin: e.T}
			works[workKey(e)] = w
			c.registers[e.Res] = append(c.registers[e.Res], w)
		case kindRead, kindWrote, kindStale, kindQuit:
			w := works[workKey(e)]
			if w == nil {
				continue // the first event of the work is missing after a kill
			}
			if e.K == kindRead {
				w.read, w.value = e.T, e.Value
			} else {
				w.end, w.outcome = e.T, e.K
				delete(works, workKey(e))
			}
		}
	}
	for _, d := range open {
		c.disturbances = append(c.disturbances, *d)
	}
	slices.SortFunc(c.disturbances, func(a, b disturbance) int { return cmp.Compare(a.from, b.from) })
	for w, t := range c.killed {
		for _, s := range byWorker[w] {
			if s.granted != 0 && s.unlock == 0 {
				s.killed = t
			}
		}
	}
	for i := range bounds {
		e := &bounds[i]
		h := name(e.Name)
		ttl := e.TTL
		if ttl == int64(driver.Forever) {
			ttl = forever
		}
		h.bounds = append(h.bounds, bound{e.T, ttl, e.Token})
	}
	return c, nil
}

func workKey(e *Event) string { return fmt.Sprintf("%s/%d/%s", e.W, e.Op, e.Res) }

// take adds an event to the section.
func (s *section) take(e *Event) {
	until := e.Until
	if until == 0 {
		until = forever
	}
	switch e.K {
	case kindGranted:
		s.granted, s.token, s.slot = e.T, e.Token, e.Slot
		s.firstUntil, s.until = until, max(s.until, until)
	case kindRenewed:
		// A worker may record a renewal just before the grant that was renewed.
		if until > s.until {
			s.until, s.renewed = until, e.T
			s.renewals = append(s.renewals, renewal{e.T, until})
		}
	case kindAlive:
		s.alive = max(s.alive, e.T)
	case kindLost:
		if s.lost == 0 || e.T < s.lost {
			s.lost, s.cause = e.T, e.Cause
		}
	case kindUnlock:
		s.unlock = e.T
	case kindUnlocked:
		s.unlocked = e.T
		s.err = e.Err
	case kindFailed:
		s.failed, s.err = e.T, e.Err
	case kindStuck:
		s.stuck = e.T
	}
}

// undisturbed reports whether no fault affected the workers or the name during the interval
// or shortly before it.
func (c *collected) undisturbed(from, to int64, name string, workers ...string) bool {
	for i := range c.disturbances {
		d := &c.disturbances[i]
		if d.from > to {
			break
		}
		if d.to+int64(Slack) < from {
			continue
		}
		if (d.worker == "" || slices.Contains(workers, d.worker)) && (d.name == "" || d.name == name) {
			return false
		}
	}
	return true
}

// rewound reports whether a grant may come from the time after the store went back to an
// earlier state. That time ends when the clients must have noticed the change.
func (c *collected) rewound(from, to int64) bool {
	late := int64(c.guarantees.Notice + Slack)
	return slices.ContainsFunc(c.rewinds, func(d disturbance) bool { return d.from <= to && from <= d.to+late })
}

// lost reports whether the leftover of e may stand only because the store lost the write
// that ended it. Such a leftover stands until its TTL has passed.
func (c *collected) lost(e *Event) bool {
	if e.W == "" || e.ID == "" {
		return false // e was found at the end, when all clients had had time to clean up, or not at the store
	}
	late := int64(c.guarantees.Notice + Slack)
	if h := c.names[e.Name]; h != nil && c.guarantees.LeftoversExpire {
		for _, q := range h.requests {
			if q.id == e.ID {
				late += q.ttl
			}
		}
	}
	return slices.ContainsFunc(c.disturbances, func(d disturbance) bool { return d.loses && d.from <= e.T && e.T <= d.to+late })
}

// quiet reports whether no fault at all was under way in the interval or shortly before it.
func (c *collected) quiet(from, to int64) bool {
	for i := range c.disturbances {
		d := &c.disturbances[i]
		if d.from > to {
			break
		}
		if d.to+int64(Slack) >= from {
			return false
		}
	}
	return true
}

// Slack is the delay that the verdict allows on a busy machine before a goroutine runs.
// Rules that the history alone decides do not use it: two live contexts, tokens, registers.
const Slack = 500 * time.Millisecond
