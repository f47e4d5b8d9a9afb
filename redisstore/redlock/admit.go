package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// state is the answer of one server to state.lua.
type state struct {
	run    string // the server's replication ID, "" if it is no primary
	fields map[string]string
	at     int64 // when the client requested it, by the fleet's time
	err    error
}

// votes reports whether the server is admitted.
func (f *state) votes() bool { return f.err == nil && f.run != "" && f.fields["run"] == f.run }

// whole reports whether the server has kept its counters since its admission. It may have lost its vote
// since then, because its clock was out of line.
func (f *state) whole() bool { return f.err == nil && f.run != "" && f.fields["whole"] == f.run }

// empty reports whether the server was never admitted to a fleet.
func (f *state) empty() bool { return f.err == nil && f.fields["max"] == "" }

// overdue reports whether the wait that the server has recorded is over at now, the
// fleet's time.
func (f *state) overdue(now int64) bool {
	since, err1 := strconv.ParseInt(f.fields["since"], 10, 64)
	wait, err2 := strconv.ParseInt(f.fields["wait"], 10, 64)
	return f.err == nil && err1 == nil && err2 == nil && f.fields["withheld"] == f.run && now >= since+wait*1000
}

// longest returns the longest TTL with which the server was admitted.
func (f *state) longest() time.Duration {
	ms, _ := strconv.ParseInt(f.fields["max"], 10, 64)
	return time.Duration(ms) * time.Millisecond
}

// addCounters raises counters to those of the server, and adds the locks that it keeps.
func (f *state) addCounters(counters map[string]uint64) {
	for k, v := range f.fields {
		copied := k == "least" || strings.HasPrefix(k, "c") || strings.HasPrefix(k, "kept ")
		if x, err := strconv.ParseUint(v, 10, 64); err == nil && copied {
			counters[k] = max(counters[k], x)
		}
	}
}

// stateTimeout is the timeout of one request for the state of a server.
const stateTimeout = 5 * time.Second

// stateGrace is how long the client waits for the states of the other servers after a quorum has
// answered.
const stateGrace = 200 * time.Millisecond

// maxAdmissionFailures is how often an admission may fail before the client gives it up.
const maxAdmissionFailures = 20

// states requests the states of several servers in parallel. With check it also checks their settings.
func (s *store) states(ctx context.Context, nodes []*node, check bool) []state {
	found := make([]state, len(nodes))
	done := make(chan int, len(nodes))
	all := make([]state, len(nodes))
	for i, n := range nodes {
		if !s.task(func() {
			all[i] = n.readState(check)
			done <- i
		}) {
			all[i].err = calls.ErrClosed
			done <- i
		}
	}
	for i := range found {
		found[i].err = s.unavailable("%s: %w", nodes[i].store, errSilent)
	}
	// After a quorum has answered, the wait for a silent minority is short, unless every server has to
	// answer.
	answered := 0
	var grace <-chan time.Time
	for range nodes {
		select {
		case i := <-done:
			found[i] = all[i]
			if found[i].err == nil {
				answered++
			}
		case <-grace:
			return found
		case <-ctx.Done():
			return found
		}
		if answered >= s.quorum && grace == nil && !(check && s.cfg.fresh) {
			grace = time.After(stateGrace)
		}
	}
	return found
}

// readState requests the state of a server. With check it first checks the server's settings.
func (n *node) readState(check bool) state {
	if check {
		ctx, cancel := context.WithTimeout(n.s.calls.Ctx, stateTimeout)
		defer cancel()
		if _, err := n.store.Guarantees(ctx); err != nil {
			if code := driver.CodeOf(err); code != driver.CodeRefused {
				err = driver.Errorf(driver.CodeUnavailable, "%s: %w", n.store, err)
			}
			return state{err: err}
		}
	}
	at := n.s.now()
	r, err := n.eval(stateTimeout, stateScript, []string{stateKey, keptKey}, nil)
	f := state{err: err, at: at}
	if err == nil && len(r.values) > 0 {
		f.run, f.fields = r.values[0], map[string]string{}
		for j := 1; j+1 < len(r.values); j += 2 {
			f.fields[r.values[j]] = r.values[j+1]
		}
	}
	return f
}

// adviseNew returns what to do if too few servers have a vote, given their states. It returns the empty
// text if there is nothing to do.
func (s *store) adviseNew(found []state) string {
	answered, empty := 0, 0
	for i := range found {
		if found[i].err == nil {
			answered++
		}
		if found[i].empty() {
			empty++
		}
	}
	switch {
	case !s.cfg.fresh && empty == answered:
		return fmt.Sprintf("; the servers are new, or have lost their data: they vote after max_ttl (%s), "+
			"or at once if the fleet is new and you open it once with fresh=true", s.cfg.maxTTL)
	case s.cfg.fresh && answered < len(found):
		return "; fresh=true has no effect while a server does not answer: open the fleet again when all do"
	case s.cfg.fresh && empty < len(found):
		return "; fresh=true has no effect, because the fleet is not new"
	}
	return ""
}

// admitNew admits all servers at once if none has a state of a fleet.
func (s *store) admitNew(ctx context.Context, found []state) {
	now := s.now()
	for i := range found {
		if !found[i].empty() || now == 0 {
			return
		}
	}
	var all sync.WaitGroup
	for i, n := range s.nodes {
		all.Go(func() {
			f := &found[i]
			run := f.run // a server that has restarted since may have voted for another client
			for tries := 0; tries < maxAdmissionFailures && f.empty() && f.run == run && ctx.Err() == nil; tries++ {
				if n.admit(f, s.now(), true, []string{"least", text(now)}) == nil {
					f.fields["run"] = f.run
					return
				}
				*f = s.states(ctx, []*node{n}, false)[0] // the request arrived late, or its answer was lost
			}
		})
	}
	all.Wait()
}

// admitSoon starts a background task that admits the server as soon as the rules allow it.
func (n *node) admitSoon() {
	if n.admitting.Swap(true) {
		return
	}
	if !n.s.task(func() {
		defer n.admitting.Store(false)
		n.awaitAdmission()
	}) {
		n.admitting.Store(false)
	}
}

// awaitAdmission withholds the server's vote, waits, and admits the server. It gives up if it cannot
// reach the server. The next request to the server starts it again, and the server has kept the time at
// which the wait began.
func (n *node) awaitAdmission() {
	s := n.s
	for failures := 0; failures < maxAdmissionFailures; {
		delay := time.Duration(0)
		out := n.outOfLine() && s.measure() && n.outOfLine()
		r, err := n.eval(stateTimeout, withholdScript, []string{stateKey},
			[]string{text(s.now()), text(s.cfg.skew.Microseconds()), millis(s.standing(n.longest())), server.Digit(out)})
		switch {
		case err != nil:
			failures++
			delay = 50 * time.Millisecond << min(failures, 5)
		case r.kind == answerDone:
			n.withheld("", 0)
			return
		case r.kind == answerClock:
			if n.outOfLine() {
				n.withheld("its clock disagrees with the majority's", s.standing(n.longest()))
			}
			delay = s.cfg.skew / 2
		default:
			left := time.Duration(0)
			if len(r.values) > 0 {
				ms, _ := strconv.ParseInt(r.values[0], 10, 64)
				left = time.Duration(ms) * time.Millisecond
			}
			n.withheld("it was restarted, is new, or has lost its data, and may have forgotten leases", left)
			if s.cfg.unprotected {
				left = 0
			}
			if left == 0 {
				failures++
				n.restore()
				delay = 20 * time.Millisecond << min(failures, 6)
			} else {
				// Check it again every few seconds: the server may restart during the wait.
				delay = min(left, 5*time.Second)
			}
		}
		if backoff.Sleep(s.calls.Ctx, delay+rand.N(delay/8+time.Millisecond)) != nil {
			return
		}
	}
}

// measure measures the clocks of the servers, and reports whether a quorum answered. The client's own
// clock may have stood still. Then the first server that answers seems to be out of line with the others.
func (s *store) measure() bool {
	answered := 0
	for _, f := range s.states(s.calls.Ctx, s.nodes, false) {
		if f.err == nil {
			answered++
		}
	}
	return answered >= s.quorum
}

// longest returns the longest TTL that the fleet may have granted, as far as this client has read it.
// Another client may have a longer MaxTTL.
func (n *node) longest() time.Duration { return max(n.s.cfg.maxTTL, time.Duration(n.longer.Load())) }

// restore gives the server the counters of the other servers, and admits it. A quorum of others with
// whole counters is enough. If the fleet has lost those, restore needs every server, and takes the largest
// counters and at least the present time.
func (n *node) restore() {
	s := n.s
	found := s.states(s.calls.Ctx, s.nodes, false)
	if found[n.i].err != nil {
		return
	}
	at := s.now() // when the states were read, by the fleet's time
	others, all, waited := 0, true, true
	longest := n.longest()
	counters := map[string]uint64{}
	for i := range found {
		f := &found[i]
		if f.err != nil {
			all = false
			continue
		}
		at = min(at, f.at)
		if i != n.i && f.whole() {
			others++
		}
		waited = waited && (f.votes() || f.overdue(s.now()))
		longest = max(longest, f.longest())
		f.addCounters(counters)
	}
	if at == 0 {
		return
	}
	if longest > n.longest() {
		n.longer.Store(int64(longest)) // the wait becomes longer
		return
	}
	switch {
	case others >= s.quorum || s.cfg.unprotected:
	case all && waited:
		least := uint64(at + 2*s.cfg.skew.Microseconds())
		counters["least"] = max(counters["least"], least)
	default:
		n.withheld("its counters of tokens can be restored only by a majority of the others, or when all servers answer", 0)
		return
	}
	var args []string
	for k, v := range counters {
		args = append(args, k, text(v))
	}
	_ = n.admit(&found[n.i], at, s.cfg.unprotected, args)
}

// admit allows the server to vote, and raises its counters to the given ones: fields and their values. The
// locks among them that other servers keep are set. at is when the client read the states of the servers. With
// unwaited the server need not have waited.
func (n *node) admit(f *state, at int64, unwaited bool, counters []string) error {
	args := append([]string{text(at), text(n.s.cfg.skew.Microseconds()), f.run, server.Digit(unwaited), millis(n.longest()), strconv.Itoa(len(n.s.nodes))}, counters...)
	r, err := n.eval(stateTimeout, admitScript, []string{stateKey, keptKey}, args)
	if err == nil && r.kind != answerDone {
		err = n.s.unavailable("%s: it cannot be admitted yet", n.store)
	}
	if err == nil {
		n.withheld("", 0)
	}
	return err
}
