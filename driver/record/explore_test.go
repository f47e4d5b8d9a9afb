//go:build !race

// The exploration has one goroutine, and would be slow.

package record

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/internal/story"
)

// # Exploration
//
// A world is a storage with the record of one name, some clients, and their requests. The methods of the engine are
// the library's own: each runs with the answers that the world has given to its requests, up to its next request.
// The storage is a model in the forms of storageModels. Faults, of which a history has at most two: a request that is
// refused, applied without an answer, applied later, or applied twice; a Break; a client that dies; a clock that is set.
//
// Not explored: waiting, several names in one call, values, the checks of held grants.

var exploreDeeper = flag.Int("explore", 0, "explore the record engine by this number of actions deeper")

const (
	xClients, xGens, xOps, xLate, xSteps = 3, 3, 2*xClients + 1, 2, 16

	xBase = int64(1e15)
	xUnit = 14 * time.Second // of which ApplyTime has a little more than 2
	xTTL  = 3                // units
	xKeep = 2
	xIdle = int8((idleTime + xUnit - 1) / xUnit)
	xBack = 100 // by how much a clock is set back
)

// storageModel is what a storage declares.
type storageModel struct {
	name   string
	batch  bool // it implements Batch, with deadlines and sweeps
	skew   bool // two readings may differ by a unit
	lag    bool // a read may return the time of a unit before
	jumps  bool // the clock may be set
	keeps  bool // releases have a MinHold
	limits [xClients]int
}

// xRequest is a request to the storage: a read, or a put.
type xRequest struct {
	put               bool
	version           int8
	data              string
	token             uint64
	expires, deadline int64
}

type xAnswer struct {
	code         driver.Code
	version      int8
	data         string
	now, written int64
	floor        uint64
	own          bool // the record is what the call has put last
}

// fine is the code of a request or a call without an error.
const fine driver.Code = -1

func codeOf(err error) driver.Code {
	if err == nil {
		return fine
	}
	return driver.CodeOf(err)
}

type opKind uint8

const (
	noOp opKind = iota
	acquireOp
	renewOp
	releaseOp
	swapOp
	undoOp
	breakOp
)

// xCall is a call of the engine with its answers. The engine's code decides what follows.
type xCall struct {
	kind    opKind
	client  int8
	gen     int8 // of the grant
	token   uint64
	tokens  int8
	keep    int8
	slow    bool // a swap after driver.HandoffTime
	alone   xAlone
	history int32
}

// xAlone is the record in which a grant stood alone: its version, and when it was read.
type xAlone struct {
	version int8
	read    int64
}

// xOutcome is how a call ends.
type xOutcome struct {
	done             bool
	next             xRequest
	code, freed      driver.Code
	reports          int8 // how often the outcome of a swap's release was reported
	token            uint64
	tokens, sentWith int8 // the number of the request whose send counts
	alone            xAlone
}

// xOp is a call under way.
type xOp struct {
	xCall
	next  xRequest
	n     int8
	sent  [xSteps]int8 // when each request was sent
	wrote int8         // the version that its last put has made
	again bool         // an earlier release of the grant has no answer
	began bool         // the grant was valid then
}

type xClient struct {
	holds, dead        bool
	gen                int8 // of its last request
	token              uint64
	tokens             int8
	sent               int8
	lost               bool
	release, undo      int8 // the generation plus 1 that the core still releases, or undoes; 0 for none
	released           uint64
	alone              xAlone
	keepUntil, died    int8
	renewals, acquired int8
}

type world struct {
	now, ahead        int8
	version, versions int8
	data              string
	written           int8
	floor             uint64
	token             uint64 // the largest token that was recorded
	kept              int8   // until when the name is kept
	keeper            int8
	clients           [xClients]xClient
	ops               [xOps]xOp
	late              [xLate]xRequest
	lateBy            [xLate]opKind
	seen, gone        uint16 // grants that were recorded, and that must not be recorded any more
	exempt            uint16 // grants that a break or a clock has ended
	setBack           bool
	faults            int8
	tried             int8 // when a request found the name held, plus 1; for the way to a quiet state
	served            bool // a request on that way was granted
}

type action struct {
	kind actionKind
	a, b int8
}

type actionKind uint8

const (
	actServe actionKind = iota
	actUndo
	actRepeat
	actRelease
	actAcquire
	actTime
	// The rest happens only during the exploration.
	actRenew
	actKeep
	actSwap
	actSweep
	actLate
	actLong
	// The rest are faults.
	actRefuse
	actLost
	actDelay
	actTwice
	actBreak
	actDie
	actForward
	actBack
	actKinds
)

var ranges = [actKinds][2]int8{
	actServe: {xOps, 2}, actUndo: {xClients, 2}, actRepeat: {xClients, 2}, actRelease: {xClients, 2},
	actAcquire: {xClients, 2}, actTime: {1, 1}, actRenew: {xClients, 2}, actKeep: {xClients, 2}, actSwap: {xClients, 2}, actSweep: {1, 1},
	actLate: {xLate, 1}, actLong: {1, 1}, actRefuse: {xOps, 1}, actLost: {xOps, 1}, actDelay: {xOps, 1},
	actTwice: {xOps, 1}, actBreak: {xClients, 2}, actDie: {xClients, 1}, actForward: {1, 1}, actBack: {1, 1},
}

var words = [actKinds]string{
	actServe: "done", actUndo: "Undo", actRepeat: "Release again", actRelease: "Release", actAcquire: "Acquire",
	actTime: "14 s pass", actRenew: "Renew", actKeep: "Release, keep 28 s", actSwap: "Swap", actSweep: "sweep",
	actLate: "a late write", actLong: "42 s pass", actRefuse: "refused", actLost: "done, no answer",
	actDelay: "late, no answer", actTwice: "done twice", actBreak: "Break", actDie: "dies", actForward: "clock: 28 s ahead", actBack: "clock: set back",
}

// explorer explores one storage.
type explorer struct {
	m       storageModel
	e       *engine
	script  explore.Script[xRequest, xAnswer]
	stamps  []time.Time // of the requests
	put     []byte      // the last data that the call has put
	calm    bool        // on the way to a quiet state
	broken  string
	answers map[xLink]int32 // the numbers of histories
	links   []xLink
	known   map[xCall]xOutcome
	parsed  map[xRecord]xParsed
}

// xLink is a history: an earlier one and one answer.
type xLink struct {
	before int32
	answer xAnswer
}

func newExplorer(m storageModel) *explorer {
	x := &explorer{m: m, answers: map[xLink]int32{}, links: make([]xLink, 1), known: map[xCall]xOutcome{},
		parsed: map[xRecord]xParsed{}}
	o := Options{Notice: 1e6 * time.Hour}
	if m.skew {
		o.Skew = func() time.Duration { return xUnit }
	}
	if m.batch {
		x.e = NewEngine(xBatch{x}, o).engine
		x.e.queue = maxQueue // of a storage that notifies
	} else {
		x.e = New(xStorage{x}, "model", driver.Guarantees{}, o).engine
	}
	return x
}

func (x *explorer) breaks(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

func (x *explorer) ask(r xRequest) xAnswer {
	at := time.Now()
	for n := len(x.stamps); n > 0 && !at.After(x.stamps[n-1]); {
		at = time.Now()
	}
	x.stamps = append(x.stamps, at)
	return x.script.Ask(r)
}

func xTime(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

func versionText(v int8) string {
	if v == 0 {
		return ""
	}
	return strconv.Itoa(int(v))
}

func versionOf(text string) int8 {
	v, _ := strconv.Atoi(cmp.Or(text, "0"))
	return int8(v)
}

func (a *xAnswer) object() Object {
	return Object{Data: []byte(a.data), Version: versionText(a.version), Now: time.UnixMicro(a.now),
		Written: xTime(a.written), Floor: a.floor}
}

// xBatch is the storage as a Batch.
type xBatch struct{ x *explorer }

func (b xBatch) Exchange(_ context.Context, changes []Change, _ []string) []Result {
	unread := driver.CodeUnavailable
	for _, c := range changes {
		a := b.x.ask(xRequest{put: true, version: versionOf(c.Old.Version), data: string(c.Data), token: c.Token,
			expires: c.Expires.UnixMicro(), deadline: c.Deadline.UnixMicro()})
		if a.code != fine && a.code != driver.CodeConflict {
			return []Result{{Err: driver.Errorf(a.code, "of the model")}}
		}
		unread = driver.CodeUnknown
	}
	a := b.x.ask(xRequest{})
	if a.code != fine {
		return []Result{{Err: driver.Errorf(unread, "of the model")}}
	}
	return []Result{{Object: a.object()}}
}

func (xBatch) List(context.Context, string) iter.Seq2[Entry, error] { panic("not explored") }
func (xBatch) Close() error                                         { return nil }

// xStorage is the storage as a Storage.
type xStorage struct{ x *explorer }

func (s xStorage) Get(context.Context, string) (Object, error) {
	a := s.x.ask(xRequest{})
	if a.code != fine {
		return Object{}, driver.Errorf(a.code, "of the model")
	}
	o := a.object()
	if o.Data = append([]byte(strings.Repeat("0", prefixBytes)), o.Data...); a.own {
		o.Data = s.x.put
	}
	return o, nil
}

func (s xStorage) Put(_ context.Context, _ string, data []byte, version string) (string, error) {
	s.x.put = slices.Clone(data)
	a := s.x.ask(xRequest{put: true, version: versionOf(version), data: string(data[prefixBytes:])})
	if a.code != fine {
		return "", driver.Errorf(a.code, "of the model")
	}
	return versionText(a.version), nil
}

func (xStorage) List(context.Context, string) iter.Seq2[Entry, error] { panic("not explored") }
func (xStorage) Close() error                                         { return nil }

func idText(client, gen int8) string { return fmt.Sprintf("%c%d", 'A'+client, gen) }

func bit(client, gen int8) uint16 { return 1 << (client*xGens + gen) }

func bitOf(id string) uint16 { return bit(int8(id[0]-'A'), int8(id[1]-'0')) }

// run runs a call with its answers.
func (x *explorer) run(c xCall) xOutcome {
	if out, ok := x.known[c]; ok {
		return out
	}
	var answers []xAnswer
	for h := c.history; h != 0; h = x.links[h].before {
		answers = append([]xAnswer{x.links[h].answer}, answers...)
	}
	const ttl = xTTL * xUnit
	limit := x.m.limits[c.client]
	g := driver.Grant{ID: idText(c.client, c.gen), Name: "n", Limit: limit, Token: c.token, Tokens: int(c.tokens), TTL: ttl}
	if c.alone.version != 0 {
		g.SentAt, g.Handle = driver.Now(), handle{alone: versionText(c.alone.version), read: c.alone.read}
	}
	r := driver.Request{ID: g.ID, Name: "n", Limit: limit, TTL: ttl, Tokens: 3, From: noRequester{}}
	r.Waited = time.Duration(c.client) // all clients but the first one wait, and get queue entries
	var err error
	var sent driver.Instant
	out := xOutcome{}
	x.stamps, x.put = x.stamps[:0], nil
	ctx := context.Background()
	next := x.script.Play(answers, func() {
		switch c.kind {
		case acquireOp:
			g, err = x.e.Acquire(ctx, r)
			sent = g.SentAt
		case renewOp:
			a := x.e.Renew(ctx, []driver.Grant{g})[0]
			err, sent = a.Err, a.SentAt
			if err == nil && a.TTL != ttl {
				x.breaks("a renewal for %s", a.TTL)
			}
		case releaseOp:
			if c.alone.version != 0 {
				x.e.held.Hold(&held.Grant{Grant: g, From: noRequester{}})
			}
			err = x.e.Release(ctx, g, time.Duration(c.keep)*xUnit)
		case swapOp:
			h := &held.Grant{Grant: g, From: noRequester{}}
			h.Handle = handle{since: time.Now().Add(time.Hour)}
			if c.slow {
				h.Handle = handle{since: time.Now().Add(-time.Hour)}
			}
			x.e.held.Hold(h)
			r.ID, r.Wait = idText(c.client, c.gen+1), true
			g, err = x.e.Swap(ctx, g, r, func(err error) {
				out.reports++
				out.freed = codeOf(err)
			})
			sent = g.SentAt
		case undoOp:
			err = x.e.Undo(ctx, r)
		case breakOp:
			err = x.e.Break(ctx, "n", c.token)
		}
	})
	x.e.held.Forget(idText(c.client, c.gen))
	x.e.held.Forget(r.ID)
	if next != nil {
		out = xOutcome{next: *next}
	} else {
		out.done, out.code = true, codeOf(err)
		if err == nil {
			out.token, out.tokens = g.Token, int8(g.Tokens)
			if h, ok := g.Handle.(handle); ok {
				out.alone = xAlone{versionOf(h.alone), h.read}
			}
			for int(out.sentWith) < len(x.stamps)-1 && sent.Time().After(x.stamps[out.sentWith]) {
				out.sentWith++
			}
		}
	}
	x.known[c] = out
	return out
}

// reading is the time by the storage's clock.
func (w *world) reading() int64 { return xBase + int64(w.now+w.ahead)*micros(xUnit) }

// latest is the latest time that a read may return.
func (x *explorer) latest(w *world) int64 {
	if x.m.skew {
		return w.reading() + micros(xUnit)
	}
	return w.reading()
}

// recorded is a grant of the record, by the exploration's own reading of it.
type recorded struct {
	id      string
	token   uint64
	last    uint64
	left    bool
	expires int64
}

// xRecord is a record, and when it was written.
type xRecord struct {
	data    string
	written int64
}

func (x *explorer) parse(data string, written int8, w *world) (all []recorded, token uint64) {
	if data == "" {
		return nil, 0
	}
	key := xRecord{data, xBase + int64(written+w.ahead)*micros(xUnit)}
	if all, ok := x.parsed[key]; ok {
		return all.holders, all.token
	}
	c, why := decode([]byte(data))
	if why != "" {
		x.breaks("a record is broken: %s", why)
	}
	for _, h := range c.Holders {
		r := recorded{h.ID, h.Token, driver.LastToken(h.Token, h.Tokens), h.Left, h.Expires}
		if c.At > 0 && h.Expires-h.TTL == c.At {
			r.expires = max(r.expires, key.written+h.TTL)
		}
		all = append(all, r)
	}
	x.parsed[key] = xParsed{all, uint64(c.Token)}
	return all, uint64(c.Token)
}

type xParsed struct {
	holders []recorded
	token   uint64
}

func find(all []recorded, id string) *recorded {
	for i := range all {
		if all[i].id == id {
			return &all[i]
		}
	}
	return nil
}

// apply is what the storage does with a put. It returns a code.
func (x *explorer) apply(w *world, r *xRequest, by opKind) driver.Code {
	if r.version != w.version || r.deadline != 0 && w.reading() >= r.deadline {
		return driver.CodeConflict
	}
	before, _ := x.parse(w.data, w.written, w)
	after, token := x.parse(r.data, w.now, w)
	w.versions++
	w.version, w.data, w.written = w.versions, r.data, w.now
	w.token = max(w.token, w.floor)
	last := w.token
	for _, h := range after {
		old, b := find(before, h.id), bitOf(h.id)
		if old != nil && old.token != h.token {
			old = nil // its request has a second grant, as the first one has expired
		}
		switch {
		case old == nil && w.seen&b != 0 && by != acquireOp && by != swapOp:
			x.breaks("grant %s is recorded again", h.id)
		case old == nil && h.token <= w.token:
			x.breaks("grant %s has token %d after token %d", h.id, h.token-uint64(xBase), w.token-uint64(xBase))
		case old == nil && w.now < w.kept:
			x.breaks("grant %s while the name is kept", h.id)
		case old == nil && h.last != h.token && h.last > uint64(x.latest(w)) && !w.setBack:
			x.breaks("grant %s has tokens ahead of the clock", h.id)
		case old != nil && old.left && !h.left:
			x.breaks("grant %s is released and then not", h.id)
		case old != nil && x.m.batch && !h.left && old.expires <= w.reading() && h.expires > w.reading():
			x.breaks("grant %s had expired, and is renewed", h.id)
		}
		w.seen |= b
		last = max(last, h.last)
	}
	if w.token = last; token < w.token {
		x.breaks("the record forgets its last token")
	}
	for _, h := range before {
		if by == breakOp && find(after, h.id) == nil {
			w.exempt |= bitOf(h.id)
			if h.left {
				w.kept = 0
			}
		}
	}
	return fine
}

// step gives an op an answer.
func (x *explorer) step(w *world, o *xOp, a xAnswer) {
	link := xLink{o.history, a}
	h, ok := x.answers[link]
	if !ok {
		h = int32(len(x.links))
		x.links = append(x.links, link)
		x.answers[link] = h
	}
	o.history = h
	o.n++
	x.advance(w, o)
}

// advance runs an op up to its next request.
func (x *explorer) advance(w *world, o *xOp) {
	out := x.run(o.xCall)
	if !out.done {
		if o.next = out.next; int(o.n) < xSteps {
			o.sent[o.n] = w.now
		}
		return
	}
	was := *o
	*o = xOp{}
	x.finish(w, &was, &out)
}

// finish is what the core does with the outcome of a call.
func (x *explorer) finish(w *world, o *xOp, out *xOutcome) {
	c := &w.clients[o.client]
	unclear := out.code == driver.CodeUnknown || out.code == driver.CodeUnavailable
	ends := func(gen int8) { w.gone |= bit(o.client, gen) }
	granted := func(gen int8) {
		if out.code == driver.CodeUnknown {
			c.undo = gen + 1
			return
		}
		switch out.code {
		case fine:
			c.holds, c.gen, c.token, c.sent, c.lost, c.renewals = true, gen, out.token, o.sent[out.sentWith], false, 0
			c.tokens, c.alone = out.tokens, out.alone
		case driver.CodeBusy, driver.CodeUnavailable:
			w.tried = w.now + 1
			if ends(gen); w.seen&bit(o.client, gen) == 0 { // nothing of it was written: the next request is like it
				c.acquired--
				w.gone &^= bit(o.client, gen)
			}
		default:
			x.breaks("a request ends with the code %v", out.code)
		}
	}
	endRelease := func(code driver.Code) {
		switch code {
		case fine:
			if o.keep > 0 && w.exempt&bit(o.client, o.gen) == 0 {
				w.kept, w.keeper = max(w.kept, o.sent[0]+o.keep), o.client
			}
			c.release = 0
			ends(o.gen)
		case driver.CodeNotHeld:
			if o.began && !o.again && w.now < c.sent+xTTL && w.exempt&bit(o.client, o.gen) == 0 {
				x.breaks("the release of a grant that stands is refused")
			}
			c.release = 0
			if o.keep == 0 {
				ends(o.gen)
			}
		case driver.CodeUnknown, driver.CodeUnavailable:
			c.release = o.gen + 1
		default:
			x.breaks("a release ends with the code %v", code)
		}
	}
	switch o.kind {
	case acquireOp:
		granted(o.gen)
		if x.calm && out.code == fine {
			w.served = true
		}
	case renewOp:
		switch {
		case !c.holds || c.gen != o.gen:
		case out.code == fine:
			c.sent = max(c.sent, o.sent[out.sentWith])
		case out.code == driver.CodeNotHeld:
			if x.live(w, o.client) && w.exempt&bit(o.client, o.gen) == 0 {
				x.breaks("the renewal of a grant that stands is refused")
			}
			c.lost = true
		case !unclear:
			x.breaks("a renewal ends with the code %v", out.code)
		}
	case releaseOp:
		endRelease(out.code)
	case swapOp:
		if out.reports > 1 {
			x.breaks("the outcome of a release is reported twice")
		}
		if out.reports == 0 {
			c.release = o.gen + 1
		} else {
			endRelease(out.freed)
		}
		granted(o.gen + 1)
	case undoOp:
		if out.code == fine {
			c.undo = 0
			ends(o.gen)
		} else if !unclear {
			x.breaks("an undo ends with the code %v", out.code)
		}
	case breakOp:
		if out.code == fine || out.code == driver.CodeNotHeld {
			all, _ := x.parse(w.data, w.written, w)
			if h := find(all, idText(o.client, o.gen)); h != nil && !h.left && h.expires > x.latest(w) {
				x.breaks("a broken grant is left")
			}
		}
	}
}

// live reports whether a client relies on its grant.
func (x *explorer) live(w *world, client int8) bool {
	c := &w.clients[client]
	return c.holds && !c.dead && !c.lost && w.now < c.sent+xTTL
}

func (x *explorer) Do(w *world, a action) bool {
	if a.kind >= actRefuse && w.faults >= 2 || !x.act(w, a) {
		return false
	}
	if a.kind >= actRefuse {
		w.faults++
	}
	// What can have no further effect is removed, so that equal states look equal.
	for i := range w.late {
		r := &w.late[i]
		replaced := r.version != w.version && (r.version != 0 || !x.m.batch) // a sweep brings the version 0 back
		if replaced || r.deadline != 0 && w.reading() >= r.deadline && !w.setBack {
			*r, w.lateBy[i] = xRequest{}, 0
		}
	}
	if w.now >= w.kept {
		w.kept, w.keeper = 0, 0
	}
	return true
}

// answer returns what a read returns, with one of two clocks.
func (x *explorer) answer(w *world, o *xOp, clock int8) xAnswer {
	own := w.version > 0 && o.wrote == w.version && !x.m.batch
	a := xAnswer{code: fine, version: w.version, data: w.data, now: w.reading(), floor: w.floor, own: own}
	switch {
	case clock == 0:
	case x.m.lag:
		a.now -= micros(xUnit)
	default:
		a.now += micros(xUnit)
	}
	if x.m.lag {
		if a.written = a.now; w.version != 0 {
			a.written = xBase + int64(w.written+w.ahead)*micros(xUnit)
		}
	}
	return a
}

func (x *explorer) clocks() int8 {
	if x.m.skew || x.m.lag {
		return 2
	}
	return 1
}

func (x *explorer) act(w *world, a action) bool {
	switch a.kind {
	case actServe, actRefuse, actLost, actDelay, actTwice:
		o := &w.ops[a.a]
		return o.kind != noOp && x.doOp(w, o, a)
	case actTime:
		return x.pass(w, 1)
	case actLong:
		return x.pass(w, xTTL)
	case actSweep:
		all, token := x.parse(w.data, w.written, w)
		last := int64(0)
		for _, h := range all {
			last = max(last, h.expires)
		}
		if !x.m.batch || w.version == 0 || w.now-w.written < xIdle || last+int64(xIdle)*micros(xUnit) > w.reading() {
			return false
		}
		w.floor = max(w.floor, token)
		w.version, w.data, w.written = 0, "", 0
		return true
	case actLate:
		r := &w.late[a.a]
		if !r.put {
			return false
		}
		late, by := *r, w.lateBy[a.a]
		*r, w.lateBy[a.a] = xRequest{}, 0
		return x.apply(w, &late, by) == fine
	case actForward:
		if !x.m.jumps {
			return false
		}
		w.ahead += 2
		w.exempt = 1<<(xClients*xGens) - 1
		w.kept = 0
		return true
	case actBack:
		if !x.m.jumps || w.setBack {
			return false
		}
		w.ahead -= xBack
		w.setBack = true
		return true
	}
	return a.b < x.clocks() && x.doClient(w, a)
}

func (x *explorer) pass(w *world, units int8) bool {
	if !x.calm && w.now+units > 8 || w.now > 100 {
		return false
	}
	w.now += units
	return true
}

// doOp serves a request, or not.
func (x *explorer) doOp(w *world, o *xOp, a action) bool {
	if o.n >= xSteps-1 || a.b >= x.clocks() || o.next.put && a.b > 0 {
		return false
	}
	r := o.next
	if !r.put && a.kind != actServe && a.kind != actRefuse {
		return false
	}
	switch a.kind {
	case actServe:
		if !r.put {
			x.step(w, o, x.answer(w, o, a.b))
			return true
		}
		code := x.apply(w, &r, o.kind)
		if code == fine {
			o.wrote = w.version
		}
		x.step(w, o, xAnswer{code: code, version: o.wrote})
	case actRefuse:
		x.step(w, o, xAnswer{code: driver.CodeUnavailable})
	case actLost:
		if x.apply(w, &r, o.kind) != fine {
			return false
		}
		x.step(w, o, xAnswer{code: driver.CodeUnknown})
	case actDelay:
		if !x.delay(w, &r, o.kind) {
			return false
		}
		x.step(w, o, xAnswer{code: driver.CodeUnknown})
	case actTwice: // a proxy repeats it, and the client gets the second answer
		if x.m.batch || x.apply(w, &r, o.kind) != fine {
			return false
		}
		o.wrote = w.version
		x.step(w, o, xAnswer{code: driver.CodeConflict})
	}
	return true
}

// delay keeps a put that may arrive later.
func (x *explorer) delay(w *world, r *xRequest, by opKind) bool {
	for i := range w.late {
		if !w.late[i].put {
			w.late[i], w.lateBy[i] = *r, by
			return r.version == w.version || r.version == 0
		}
	}
	return false
}

// doClient begins a call. If its first request is a read, that is served at once.
func (x *explorer) doClient(w *world, a action) bool {
	i := a.a
	c := &w.clients[i]
	if c.dead {
		return false
	}
	o := &w.ops[2*i]
	if a.kind == actRenew {
		o = &w.ops[2*i+1]
	} else if a.kind == actBreak {
		o = &w.ops[xOps-1]
	}
	if a.kind == actDie {
		if !c.holds && w.ops[2*i].kind == noOp {
			return false
		}
		for _, o := range w.ops[2*i : 2*i+2] {
			if o.kind != noOp && o.next.put {
				x.delay(w, &o.next, o.kind)
			}
		}
		w.ops[2*i], w.ops[2*i+1] = xOp{}, xOp{}
		*c = xClient{dead: true, died: w.now}
		return true
	}
	if o.kind != noOp {
		return false
	}
	call := xCall{client: i, gen: c.gen, token: c.token}
	again, began := false, x.live(w, i)
	switch a.kind {
	case actAcquire:
		most := int8(2)
		if x.calm {
			most = xGens
		}
		waits := x.calm && (w.tried == w.now+1 || w.served)
		if c.holds || c.release != 0 || c.undo != 0 || c.acquired >= most || waits {
			return false
		}
		if i > 0 && w.clients[i-1] == (xClient{}) && w.ops[2*(i-1)].kind == noOp {
			return false // which client comes first has no meaning
		}
		call.kind, call.gen, call.token = acquireOp, c.acquired, 0
		c.acquired++
	case actRenew:
		if !x.live(w, i) || c.renewals >= 2 {
			return false
		}
		c.renewals++
		call.kind = renewOp
	case actRelease, actKeep:
		if !c.holds || a.kind == actKeep && !x.m.keeps {
			return false
		}
		call.kind = releaseOp
		if a.kind == actKeep {
			call.keep = xKeep
		} else if began && w.now <= c.sent+1 {
			call.tokens, call.alone = c.tokens, c.alone
		}
		c.holds, c.release, c.released, c.keepUntil = false, 0, c.token, w.now+call.keep
	case actRepeat:
		if c.release == 0 {
			return false
		}
		call = xCall{kind: releaseOp, client: i, gen: c.release - 1, token: c.released, keep: max(c.keepUntil-w.now, 0)}
		again = true
	case actSwap:
		if !c.holds || c.acquired >= 2 || x.m.limits[i] != driver.Exclusive {
			return false
		}
		call.kind = swapOp
		c.acquired++
		c.holds, c.released, c.keepUntil = false, c.token, 0
	case actUndo:
		if c.undo == 0 || c.release != 0 {
			return false
		}
		call.kind, call.gen, call.token = undoOp, c.undo-1, 0
	case actBreak:
		if !c.holds || !x.live(w, i) {
			return false
		}
		call.kind = breakOp
	}
	*o = xOp{xCall: call, again: again, began: began}
	x.advance(w, o)
	if o.next.put {
		return a.b == 0
	}
	x.step(w, o, x.answer(w, o, a.b))
	return true
}

func (x *explorer) Broken(w *world) string {
	all, _ := x.parse(w.data, w.written, w)
	least, n := driver.Unlimited, 0
	for i := range int8(xClients) {
		c := &w.clients[i]
		if !x.live(w, i) || w.exempt&bit(i, c.gen) != 0 {
			continue
		}
		n++
		least = min(least, x.m.limits[i])
		h := find(all, idText(i, c.gen))
		if h == nil || h.left || h.token != c.token || h.expires <= x.latest(w) && !w.setBack {
			x.breaks("client %c relies on grant %s, and the record has ended it", 'A'+i, idText(i, c.gen))
		}
	}
	if n > least {
		x.breaks("%d clients rely on grants of limit %d", n, least)
	}
	left := false
	for _, h := range all {
		stands := h.expires > w.reading()
		if !h.left && h.expires > x.latest(w) && !w.setBack && w.gone&bitOf(h.id) != 0 {
			x.breaks("grant %s is over, and the record has it", h.id)
		}
		c := &w.clients[h.id[0]-'A']
		if c.dead && stands && !w.setBack && w.exempt == 0 && !x.m.lag && w.now >= c.died+xTTL+2 {
			x.breaks("grant %s of a client that died does not expire", h.id)
		}
		left = left || h.left && h.expires > x.latest(w)
	}
	if w.now < w.kept && !left && w.exempt == 0 {
		x.breaks("the name is not kept")
	}
	broken := x.broken
	x.broken = ""
	return broken
}

var exploreSeed = maphash.MakeSeed()

func (x *explorer) Hash(w *world) uint64 { return maphash.Comparable(exploreSeed, *w) }

func (x *explorer) Quiet(w *world) bool {
	if w.ops != [xOps]xOp{} {
		return false
	}
	alone := true // every client has died or has no request left
	for i := range w.clients {
		c := &w.clients[i]
		if c.holds || c.release != 0 || c.undo != 0 {
			return false
		}
		alone = alone && (c.dead || c.acquired == xGens)
	}
	return alone || w.served
}

// settling is the explorer on the way to a quiet state.
type settling struct{ *explorer }

func (x settling) Do(w *world, a action) bool {
	x.calm = true
	defer func() { x.calm = false }()
	return x.explorer.Do(w, a)
}

// story draws a path.
func (x *explorer) story(path []action) string {
	var b strings.Builder
	b.WriteString(story.Head("storage"))
	var w world
	opWords := [...]string{
		acquireOp: "Acquire", renewOp: "Renew", releaseOp: "Release", swapOp: "Swap", undoOp: "Undo", breakOp: "Break",
	}
	for _, a := range path {
		before := w
		x.Do(&w, a)
		s := story.Step{Actor: story.Server, Text: words[a.kind]}
		client := int8(-1)
		switch {
		case ranges[a.kind][0] == xOps:
			o := before.ops[a.a]
			client = o.client
			s.Text, s.Answer = opWords[o.kind]+", read", words[a.kind]
			if o.next.put {
				s.Text = opWords[o.kind] + ", write"
			}
			if a.kind == actServe && o.next.put && w.version == before.version {
				s.Answer = "conflict"
			}
		case ranges[a.kind][0] == xClients:
			client = a.a
			s.Answer = "read"
		}
		if client >= 0 {
			s.Text = fmt.Sprintf("%c: %s", 'A'+client, s.Text)
			s.Actor = story.A
			if client > 0 {
				s.Actor = story.B
			}
		}
		for i := range int8(xClients) {
			if x.live(&w, i) {
				s.Holds[map[bool]story.Actor{true: story.A, false: story.B}[i == 0]] = true
			}
		}
		b.WriteString(s.Line() + "\n")
	}
	return b.String()
}

var storageModels = []storageModel{
	{name: "batch", batch: true, limits: [xClients]int{1, 1, 1}},
	{name: "batch, coarse clock, MinHold", batch: true, skew: true, keeps: true, limits: [xClients]int{1, 1, 1}},
	{
		name: "batch, clock set, shared", batch: true, jumps: true,
		limits: [xClients]int{1, driver.Unlimited, driver.Unlimited},
	},
	{name: "storage", limits: [xClients]int{1, 1, 1}},
	{name: "storage, late clock, semaphore", lag: true, limits: [xClients]int{2, 2, 2}},
	{name: "storage, coarse clock, MinHold", skew: true, keeps: true, limits: [xClients]int{1, 1, 1}},
}

// starts are the states from which the exploration starts. A Storage does not read after a write, so there some of
// these actions are not possible.
var starts = []struct {
	name string
	path []action
}{
	{"free", nil},
	{"held", grantA},
	{"renewed while a client requests", append(slices.Clip(grantA),
		action{actTime, 0, 0}, action{actTime, 0, 0}, action{actAcquire, 1, 0}, action{actRenew, 0, 0})},
	{"released a while ago", append(slices.Clip(grantA),
		action{actRelease, 0, 0}, action{actServe, 0, 0}, action{actServe, 0, 0}, action{actLong, 0, 0})},
}

var grantA = []action{{actAcquire, 0, 0}, {actServe, 0, 0}, {actServe, 0, 0}}

func TestEveryInterleavingOfARecordKeepsTheInvariants(t *testing.T) {
	for _, m := range storageModels {
		for _, start := range starts {
			t.Run(m.name+", "+start.name, func(t *testing.T) {
				x := newExplorer(m)
				var w world
				var path []action
				for _, a := range start.path {
					if x.Do(&w, a) {
						path = append(path, a)
					} else if m.batch {
						t.Fatalf("%v is not possible", a)
					}
				}
				actions := explore.Ranges(ranges[:], func(kind int, a, b int8) action {
					return action{actionKind(kind), a, b}
				})
				calm := slices.IndexFunc(actions, func(a action) bool { return a.kind > actTime })
				s := explore.Search[world, action]{Model: x, Actions: actions, Calm: calm, Settles: settling{x}, Nth: 8}
				depth := 5
				if x.clocks() == 1 {
					depth++
				}
				f := s.Run(w, explore.Depth(depth, *exploreDeeper))
				f.Report(t, func(more []action) string { return x.story(append(path, more...)) })
			})
		}
	}
}
