//go:build !race

package failover

import (
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/internal/story"
	"github.com/holdfast-go/holdfast/redisstore"
)

// # Exploration of a failover
//
// The world is one primary, one replica, and two clients of one name. The replica applies the writes of the primary
// later, at most maxBehind behind. WAIT counts it when it has the last write of the call; after a script that writes
// nothing, at once. The replica may be promoted at each point, without the writes that it lacks. The former primary is
// gone, or goes on and serves clients. The store runs in fake time, and its scripts in an interpreter of Lua; only the
// commands of Redis that they use are a model.
//
// Faults, of which a history has at most two: a request that is refused, applied without an answer, or applied later; a
// WAIT that ends too early; a lost message; one promotion. Without WAIT a promotion that loses writes may end grants, but
// a client that has an answer of the new primary does not begin with a grant of the former one.
//
// Not explored: clocks that differ, Sentinel and Cluster, combined calls, permits and shared grants, reserved tokens, two
// requests of one client at the same time, the checks of held grants, a request that waits for its answer for longer
// than two seconds. A step that depends on the jitter of the store is tried once.

var exploreDeeper = flag.Int("explore", 0, "explore the failover by this number of actions deeper")

const (
	clients, maxRequests, maxMessages, maxBehind = 2, 5, 3, 3

	depth              = 4
	maxGens, maxFaults = 3, 2
	long               = 7 // units, longer than a promoted client may take to confirm its grant
	patience           = 4
	latest             = 2*long + 3
)

// request is a request to a server.
type request struct {
	client int8
	ask    int8  // 0 for no request
	at     int8  // when the client made it
	call   int32 // what it is
	gone   bool  // the client does not wait for the answer
	former bool  // it is at a former primary
	ran    bool  // the script has run, and WAIT has not returned
	answer int32
	behind int8 // writes that the replica must apply before WAIT counts it
}

// push is a message on its way.
type push struct {
	client int8
	text   string
}

// world is the state of the exploration. Data are numbers of interned values.
type world struct {
	now      int8
	primary  int32
	former   int32 // the data of a former primary that goes on
	replica  int32
	log      [maxBehind]int32 // the data of the primary after each write that the replica has not applied
	behind   int8
	promoted bool
	// A promotion has lost writes. So it may have ended the grants with tokens up to lost, if they began before it.
	// A client that has an answer of the new primary must not begin with such a grant.
	lost     uint64
	answered [clients]bool
	exempt   [clients]bool // its grant may have ended so
	history  [clients]int32
	requests [maxRequests]request
	messages [maxMessages]push
	faults   int8
	token    uint64 // the last one of a grant
}

// micros returns the time in microseconds.
func (w *world) micros() int64 { return (time.Duration(w.now) * unit).Microseconds() }

type actKind uint8

const (
	actMessage actKind = iota
	actServe
	actAck
	actReplicate
	actRelease
	actUndo
	actBroken // the connection to a server that is no primary any more
	actTime
	// The rest are not used on the way to a quiet state.
	actLong
	actAcquire
	actRenew
	actKeep
	actSwap
	actCancel
	actLate
	actFormer
	// The rest are faults.
	actFew
	actRefuse
	actLose
	actLoseBefore
	actLoseMessage
	actPromote
	acts
)

var ranges = [acts][2]int8{
	actMessage: {maxMessages, 1}, actServe: {maxRequests, 1}, actAck: {maxRequests, 1}, actReplicate: {1, 1},
	actRelease: {clients, 1}, actUndo: {clients, 1}, actTime: {1, 1}, actLong: {1, 1},
	actAcquire: {clients, 1}, actRenew: {clients, 1}, actKeep: {clients, 1}, actSwap: {clients, 1},
	actCancel: {clients, 1},
	actLate:   {maxRequests, 1}, actFormer: {maxRequests, 1}, actBroken: {maxRequests, 1},
	actFew: {maxRequests, 1}, actRefuse: {maxRequests, 1}, actLose: {maxRequests, 1}, actLoseBefore: {maxRequests, 1},
	actLoseMessage: {maxMessages, 1}, actPromote: {1, 1},
}

type action struct {
	kind actKind
	a, b int8
}

// interned gives equal values one number.
type interned[K comparable, V any] struct {
	numbers map[K]int32
	values  []V
}

func (i *interned[K, V]) of(k K, v V) int32 {
	n, ok := i.numbers[k]
	if !ok {
		if i.numbers == nil {
			i.numbers = map[K]int32{}
		}
		n = int32(len(i.values))
		i.numbers[k] = n
		i.values = append(i.values, v)
	}
	return n
}

// result is the answer of a server.
type result struct {
	values []string
	err    error
}

type link struct {
	client int8
	before int32
	input  input
}

type runKey struct {
	history int32
	now     int8
}

type evalKey struct {
	call, data int32
	now        int8
}

type evaluated struct {
	answer, data int32
	wrote        bool
	messages     []message
}

// explorer explores a mode. It keeps the results of each step, which many states have in common.
type explorer struct {
	t       *testing.T
	m       mode
	calm    bool
	broken  string
	chance  bool // a client has made another step with the same inputs
	skipped int  // states, for that reason
	// unsettled: this has happened on the way to a quiet state, which is then given up.
	unsettled bool
	in        *interpreter
	data      interned[string, data]
	calls     interned[string, *ask]
	answers   interned[string, result]
	links     interned[link, link]
	runs      map[runKey]outcome
	evals     map[evalKey]evaluated
	acquire   *ask // a request to a free name
}

const lostAnswer, readonlyAnswer = 0, 1

func newExplorer(t *testing.T, m mode) *explorer {
	x := &explorer{t: t, m: m, in: newInterpreter(), runs: map[runKey]outcome{}, evals: map[evalKey]evaluated{}}
	x.answers.of("lost", result{err: errLost})
	x.answers.of("readonly", result{err: errReadonly})
	x.data.of("", data{})
	for i := range int8(clients) {
		x.links.of(link{client: i, before: -1}, link{client: i, before: -1})
	}
	return x
}

func (x *explorer) start() (w world) {
	for i := range w.history {
		w.history[i] = int32(i)
	}
	return w
}

func (x *explorer) breaks(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

func name(client int8) string { return string('A' + rune(client)) }

// outcome returns what a client does now.
func (x *explorer) outcome(w *world, client int8) (o outcome) {
	defer func() { x.chance = x.chance || o.chance }()
	k := runKey{w.history[client], w.now}
	if o, ok := x.runs[k]; ok {
		return o
	}
	if o, ok := x.runs[runKey{k.history, k.now - 1}]; ok && o.idle {
		x.runs[k] = o // it waits for its next command
		return o
	}
	var inputs []input
	for h := k.history; x.links.values[h].before >= 0; h = x.links.values[h].before {
		inputs = append(inputs, x.links.values[h].input)
	}
	slices.Reverse(inputs)
	o = run(x.t, name(client), x.m, inputs, x.answers.values, w.now)
	x.runs[k] = o
	return o
}

// input gives a client an input.
func (x *explorer) input(w *world, client int8, in input) {
	in.at = w.now
	l := link{client, w.history[client], in}
	before := x.outcome(w, client)
	w.history[client] = x.links.of(l, l)
	x.advance(w, client)
	if o := x.outcome(w, client); o.holds && (!before.holds || before.token != o.token) && x.live(w, client) {
		if o.token <= w.token {
			x.breaks("client %s gets the token %d after %d", name(client), o.token, w.token)
		}
		w.token = max(w.token, o.last)
		w.exempt[client] = x.m.replicas == 0 && o.token <= w.lost && !w.answered[client]
	}
}

// advance adds the requests that a client has made, and marks those for whose answers it does not wait any more.
func (x *explorer) advance(w *world, client int8) {
	asks := x.outcome(w, client).asks
	for i := range w.requests {
		r := &w.requests[i]
		if r.ask == 0 || r.client != client || r.gone {
			continue
		}
		if !slices.ContainsFunc(asks, func(a *ask) bool { return a.n == r.ask }) {
			if r.gone = true; r.ran {
				*r = request{}
			}
		}
	}
	for _, a := range asks {
		if x.acquire == nil && a.script.Name == "acquire" {
			x.acquire = &ask{script: a.script, keys: a.keys, args: slices.Clone(a.args[:5])}
			x.acquire.args[0], x.acquire.args[3] = "1 - 0&&& other", strconv.FormatInt(2*worldBegan, 10)
		}
		if slices.ContainsFunc(w.requests[:], func(r request) bool { return r.client == client && r.ask == a.n }) {
			continue
		}
		i := slices.IndexFunc(w.requests[:], func(r request) bool { return r.ask == 0 })
		if i < 0 {
			i = slices.IndexFunc(w.requests[:], func(r request) bool { return r.gone })
		}
		call := x.calls.of(fmt.Sprintf("%s %q %q %s", a.script.Name, a.keys, a.args, a.only), a)
		w.requests[i] = request{client: client, ask: a.n, at: w.now, call: call}
	}
}

// eval runs the script of a request on data.
func (x *explorer) eval(call *ask, id, on int32, now int8) evaluated {
	k := evalKey{id, on, now}
	e, ok := x.evals[k]
	if ok {
		return e
	}
	at := worldBegan + (time.Duration(now) * unit).Microseconds()
	values, after, err := x.in.run(call.script, call.keys, call.args, x.data.values[on], at)
	if after == nil {
		x.t.Fatalf("%s: %v", call.script.Name, err)
	}
	e.answer = x.answers.of(fmt.Sprintf("%q %v", values, err), result{values, err})
	e.wrote, e.messages, e.data = x.in.wrote, x.in.messages, on
	if e.wrote {
		e.data = x.data.of(after.text(), after)
	}
	x.evals[k] = e
	return e
}

// serve runs the script of a request at the primary, or at a former one.
func (x *explorer) serve(w *world, r *request) {
	server := &w.primary
	if r.former {
		server = &w.former
	}
	e := x.eval(x.calls.values[r.call], r.call, *server, w.now)
	*server = e.data
	if e.wrote && !r.former {
		if w.behind == maxBehind {
			x.replicate(w)
		}
		w.log[w.behind] = e.data
		w.behind++
	}
	for _, m := range e.messages {
		if i := slices.Index(w.messages[:], push{}); i >= 0 {
			w.messages[i] = push{int8(m.channel[len(m.channel)-1] - 'A'), m.text}
		}
	}
	r.answer, r.behind = e.answer, 0
	if e.wrote {
		r.behind = w.behind
	}
}

func (x *explorer) replicate(w *world) {
	w.replica = w.log[0]
	copy(w.log[:], w.log[1:])
	w.behind--
	w.log[w.behind] = 0
	for i := range w.requests {
		if r := &w.requests[i]; r.ran && !r.former && r.behind > 0 {
			r.behind--
		}
	}
}

// answer answers a request.
func (x *explorer) answer(w *world, r *request, answer int32, acked int8) {
	client, in := r.client, input{ask: r.ask, answer: answer, acked: acked}
	w.answered[client] = w.answered[client] || w.promoted && !r.former && answer > readonlyAnswer
	*r = request{}
	x.input(w, client, in)
}

func (x *explorer) live(w *world, client int8) bool {
	o := x.outcome(w, client)
	return o.holds && w.micros() < o.until
}

func (x *explorer) Do(w *world, a action) bool {
	if a.kind >= actFew && w.faults >= maxFaults {
		return false
	}
	before := *w
	if !x.act(w, a) {
		return false
	}
	if x.chance {
		x.chance, x.broken, *w = false, "", before
		x.skipped++
		x.unsettled = x.calm
		return false
	}
	if a.kind >= actFew && w.faults == before.faults {
		w.faults++
	}
	return true
}

func (x *explorer) act(w *world, a action) bool {
	switch {
	case a.kind == actReplicate:
		if w.behind == 0 {
			return false
		}
		x.replicate(w)
		return true
	case a.kind == actTime:
		return x.pass(w, 1)
	case a.kind == actLong:
		return x.pass(w, long)
	case a.kind == actPromote:
		return x.promote(w)
	case ranges[a.kind][0] == maxRequests:
		return w.requests[a.a].ask != 0 && x.doRequest(w, &w.requests[a.a], a.kind)
	case ranges[a.kind][0] == maxMessages:
		m := w.messages[a.a]
		if m == (push{}) {
			return false
		}
		copy(w.messages[a.a:], w.messages[a.a+1:])
		w.messages[maxMessages-1] = push{}
		if a.kind == actMessage {
			x.input(w, m.client, input{message: m.text})
		}
		return true
	}
	return x.doClient(w, a)
}

func (x *explorer) doClient(w *world, a action) bool {
	o := x.outcome(w, a.a)
	in := input{}
	can := o.idle
	switch a.kind {
	case actAcquire:
		in.command = acquire
		can = can && !o.holds && !o.unreleased && o.undo == 0 && o.gen < maxGens && (a.a == 0 || x.outcome(w, 0).gen > 0)
	case actRenew:
		in.command = renew
		can = can && x.live(w, a.a) && o.renewed < 2
	case actRelease:
		in.command = release
		can = can && (o.holds || o.unreleased)
	case actKeep:
		in.command = keep
		can = can && x.live(w, a.a) && o.kept == 0
	case actSwap:
		in.command = swap
		can = can && x.m.swap && x.live(w, a.a) && o.gen < maxGens
	case actUndo:
		in.command = undo
		can = can && o.undo != 0
	case actCancel:
		in.command = cancel
		can = !o.idle && o.waits
	}
	if can {
		x.input(w, a.a, in)
	}
	return can
}

func (x *explorer) doRequest(w *world, r *request, kind actKind) bool {
	call := x.calls.values[r.call]
	switch kind {
	case actServe, actFormer, actLose:
		if r.ran && kind == actLose { // before WAIT returns
			x.answer(w, r, lostAnswer, 0)
			return true
		}
		if r.ran || r.gone || r.former {
			return false
		}
		if r.former = kind == actFormer; r.former && (!w.promoted || !x.m.former) {
			r.former = false
			return false
		}
		x.serve(w, r)
		values := x.answers.values[r.answer].values
		switch {
		case kind == actLose:
			x.answer(w, r, lostAnswer, 0)
		case call.only != "" && len(values) > 0 && strings.HasPrefix(values[0], call.only):
			r.ran = true
		default:
			x.answer(w, r, r.answer, 0)
		}
	case actAck:
		if !r.ran || r.former || r.behind > 0 {
			return false
		}
		x.answer(w, r, r.answer, 1)
	case actFew: // WAIT has a timeout
		if !r.ran {
			return false
		}
		if r.former {
			w.faults-- // no replica acknowledges writes of a former primary
			defer func() { w.faults++ }()
		}
		x.answer(w, r, r.answer, 0)
	case actLate:
		if !r.gone || r.former {
			return false
		}
		x.serve(w, r)
		*r = request{}
	case actBroken:
		if !w.promoted || !r.former {
			return false
		}
		x.answer(w, r, lostAnswer, 0)
	case actRefuse:
		if r.ran || r.gone || r.former {
			return false
		}
		x.answer(w, r, readonlyAnswer, 0)
	case actLoseBefore: // the request may arrive later
		if r.ran || r.gone || r.former {
			return false
		}
		client, n := r.client, r.ask
		r.gone = true
		x.input(w, client, input{ask: n, answer: lostAnswer})
	}
	return true
}

// pass lets time pass.
func (x *explorer) pass(w *world, units int8) bool {
	if !x.calm && w.now+units > latest || w.now >= 100 {
		return false
	}
	for _, r := range w.requests {
		// A longer time without an answer leaves the order of steps to the jitter of the store.
		if r.ask != 0 && !r.gone && (units > 1 || w.now-r.at >= patience) {
			return false
		}
	}
	for range units { // the clients make their requests in the order of time
		w.now++
		for i := range int8(clients) {
			x.advance(w, i)
		}
	}
	return true
}

// promote makes the replica the primary. The outage lasts for a while.
func (x *explorer) promote(w *world) bool {
	if w.promoted {
		return false
	}
	if w.behind > 0 {
		w.lost = max(w.token, x.lastToken(w.primary))
		w.exempt = [clients]bool{x.m.replicas == 0, x.m.replicas == 0}
	}
	w.promoted = true
	w.former, w.primary = w.primary, w.replica
	w.log, w.behind = [maxBehind]int32{}, 0 // another replica begins with the same data
	for i := range w.requests {
		r := &w.requests[i]
		switch {
		case r.ran:
			r.former = true
		case r.gone && !x.m.former:
			*r = request{} // the server that it went to is gone
		}
	}
	if !x.m.former {
		w.former = 0
	}
	w.now++
	for i := range int8(clients) {
		x.advance(w, i)
	}
	return true
}

// hash returns the hash of the name at a server.
func (x *explorer) hash(server int32) map[string]string {
	return x.data.values[server][redisstore.Key("", "n")].fields
}

// lastToken returns the last token of the name at a server, also of its counter.
func (x *explorer) lastToken(server int32) (last uint64) {
	for _, k := range x.data.values[server] {
		if token, err := strconv.ParseUint(k.text, 10, 64); err == nil {
			last = max(last, token)
		}
		if state := strings.Fields(k.fields["m"]); len(state) > 5 {
			token, _ := strconv.ParseUint(state[5], 10, 64)
			last = max(last, token)
		}
	}
	return last
}

// stands reports whether the name has the grant of an ID at the primary until a time.
func (x *explorer) stands(w *world, id string, token uint64, until int64) bool {
	part := strings.Fields(x.hash(w.primary)["s0"]) // LIMIT CHANNEL OWNER ID TOKEN SINCE AT+TTL
	if len(part) != 7 || part[3] != id || part[4] != strconv.FormatUint(token, 10) {
		return false
	}
	at, lasts, _ := strings.Cut(part[6], "+")
	from, _ := strconv.ParseInt(at, 10, 64)
	d, _ := strconv.ParseInt(lasts, 10, 64)
	return from+d >= worldBegan+until
}

func (x *explorer) Broken(w *world) string {
	n := 0
	for i := range int8(clients) {
		o := x.outcome(w, i)
		if x.live(w, i) && !w.exempt[i] {
			n++
			if !x.stands(w, name(i)+strconv.Itoa(int(o.grantGen)), o.token, o.until) {
				x.breaks("client %s relies on its grant, and the primary does not have it until then", name(i))
			}
		}
		lost := x.m.replicas == 0 && o.keptToken <= w.lost
		if w.micros() < o.kept && !lost && !x.stands(w, "*", o.keptToken, o.kept) {
			x.breaks("client %s has kept the name, and the primary does not keep it until then", name(i))
		}
	}
	if n > 1 {
		x.breaks("two clients rely on their grants")
	}
	broken := x.broken
	x.broken = ""
	return broken
}

var seed = maphash.MakeSeed()

func (x *explorer) Hash(w *world) uint64 { return maphash.Comparable(seed, *w) }

func (x *explorer) Quiet(w *world) bool {
	for i := range int8(clients) {
		o := x.outcome(w, i)
		if !o.idle || o.holds || o.unreleased || o.undo != 0 {
			return false
		}
	}
	for _, r := range w.requests {
		if r.ask != 0 && !r.gone {
			return false
		}
	}
	if x.acquire == nil {
		return true // no client has requested the name
	}
	e := x.eval(x.acquire, -1, w.primary, w.now)
	values := x.answers.values[e.answer].values
	return len(values) > 0 && strings.HasPrefix(values[0], "G")
}

// settling is the explorer on the way to a quiet state.
type settling struct{ *explorer }

func (x settling) Do(w *world, a action) bool {
	x.calm = true
	defer func() { x.calm = false }()
	return x.explorer.Do(w, a)
}

func (x settling) Quiet(w *world) bool {
	gaveUp := x.unsettled
	x.unsettled = false
	return gaveUp || x.explorer.Quiet(w)
}

var words = [acts]string{
	actMessage: "message", actServe: "done", actAck: "acknowledged", actReplicate: "replica applies",
	actRelease: "releases", actUndo: "undoes", actTime: "0.4 s pass", actLong: "2.8 s pass",
	actAcquire: "requests", actRenew: "renews",
	actKeep: "releases, keeps", actSwap: "swaps", actCancel: "cancels", actLate: "late", actFormer: "at the former",
	actBroken: "no connection", actFew: "not acknowledged", actRefuse: "refused", actLose: "done, no answer",
	actLoseBefore: "no answer", actLoseMessage: "a message is lost", actPromote: "promotion",
}

// story draws a path.
func (x *explorer) story(path []action) string {
	var b strings.Builder
	b.WriteString(story.Head("servers"))
	w := x.start()
	for _, a := range path {
		before := w
		x.Do(&w, a)
		s := story.Step{Actor: story.Server, Text: words[a.kind]}
		client := int8(-1)
		switch ranges[a.kind][0] {
		case maxRequests:
			r := before.requests[a.a]
			client = r.client
			s.Text, s.Answer = x.calls.values[r.call].script.Name, words[a.kind]
		case maxMessages:
			client = before.messages[a.a].client
		case clients:
			client = a.a
		}
		if client >= 0 {
			s.Actor = [clients]story.Actor{story.A, story.B}[client]
		}
		for i := range int8(clients) {
			s.Holds[[clients]story.Actor{story.A, story.B}[i]] = x.live(&w, i)
		}
		b.WriteString(s.Line() + "\n")
	}
	return b.String()
}

// actions has all actions, in the order in which they are tried on the way to a quiet state.
var actions = explore.Ranges(ranges[:], func(kind int, a, b int8) action { return action{actKind(kind), a, b} })

// starts are the states from which the exploration starts. A step that a mode does not have is left out.
var starts = []struct {
	name string
	path []action
}{
	{"free", nil},
	{"held while a client waits", waiting},
	{"released to a client that waits", released},
	{"kept without an answer", append(slices.Clip(waiting),
		action{actKeep, 1, 0}, action{actLose, 0, 0}, action{actRelease, 1, 0})},
}

// B holds the name after it has waited. Its release lets A start by a message.
var (
	waiting = []action{
		{actAcquire, 0, 0}, {actServe, 0, 0}, {actReplicate, 0, 0}, {actAck, 0, 0},
		{actAcquire, 1, 0}, {actServe, 0, 0}, {actRelease, 0, 0}, {actServe, 0, 0},
		{actMessage, 0, 0}, {actServe, 0, 0},
		{actReplicate, 0, 0}, {actReplicate, 0, 0}, {actReplicate, 0, 0}, {actAck, 0, 0},
		{actAcquire, 0, 0}, {actServe, 0, 0}, {actReplicate, 0, 0},
	}
	released = append(slices.Clip(waiting), action{actRelease, 1, 0}, action{actServe, 0, 0})
)

func TestEveryInterleavingOfAFailoverKeepsTheInvariants(t *testing.T) {
	for _, m := range []mode{
		{name: "acknowledged", replicas: 1},
		{name: "acknowledged, former primary", replicas: 1, former: true},
		{name: "push"},
		{name: "push, swap", swap: true},
	} {
		for _, start := range starts {
			t.Run(m.name+", "+start.name, func(t *testing.T) {
				x := newExplorer(t, m)
				w := x.start()
				var path []action
				for _, a := range start.path {
					if x.Do(&w, a) {
						path = append(path, a)
					}
				}
				calm := slices.IndexFunc(actions, func(a action) bool { return a.kind > actTime })
				s := explore.Search[world, action]{Model: x, Actions: actions, Calm: calm, Settles: settling{x}, Nth: 8}
				f := s.Run(w, explore.Depth(depth, *exploreDeeper))
				f.Report(t, func(more []action) string { return x.story(append(path, more...)) })
				if x.skipped > f.States/20 {
					t.Errorf("%d of %d states are left out", x.skipped, f.States)
				}
			})
		}
	}
}
