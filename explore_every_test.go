//go:build !race

package holdfast

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/internal/story"
	"github.com/holdfast-go/holdfast/internal/ticks"
)

// # Exploration of Every
//
// Two replicas call Every with a Locker each. The world is their clocks, and the claim and the marker of one tick at
// a store. Every and the Locker are the library's own: they run with the answers that the world has given, up to
// their next request or sleep.
//
// A history has one fault, to its end: a request that is refused, applied without an answer, or applied later; a lock that
// is kept longer; a replica that stands still, is paused, or dies, at each point. A tick is served once, or reported.
// Without a fault it is served and not reported. It is never reported after its work was recorded.
//
// Not explored: more ticks at the same time, the calls of one Locker at the same time, stores without Linger, work that
// lasts longer than four distances.

const (
	replicas = 2

	eUnit    = 15 * time.Second
	eTTL     = 4  // units; a distance is as long
	eAsleep  = 44 // from then on no replica stands still or works
	eEnd     = eAsleep + 3*eTTL
	eWorked  = 5 * eTTL // until then the work ends, or its replica dies: four distances after the tick
	eSlowest = 14       // from then on only times at which something happens count
)

// eStart is midnight; the tick is a distance later.
var eStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// twoTicks is a schedule. The store lets replica A serve the second tick.
type twoTicks struct{}

func (twoTicks) Next(t time.Time) time.Time {
	for n := range time.Duration(2) {
		if at := eStart.Add((n + 1) * eTTL * eUnit); t.Before(at) {
			return at
		}
	}
	return time.Time{}
}

type eKind uint8

const (
	asleep eKind = iota
	acquires
	frees
	inspects
	removes
	works
	missed
	reports
)

// eRequest is what a replica asks the world.
type eRequest struct {
	kind   eKind
	marker bool
	units  int8 // of a sleep, or for which a release keeps the lock
	token  uint64
}

type eAnswer struct {
	code  driver.Code // eFine for success
	now   int8
	token uint64
	other bool // the holder is of an earlier tick
	kept  bool
	lost  [2]bool // the replica's locks that have ended
}

const eFine driver.Code = -1

// eLock is a lock of the tick at the store.
type eLock struct {
	owner   int8 // the replica plus 1; 0 if the lock is free
	token   uint64
	other   bool // of an earlier tick
	kept    bool
	expires int8 // 0 while its replica renews it
	undo    bool // its replica has no answer, and removes it
	keep    int8 // until when a release keeps it, whose answer was lost; 0 for none
}

type eReplica struct {
	history int32
	next    eRequest
	wake    int8
	done    bool // Every has returned
	dead    bool
	stalled bool // its goroutine stands still
	paused  bool // its process does, too
	works   bool
	late    [2]bool // a request that may still arrive
	lost    [2]bool // its locks that have ended
	holds   [2]bool
}

type eWorld struct {
	now      int8
	token    uint64
	locks    [2]eLock // the claim, the marker
	replicas [replicas]eReplica
	faults   int8
	served   int8 // how often the work has begun
	ended    bool // the work has ended in time
	recorded bool // and the store has confirmed its record
	missed   int8
	reported int8
	took     bool // a replica died with the right to report
}

type eAction struct {
	kind eActKind
	a, b int8
}

type eActKind uint8

const (
	eServe eActKind = iota
	eBackground
	eResume
	eTime
	// The rest are faults.
	eRefuse
	eLose
	eDelay
	eStall
	ePause
	eDie
	eLonger
	eActs
)

var eRanges = [eActs][2]int8{
	eServe: {replicas, 1}, eBackground: {replicas, 3}, eResume: {replicas, 1}, eTime: {1, 1},
	eRefuse: {replicas, 1}, eLose: {replicas, 1}, eDelay: {replicas, 1}, eStall: {replicas, 1}, ePause: {replicas, 1},
	eDie: {replicas, 1}, eLonger: {2, 1},
}

type eLink struct {
	before int32
	answer eAnswer
}

type eRun struct {
	next eRequest
	done bool
}

type eKey struct{ replica, history int32 }

// everyExplorer explores Every.
type everyExplorer struct {
	ahead  [replicas]int8 // of the clocks, in units
	faults int8           // at most
	broken string
	links  []eLink
	known  map[eLink]int32
	runs   map[eKey]eRun
}

func (x *everyExplorer) breaks(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

// eClient is the store and the clock of a replica while it runs.
type eClient struct {
	script  explore.Script[eRequest, eAnswer]
	replica int8
	ahead   int8
	now     int8
	from    [2]driver.Requester
	ids     [2]string

	mu    sync.Mutex
	freed map[string]bool // by the IDs of grants, for which further releases come from the background
}

func (c *eClient) ask(r eRequest) eAnswer {
	a := c.script.Ask(r)
	c.now = a.now
	for i := range c.from {
		if a.lost[i] && c.from[i] != nil {
			c.free(c.ids[i])
			c.from[i].Lost(driver.CauseExpired, nil)
		}
	}
	return a
}

func (c *eClient) Now() time.Time { return eStart.Add(time.Duration(c.now+c.ahead) * eUnit) }

func (c *eClient) Sleep(d time.Duration) bool {
	c.ask(eRequest{kind: asleep, units: int8((d + eUnit - 1) / eUnit)})
	return true
}

// lockOf returns which lock of the tick has the name; false if it is of the other tick.
func lockOf(name string) (marker, ok bool) {
	_, kind, _ := ticks.Job(name)
	return kind == ticks.Marker, strings.HasSuffix(name, "-00")
}

func errOf(code driver.Code) error {
	switch code {
	case eFine:
		return nil
	case driver.CodeBusy:
		return &driver.BusyError{}
	}
	return driver.Errorf(code, "of the model")
}

func (c *eClient) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	g := driver.Grant{ID: r.ID, Name: r.Name, Limit: 1, Token: 1, TTL: r.TTL, SentAt: driver.Now(), Slot: driver.NoSlot}
	marker, ok := lockOf(r.Name)
	if !ok {
		if c.replica > 0 {
			return g, &driver.BusyError{}
		}
		return g, nil
	}
	a := c.ask(eRequest{kind: acquires, marker: marker})
	if a.code == eFine {
		c.from[index(marker)], c.ids[index(marker)] = r.From, r.ID
	}
	g.Token = a.token
	return g, errOf(a.code)
}

func index(marker bool) int {
	if marker {
		return 1
	}
	return 0
}

// free reports whether the grant has been freed before.
func (c *eClient) free(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	again := c.freed[id]
	c.freed[id] = true
	return again
}

// Release is called again in the background, and there after a loss. The world does that, too.
func (c *eClient) Release(_ context.Context, g driver.Grant, keep time.Duration) error {
	marker, ok := lockOf(g.Name)
	if c.free(g.ID) || !ok {
		return nil
	}
	c.from[index(marker)] = nil
	return errOf(c.ask(eRequest{kind: frees, marker: marker, units: int8((keep + eUnit/2) / eUnit)}).code)
}

func (c *eClient) Inspect(_ context.Context, name string) (driver.State, error) {
	marker, ok := lockOf(name)
	if !ok {
		return driver.State{}, nil
	}
	a := c.ask(eRequest{kind: inspects, marker: marker})
	if a.token == 0 {
		return driver.State{}, errOf(a.code)
	}
	at := twoTicks{}.Next(eStart)
	if a.other {
		at = at.Add(-24 * time.Hour)
	}
	h := driver.Holder{Owner: driver.Owner{Reason: ticks.Reason(at)}, Token: a.token, Kept: a.kept, Limit: 1}
	return driver.State{Name: name, Holders: []driver.Holder{h}}, nil
}

func (c *eClient) Break(_ context.Context, name string, token uint64) error {
	marker, _ := lockOf(name)
	return errOf(c.ask(eRequest{kind: removes, marker: marker, token: token}).code)
}

func (c *eClient) Guarantees(context.Context) (driver.Guarantees, error) {
	return driver.Guarantees{Kind: "model", Scope: driver.ScopeProcess, Crash: driver.CrashFreesAfterTTL,
		Pause: driver.PauseLoses, LeftoversExpire: true, Order: driver.OrderNone, Wake: driver.WakePoll, Tokens: "the model's",
		MinTTL: time.Second, MaxTTL: time.Hour, Linger: true, Break: driver.BreakNow, Visible: driver.VisibleHolders}, nil
}

func (c *eClient) Renew(_ context.Context, grants []driver.Grant) []driver.Renewal {
	all := make([]driver.Renewal, len(grants))
	for i, g := range grants {
		all[i] = driver.Renewal{SentAt: driver.Now(), TTL: g.TTL}
	}
	return all
}

func (c *eClient) List(context.Context, string) iter.Seq2[driver.State, error] { panic("not explored") }
func (c *eClient) Undo(context.Context, driver.Request) error                  { return nil }
func (c *eClient) Classify(err error) driver.Code                              { return driver.CodeOf(err) }
func (c *eClient) Close(context.Context) error                                 { return nil }
func (c *eClient) String() string                                              { return "model" }

// run runs a replica with its answers.
func (x *everyExplorer) run(replica int8, history int32) eRun {
	key := eKey{int32(replica), history}
	if r, ok := x.runs[key]; ok {
		return r
	}
	var answers []eAnswer
	for h := history; h != 0; h = x.links[h].before {
		answers = append([]eAnswer{x.links[h].answer}, answers...)
	}
	c := &eClient{replica: replica, ahead: x.ahead[replica], freed: map[string]bool{}}
	l, err := New(c)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(ticks.WithClock(context.Background(), c))
	defer cancel()
	first := twoTicks{}.Next(eStart)
	next := c.script.Play(answers, func() {
		for tick, err := range l.Every(ctx, "job", twoTicks{}, TTL(eTTL*eUnit)) {
			switch {
			case !tick.Time.Equal(first):
				if err != nil {
					c.ask(eRequest{kind: reports})
				}
			case err == nil:
				c.ask(eRequest{kind: works})
			case errors.Is(err, ErrMissed):
				c.ask(eRequest{kind: missed})
			default:
				c.ask(eRequest{kind: reports})
			}
		}
	})
	l.mu.Lock()
	if l.schedule.timer != nil {
		l.schedule.timer.Stop()
	}
	l.mu.Unlock()
	l.cancel(ErrClosed)
	r := eRun{done: next == nil}
	if next != nil {
		r.next = *next
	}
	x.runs[key] = r
	return r
}

// step gives a replica an answer, and runs it to its next request.
func (x *everyExplorer) step(w *eWorld, i int8, a eAnswer) {
	r := &w.replicas[i]
	a.now, a.lost = w.now, r.lost
	r.lost = [2]bool{}
	link := eLink{r.history, a}
	h, ok := x.known[link]
	if !ok {
		h = int32(len(x.links))
		x.links = append(x.links, link)
		x.known[link] = h
	}
	r.history = h
	x.advance(w, i)
}

func (x *everyExplorer) advance(w *eWorld, i int8) {
	r := &w.replicas[i]
	run := x.run(i, r.history)
	r.next, r.done = run.next, run.done
	if r.next.kind == asleep {
		r.wake = w.now + r.next.units
	}
	if r.next.kind == works {
		if w.served++; w.served > 1 {
			x.breaks("the tick is served twice")
		}
	}
}

// stands reports whether a replica makes no step now.
func (r *eReplica) stands() bool { return r.dead || r.done || r.stalled || r.paused }

func (x *everyExplorer) Do(w *eWorld, a eAction) bool {
	if a.kind >= eRefuse && w.faults >= x.faults || !x.act(w, a) {
		return false
	}
	if a.kind >= eRefuse {
		w.faults++
	}
	return true
}

func (x *everyExplorer) act(w *eWorld, a eAction) bool {
	switch a.kind {
	case eTime:
		return x.pass(w)
	case eLonger:
		k := &w.locks[a.a]
		if !k.kept || k.expires > eAsleep {
			return false
		}
		k.expires += 3 * eTTL
		return true
	}
	r := &w.replicas[a.a]
	switch {
	case r.dead:
		return false
	case a.kind == eResume:
		if !r.stalled && !r.paused {
			return false
		}
		if r.paused {
			for i := range w.locks {
				if k := &w.locks[i]; k.owner == a.a+1 && !k.kept && !k.undo && k.keep == 0 {
					k.expires = 0
				}
			}
		}
		r.stalled, r.paused = false, false
		return true
	case a.kind == eDie:
		if r.done || r.paused || r.next.kind == works && w.now > eWorked {
			return false
		}
		w.took = w.took || r.next.kind == missed
		w.leave(a.a)
		*r = eReplica{dead: true, late: r.late}
		return true
	case r.stands():
		return false
	}
	switch a.kind {
	case eBackground:
		if a.b == 2 {
			return false
		}
		k := &w.locks[a.b]
		switch {
		case r.late[a.b]:
			r.late[a.b] = false
		case k.owner == a.a+1 && k.undo:
			*k = eLock{}
		case k.owner == a.a+1 && k.keep > 0:
			w.keep(k, k.keep)
		default:
			return false
		}
		return true
	case eStall, ePause:
		if r.next.kind == asleep && r.wake > w.now+eTTL {
			return false
		}
		if r.stalled, r.paused = a.kind == eStall, a.kind == ePause; r.paused {
			w.leave(a.a)
		}
		return true
	}
	return x.serve(w, a.a, a.kind)
}

// leave begins the end of the locks that a replica does not renew any more.
func (w *eWorld) leave(i int8) {
	for n := range w.locks {
		if k := &w.locks[n]; k.owner == i+1 && !k.kept && k.expires == 0 {
			k.expires = w.now + eTTL
		}
	}
}

func (w *eWorld) keep(k *eLock, until int8) {
	if k.undo, k.keep, k.kept, k.expires = false, 0, true, until; until <= w.now {
		*k = eLock{}
	}
}

// serve does what a request wants, or does not.
func (x *everyExplorer) serve(w *eWorld, i int8, kind eActKind) bool {
	r := &w.replicas[i]
	q := r.next
	n := index(q.marker)
	k := &w.locks[n]
	a := eAnswer{code: eFine}
	store := q.kind == acquires || q.kind == frees || q.kind == inspects || q.kind == removes
	switch {
	case kind == eRefuse && store:
		a.code = driver.CodeUnavailable
		if q.kind == frees { // the Locker tries again in the background
			k.keep, k.expires = w.now+q.units, w.now+eTTL
			r.holds[n] = false
		}
		x.step(w, i, a)
		return true
	case kind != eServe && q.kind != acquires && q.kind != frees:
		return false
	}
	switch q.kind {
	case asleep:
		if w.now < r.wake {
			return false
		}
	case acquires:
		free := k.owner == 0
		switch {
		case kind == eDelay || kind == eLose && !free:
			r.late[n] = kind == eDelay
			a.code = driver.CodeUnknown
		case !free:
			a.code = driver.CodeBusy
		default:
			w.token++
			*k = eLock{owner: i + 1, token: w.token}
			a.token = w.token
			if r.holds[n] = kind == eServe; kind == eLose {
				k.undo, k.expires, a.code = true, w.now+eTTL, driver.CodeUnknown
			}
		}
	case frees:
		stands := k.owner == i+1 && !k.kept && r.holds[n]
		r.holds[n] = false
		switch {
		case !stands:
			a.code = driver.CodeNotHeld
		case kind == eDelay:
			k.keep, k.expires = w.now+q.units, w.now+eTTL
			a.code = driver.CodeUnknown
		default:
			w.keep(k, w.now+q.units)
		}
		if kind == eLose {
			a.code = driver.CodeUnknown
		}
		if q.marker && a.code == eFine && q.units > 0 && w.ended && r.works {
			w.recorded = true
		}
	case inspects:
		a.token, a.other, a.kept = k.token, k.other, k.kept
	case removes:
		if k.owner == 0 || k.token != q.token {
			a.code = driver.CodeNotHeld
			break
		}
		if !k.other {
			x.breaks("a lock of the tick itself is broken")
		}
		*k = eLock{}
	case works:
		r.works = true
		w.ended = w.locks[1].owner == i+1 && r.holds[1]
	case missed:
		if w.recorded {
			x.breaks("a tick is reported as missed, and its work was recorded")
		}
		if w.missed++; w.missed > 1 && w.faults == 0 {
			x.breaks("a tick is reported as missed twice")
		}
	case reports:
		w.reported++
	}
	x.step(w, i, a)
	return true
}

// pass lets time pass. A replica that can make a step makes it first, unless it works.
func (x *everyExplorer) pass(w *eWorld) bool {
	next := int8(eEnd)
	if w.now < eAsleep {
		next = eAsleep
	}
	for i := range w.replicas {
		r := &w.replicas[i]
		switch {
		case r.dead || r.done || w.now < eAsleep && r.stands() || w.now < eWorked && r.next.kind == works:
		case r.next.kind == asleep && r.wake > w.now:
			next = min(next, r.wake)
		default:
			return false
		}
	}
	for i := range w.locks {
		if k := &w.locks[i]; k.owner != 0 && k.expires > 0 {
			next = min(next, k.expires)
		}
	}
	if w.now >= eEnd {
		return false
	}
	if w.now < eSlowest {
		next = w.now + 1
	}
	w.now = max(next, w.now+1)
	for n := range w.locks {
		if k := &w.locks[n]; k.owner != 0 && k.expires > 0 && k.expires <= w.now {
			if r := &w.replicas[k.owner-1]; !k.kept && !k.undo && r.holds[n] {
				r.lost[n], r.holds[n] = true, false
			}
			*k = eLock{}
		}
	}
	return true
}

func (x *everyExplorer) Broken(w *eWorld) string {
	over, alive := w.now >= eEnd, false
	for i := range w.replicas {
		r := &w.replicas[i]
		alive = alive || !r.dead
		over = over && (r.dead || r.done || r.next.kind == asleep && r.wake > w.now)
	}
	if over && alive && !w.took && !w.ended && w.missed+w.reported == 0 {
		x.breaks("the tick is neither served nor reported")
	}
	if w.faults == 0 && (w.missed+w.reported > 0 || over && w.served == 0) {
		x.breaks("a tick is not served, or it is reported, without a fault")
	}
	broken := x.broken
	x.broken = ""
	return broken
}

func (x *everyExplorer) Hash(w *eWorld) uint64 { return maphash.Comparable(exploreSeed, *w) }
func (x *everyExplorer) Quiet(*eWorld) bool    { return true }

var eWords = [eActs]string{
	eServe: "done", eBackground: "background", eResume: "goes on", eTime: "15 s pass", eRefuse: "refused",
	eLose: "done, no answer", eDelay: "late, no answer", eStall: "stands still", ePause: "is paused", eDie: "dies",
	eLonger: "a longer keep",
}

var eKinds = [...]string{
	asleep: "wakes", acquires: "take ", frees: "leave ", inspects: "inspect ", removes: "break ", works: "works",
	missed: "missed", reports: "error",
}

func (x *everyExplorer) story(w eWorld, path []eAction) string {
	var b strings.Builder
	b.WriteString(story.Head("store"))
	actors := [replicas]story.Actor{story.A, story.B}
	for _, a := range path {
		before := w
		x.Do(&w, a)
		s := story.Step{Actor: story.Server, Text: eWords[a.kind]}
		if eRanges[a.kind][0] == replicas && a.kind != eLonger {
			s.Actor = actors[a.a]
			q := before.replicas[a.a].next
			if a.kind == eServe || a.kind == eRefuse || a.kind == eLose || a.kind == eDelay {
				s.Text = eKinds[q.kind]
				if strings.HasSuffix(s.Text, " ") {
					s.Text += map[bool]string{false: "claim", true: "marker"}[q.marker]
					s.Answer = eWords[a.kind]
				}
			}
		}
		for i := range w.replicas {
			s.Holds[actors[i]] = w.replicas[i].next.kind == works && !w.replicas[i].dead
		}
		b.WriteString(s.Line() + "\n")
	}
	return b.String()
}

// goesOn are steps of a replica, and passes are units of time.
func goesOn(replica, n int8) []eAction {
	return slices.Repeat([]eAction{{eServe, replica, 0}}, int(n))
}

func passes(n int) []eAction { return slices.Repeat([]eAction{{eTime, 0, 0}}, n) }

func TestEveryInterleavingServesATickOnce(t *testing.T) {
	old := eLock{owner: 1, token: 1, other: true, kept: true, expires: eAsleep + 1}
	const a, b = 0, 1
	for _, start := range []struct {
		name   string
		ahead  [replicas]int8
		locks  [2]eLock
		faults int8
		path   []eAction
	}{
		{"equal clocks", [replicas]int8{0, 0}, [2]eLock{}, 1, nil},
		{"a clock ahead", [replicas]int8{0, 3}, [2]eLock{}, 1, nil},
		{"behind an old claim", [replicas]int8{0, 3}, [2]eLock{old, {}}, 1, nil},
		{"behind an old marker", [replicas]int8{0, 3}, [2]eLock{{}, old}, 1, nil},
		// B finds the old marker, and is paused. A breaks it and dies.
		{"paused before an old marker", [replicas]int8{0, 3}, [2]eLock{{}, old}, 2, slices.Concat(
			passes(1), goesOn(b, 3), []eAction{{ePause, b, 0}}, passes(3), goesOn(a, 3), passes(4), goesOn(a, 1),
			passes(4), goesOn(a, 4), []eAction{{eDie, a, 0}})},
		// A stands still with the claim. B gets the marker to report the tick, and is paused.
		{"paused with the marker", [replicas]int8{0, 0}, [2]eLock{}, 2, slices.Concat(
			passes(4), goesOn(a, 2), goesOn(b, 3), []eAction{{eStall, a, 0}}, passes(4), goesOn(b, 1),
			passes(4), goesOn(b, 2), []eAction{{ePause, b, 0}})},
	} {
		t.Run(start.name, func(t *testing.T) {
			x := &everyExplorer{ahead: start.ahead, links: make([]eLink, 1), known: map[eLink]int32{}, runs: map[eKey]eRun{}}
			depth := 100 // more than there is
			if x.faults = start.faults; *exploreDeeper > 0 && len(start.path) == 0 {
				x.faults, depth = x.faults+1, 35+*exploreDeeper
			}
			begin := eWorld{locks: start.locks, token: 1}
			for i := range int8(replicas) {
				x.advance(&begin, i)
			}
			w := begin
			for _, a := range start.path {
				if !x.Do(&w, a) {
					t.Fatalf("%v is not possible:\n%s", a, x.story(begin, start.path))
				}
			}
			actions := explore.Ranges(eRanges[:], func(kind int, a, b int8) eAction { return eAction{eActKind(kind), a, b} })
			s := explore.Search[eWorld, eAction]{Model: x, Settles: x, Actions: actions, Nth: 1 << 30}
			s.Run(w, depth).Report(t, func(path []eAction) string { return x.story(begin, append(start.path, path...)) })
		})
	}
}
