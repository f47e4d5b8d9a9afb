package redlock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

var (
	//go:embed scripts/run.lua
	runSource string
	//go:embed scripts/vote.lua
	voteSource string
	//go:embed scripts/raise.lua
	raiseSource string
	//go:embed scripts/end.lua
	endSource string
	//go:embed scripts/renew.lua
	renewSource string
	//go:embed scripts/read.lua
	readSource string
	//go:embed scripts/state.lua
	stateSource string
	//go:embed scripts/withhold.lua
	withholdSource string
	//go:embed scripts/admit.lua
	admitSource string

	voteScript     = script("vote", voteSource)
	raiseScript    = script("raise", raiseSource)
	endScript      = script("end", endSource)
	renewScript    = script("renew", renewSource)
	readScript     = script("read", readSource)
	stateScript    = script("state", stateSource)
	withholdScript = script("withhold", withholdSource)
	admitScript    = script("admit", admitSource)
)

// script returns a script, with the functions of run.lua where it includes them.
func script(name, source string) *server.Script {
	return server.NewScript("redlock "+name, strings.Replace(source, "-- include run\n", runSource, 1))
}

// The keys at a server. stateKey has the server's state, and keptKey the locks that stay taken after
// their release. The keys of locks, queues, positions and tombstones begin with the other four.
const (
	stateKey    = "holdfast:redlock"
	keptKey     = "holdfast:redlock:kept"
	lockPrefix  = "holdfast:redlock:l:"
	queueKey    = "holdfast:redlock:q:"
	positionKey = "holdfast:redlock:p:"
	tombstone   = "holdfast:redlock:v:"
)

// prefix returns the part of a lock's key before the name.
func (s *store) prefix() string {
	switch {
	case !s.cfg.redsync:
		return lockPrefix + server.EscapeNamespace(s.cfg.namespace) + ":"
	case s.cfg.namespace != "":
		return s.cfg.namespace + ":"
	}
	return ""
}

// field returns the field of a bucket's counter. Each counter serves several names.
func field(bucket uint16) string { return "c" + strconv.Itoa(int(bucket)) }

// node is one server.
type node struct {
	s      *store
	i      int
	store  *redisstore.Store
	client server.Client

	silent    atomic.Bool // the last request had no answer: see mayAnswer
	admitting atomic.Bool
	longer    atomic.Int64 // a longer MaxTTL that some server was admitted with

	mu    sync.Mutex
	clock sample
	// reason is why the server has no vote, "" if it has one or its state was not read.
	reason     string
	eligible   time.Time     // when it may get its vote back
	subscribed bool          // its messages arrive
	probed     time.Time     // when the last request was sent while the server was silent
	back       chan struct{} // closed when a silent server has answered
}

// sample is a measurement of a server's clock. offset is the server's time minus
// server.Micros, at most err from the true difference. at is when it was measured, by server.Micros.
type sample struct {
	offset, err, at int64
	known           bool
}

func newNode(s *store, i int, store *redisstore.Store) *node {
	return &node{s: s, i: i, store: store, client: store.Client()}
}

// The letters with which the scripts answer.
const (
	answerVoted     = 'G' // vote: the server votes for the ballot
	answerBusy      = 'B' // vote: another ballot has the server's vote
	answerBehind    = 'F' // vote: the lock is free, and another request has waited longer
	answerWithheld  = 'U' // vote, end: the server is withheld
	answerClock     = 'C' // vote, renew, end, withhold: the clocks differ, or the request came late
	answerWithdrawn = 'V' // vote: the ballot was withdrawn
	answerMaxTTL    = 'M' // vote: the fleet's longest TTL is smaller
	answerSize      = 'S' // vote: the fleet has another number of servers
	answerDone      = 'A' // raise: the token is written; withhold, admit: the server votes
	answerVoteEnded = 'R' // end: the vote existed
	answerKept      = 'K' // end: the lock stays taken
	answerRenewed   = 'R' // renew
	answerNoVote    = 'N' // raise, end: the ballot has no vote; renew: the lock is free
	answerOther     = 'O' // renew: another ballot has the vote
	answerTombstone = 'T' // renew: the grant was broken or withdrawn
)

// reply is the answer of a script: a letter, the server's time, and further values.
type reply struct {
	kind   byte
	server int64 // the server's time
	values []string
}

// notSent wraps a reason for which a request was not sent.
func notSent(err error) error { return &server.NotSentError{Err: err} }

// probeInterval is the interval at which the client sends a request to a silent server. Each request may open a
// connection, and the votes of failed ballots are ended until the server has answered.
const probeInterval = 200 * time.Millisecond

var errSilent = errors.New("the server does not answer")

// mayAnswer reports whether to send a request. While the server is silent, the client sends one in each
// probeInterval. The other requests wait for the server for that time at most.
func (n *node) mayAnswer(ctx context.Context) bool {
	n.mu.Lock()
	send, back := !n.silent.Load(), n.back
	if !send && time.Since(n.probed) >= probeInterval {
		send, n.probed = true, time.Now()
	}
	n.mu.Unlock()
	if send {
		return true
	}
	timer := time.NewTimer(probeInterval)
	defer timer.Stop()
	select {
	case <-back:
		return true
	case <-timer.C:
		n.mu.Lock()
		defer n.mu.Unlock()
		if time.Since(n.probed) >= probeInterval {
			n.probed = time.Now()
			return true
		}
	case <-ctx.Done():
	}
	return false
}

// setSilent records whether the server has answered the last request.
func (n *node) setSilent(yes bool) {
	if n.silent.Load() == yes {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch was := n.silent.Swap(yes); {
	case yes && !was:
		n.back = make(chan struct{})
	case was && !yes:
		n.probed = time.Time{}
		close(n.back)
	}
}

// eval runs a script. An error of code Unknown means that it may have run, or may run later.
func (n *node) eval(timeout time.Duration, sc *server.Script, keys, args []string) (reply, error) {
	r := n.evalAll(timeout, sc, []server.Call{{Keys: keys, Args: args}})[0]
	return r.reply, r.err
}

type answer struct {
	reply
	err error
}

// evalAll runs a script for several calls, in one round trip.
func (n *node) evalAll(timeout time.Duration, sc *server.Script, calls []server.Call) []answer {
	out := make([]answer, len(calls))
	ctx, cancel := context.WithTimeout(n.s.life, timeout)
	defer cancel()
	if n.silent.Load() && !n.mayAnswer(ctx) {
		for i := range out {
			out[i].err = n.fail(notSent(errSilent))
		}
		return out
	}
	sent := server.Micros()
	var results []server.Answer
	if len(calls) == 1 {
		v, err := n.client.Eval(ctx, sc, calls[0].Keys, calls[0].Args)
		results = []server.Answer{{Values: v, Err: err}}
	} else {
		results = n.client.EvalAll(ctx, sc, calls)
	}
	received := server.Micros()
	for i, r := range results {
		if r.Err != nil {
			_, answered := errors.AsType[server.ServerError](r.Err)
			n.setSilent(!answered)
			out[i].err = n.fail(r.Err, calls[i].Keys...)
			continue
		}
		n.setSilent(false)
		out[i].reply, out[i].err = n.read(sc, r.Values)
		if out[i].err == nil {
			n.sampled(sent, received, out[i].server)
		}
	}
	return out
}

// fail adds the code and the server's address to an error.
func (n *node) fail(err error, keys ...string) error {
	err = server.Of(n.store).Explain(err, keys...)
	return driver.Errorf(driver.CodeOf(err), "%s: %w", n.store, err)
}

func (n *node) read(sc *server.Script, values []string) (reply, error) {
	if len(values) >= 2 && len(values[0]) == 1 {
		if at, err := strconv.ParseInt(values[1], 10, 64); err == nil {
			return reply{values[0][0], at, values[2:]}, nil
		}
	}
	return reply{}, driver.Errorf(driver.CodeUnknown, "%s: the script %s answered %q", n.store, sc.Name, values)
}

// staleSample is the age after which a worse measurement of a clock replaces a better one.
const staleSample = 5 * time.Second

func (n *node) sampled(sent, received, server int64) {
	now := sample{offset: server - (sent+received)/2, err: (received - sent) / 2, at: received, known: true}
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.clock
	apart := max(now.offset-old.offset, old.offset-now.offset)
	// If the server's clock was set, the two measurements contradict each other, and
	// the new one counts at once.
	if !old.known || now.err <= old.err || apart > now.err+old.err || now.at-old.at > staleSample.Microseconds() {
		n.clock = now
	}
}

func (n *node) sample() sample {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clock
}

// offset returns the difference between the fleet's time and server.Micros. The fleet's time is the
// median of the servers' clocks. offset needs the answers of a quorum.
func (s *store) offset() (int64, error) {
	var room [maxServers]int64
	all := room[:0]
	for _, n := range s.nodes {
		if c := n.sample(); c.known {
			all = append(all, c.offset)
		}
	}
	if len(all) < s.quorum {
		return 0, s.unavailable("%d of %d servers have returned the time, and a quorum is %d", len(all), len(s.nodes), s.quorum)
	}
	slices.Sort(all)
	return all[(len(all)-1)/2], nil
}

// now returns the fleet's time, 0 before a quorum has answered.
func (s *store) now() int64 {
	offset, err := s.offset()
	if err != nil {
		return 0
	}
	return server.Micros() + offset
}

// outOfLine reports whether the server's clock certainly differs from the fleet's time
// by more than Skew.
func (n *node) outOfLine() bool {
	offset, err := n.s.offset()
	c := n.sample()
	return err == nil && c.known && max(c.offset-offset, offset-c.offset)-c.err > n.s.cfg.skew.Microseconds()
}

// withheld records why the server has no vote, and for how long. reason is "" if it has
// one.
func (n *node) withheld(reason string, left time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reason, n.eligible = reason, time.Now().Add(left)
}

// whyWithheld returns an error for a server without a vote, nil for others.
func (n *node) whyWithheld() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reason == "" {
		return nil
	}
	left := max(time.Until(n.eligible), 0).Round(time.Millisecond)
	return driver.Errorf(driver.CodeUnavailable, "%s: its vote is withheld, for %s more at least: %s", n.store, left, n.reason)
}

// text returns a number in decimal, for a script.
func text[T int64 | uint64](n T) string { return fmt.Sprint(n) }

func millis(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
