package redisstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/deadline"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// combiner sends requests of several goroutines in one script call, a batch. That saves most of
// the time that a call costs the client and the server. Only two kinds of requests are combined:
// a first attempt that does not wait, and a release that needs only the ID and token of its
// grant.
//
// The combiner delays no request on purpose. It sends a few requests in calls of their own, like a
// client without a combiner. The other requests form the next batch while these calls or another
// batch are under way.
type combiner struct {
	mu      sync.Mutex
	ended   sync.Cond // signals that a sender has ended
	off     bool
	singles int      // requests under way in calls of their own
	batches int      // batches under way, without stuck ones
	senders int      // goroutines that send batches, stuck ones included
	forming []*batch // not sent yet, in the order of sending
}

const (
	// maxSingles limits the requests that go out in calls of their own. They do so only while no
	// batch is under way.
	maxSingles = 4
	// maxCombined limits the requests in a batch. The server needs up to 0.2 ms for so many
	// requests, and serves no other client meanwhile.
	maxCombined = 32
	// maxBatches limits the batches under way. A second batch goes out only if it is full.
	maxBatches = 2
)

// batch is a call for several requests.
type batch struct {
	s        *store
	requests []combined
	timer    *time.Timer // calls late after server.StuckAfter

	// first is closed when the batch is answered or becomes overdue. answer is made when the
	// batch becomes overdue, and closed when it is answered.
	first, answer chan struct{}
	answered      atomic.Bool

	// The combiner's mutex guards the rest until the batch is answered.
	sent, overdue, stuck bool

	began   driver.Instant
	err     error    // of all requests
	alone   bool     // the server has refused the whole call: each request gets a call of its own
	granted []string // the values of a grant whose token is the server's time
}

// combined is a request in a batch. The combiner's mutex guards withdrawn. The answer to the batch
// sets letter and text.
type combined struct {
	script     *Script // acquire or release
	keys, args []string
	bucket     uint16 // of an acquire
	withdrawn  bool   // its caller has returned before the batch was sent
	letter     byte
	text       string
}

func (c *combiner) init(on bool) {
	c.off = !on
	c.ended.L = &c.mu
}

// stop makes each later request a call of its own.
func (c *combiner) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = true
}

// wait waits until no batch is under way.
func (c *combiner) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.senders > 0 {
		c.ended.Wait()
	}
}

// combine sends a request, in a call of its own or in a batch. It returns when ctx ends or there is
// an answer. If ctx ends before the batch is sent, the request is not sent. If it ends later, the
// outcome is unknown.
func (s *store) combine(ctx context.Context, sc *Script, keys, args []string, bucket uint16) (server.Reply, error) {
	c := &s.combiner
	c.mu.Lock()
	if c.off || s.srv.Spread.Load() || c.batches == 0 && c.singles < maxSingles {
		c.singles++
		c.mu.Unlock()
		rep, err := s.srv.Eval(ctx, sc, keys, args)
		c.mu.Lock()
		c.singles--
		c.mu.Unlock()
		return rep, err
	}
	if err := ctx.Err(); err != nil {
		c.mu.Unlock()
		return server.Reply{}, s.srv.Explain(&NotSentError{Err: err})
	}
	b, i := s.join(combined{script: sc, keys: keys, args: args, bucket: bucket})
	s.startSender()
	c.mu.Unlock()
	if err := b.wait(ctx, i); err != nil {
		return server.Reply{}, s.srv.Explain(err)
	}
	r := &b.requests[i]
	switch {
	case b.err != nil && !b.alone:
		return server.Reply{}, b.err
	case b.alone || r.letter == 'F': // mutation: redis-undecided
		return s.srv.Eval(ctx, sc, keys, args)
	case r.letter == 'G':
		return server.Reply{Kind: 'G', Values: b.granted, Sent: b.began}, nil
	case r.letter != '*':
		return server.Reply{Kind: r.letter, Sent: b.began}, nil
	}
	if text, failed := strings.CutPrefix(r.text, "E"); failed {
		return server.Reply{}, s.srv.Explain(ServerError(text), keys...)
	}
	values := strings.Split(r.text, "\n") // the letter, the time and the values
	return server.Reply{Kind: values[0][0], Values: values[min(2, len(values)):], Sent: b.began}, nil
}

// join adds a request to the batch that forms, and returns the batch and the request's index. The
// caller holds the combiner's mutex.
func (s *store) join(r combined) (*batch, int) {
	c := &s.combiner
	var b *batch
	if n := len(c.forming); n > 0 {
		b = c.forming[n-1]
	}
	if b == nil || len(b.requests) == maxCombined {
		b = &batch{s: s, requests: make([]combined, 0, maxCombined), first: make(chan struct{})}
		b.timer = time.AfterFunc(server.StuckAfter, b.late)
		c.forming = append(c.forming, b)
	}
	b.requests = append(b.requests, r)
	return b, len(b.requests) - 1
}

// wait waits for the answer to a batch, or for the end of the context of one of its requests.
// Most batches are answered before their contexts need a timer.
func (b *batch) wait(ctx context.Context, i int) error {
	soon := deadline.Cancellation(ctx)
	if end, ok := ctx.Deadline(); ok && time.Until(end) < server.StuckAfter {
		soon = ctx
	}
	select {
	case <-b.first:
	case <-soon.Done():
	}
	if b.answered.Load() {
		return nil
	}
	c := &b.s.combiner
	c.mu.Lock()
	answer := b.answer
	c.mu.Unlock()
	select {
	case <-answer:
		return nil
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.sent {
		b.requests[i].withdrawn = true
		return &NotSentError{Err: ctx.Err()}
	}
	if b.answered.Load() {
		return nil
	}
	return ctx.Err()
}

// late runs when a batch has had no answer for server.StuckAfter.
func (b *batch) late() {
	c := &b.s.combiner
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.answered.Load() {
		return
	}
	if !b.overdue {
		b.overdue, b.answer = true, make(chan struct{})
		close(b.first)
	}
	if b.sent && !b.stuck {
		b.stuck = true
		c.batches--
		b.s.startSender()
	}
}

// startSender starts a sender if a batch may go out. The caller holds the combiner's mutex.
func (s *store) startSender() {
	c := &s.combiner
	if c.batches < maxBatches && c.senders < server.MaxSenders && c.ready(c.batches) {
		c.batches++
		c.senders++
		go s.sendBatches()
	}
}

// ready reports whether a batch may go out beside others. The caller holds the mutex.
func (c *combiner) ready(others int) bool {
	return len(c.forming) > 0 && (others == 0 || len(c.forming[0].requests) == maxCombined)
}

// sendBatches sends one batch after another while requests wait.
func (s *store) sendBatches() {
	c := &s.combiner
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		c.senders--
		c.ended.Broadcast()
		s.startSender()
	}()
	for c.ready(c.batches - 1) {
		b := c.forming[0]
		c.forming = slices.Delete(c.forming, 0, 1)
		b.sent = true
		if b.overdue {
			b.timer.Reset(server.StuckAfter)
		}
		c.mu.Unlock()
		b.send()
		b.timer.Stop()
		c.mu.Lock()
		b.answered.Store(true)
		done := b.first
		if b.overdue {
			done = b.answer
		}
		c.mu.Unlock()
		close(done) // wakes all callers
		c.mu.Lock()
		if b.stuck {
			return
		}
	}
	c.batches--
}

// send sends a batch, and sets the outcome of each request. The batch continues when the contexts of
// its callers end.
func (b *batch) send() {
	s := b.s
	keys, args := make([]string, 0, 2*len(b.requests)), make([]string, 2, 3+len(b.requests))
	until, seen := int64(math.MaxInt64), uint64(0)
	var ttl, life string
	for i := range b.requests {
		r := &b.requests[i]
		if r.withdrawn {
			continue
		}
		if r.script == acquireScript {
			// The server must not decide an acquire after its time limit, so the batch has the
			// earliest limit.
			if late, err := strconv.ParseInt(r.args[argLate], 10, 64); err == nil {
				until = min(until, late)
			}
			seen = max(seen, s.srv.HighWater.Of(r.bucket).Load())
			if r.args[argTTL] != ttl || r.args[argLife] != life {
				ttl, life = r.args[argTTL], r.args[argLife]
				args = append(args, "+"+ttl+" "+life)
			}
		}
		keys, args = append(keys, r.keys...), append(args, r.args[0])
	}
	if len(keys) == 0 {
		return
	}
	args[0], args[1] = strconv.FormatInt(until, 10), strconv.FormatUint(seen, 10)
	b.began = driver.Now()
	at := server.Micros()
	answer, err := s.srv.Client.Eval(context.Background(), combinedScript, keys, args)
	if err != nil {
		b.err, b.alone = s.srv.Explain(err), s.refusedTogether(err)
		return
	}
	if b.err = b.read(answer, at); b.err != nil {
		b.err = driver.Errorf(driver.CodeUnknown, "the script %s returned %q: %w", combinedScript.Name, answer, b.err)
	}
}

var errAnswer = errors.New("it does not match the requests")

// read sets the outcome of each request from the answer to a batch.
func (b *batch) read(answer []string, at int64) error {
	if len(answer) < 2 {
		return errAnswer
	}
	now, err := strconv.ParseInt(answer[0], 10, 64)
	if err != nil {
		return err
	}
	b.granted = []string{answer[0], "0"}
	letters, more := answer[1], answer[2:]
	for i := range b.requests {
		r := &b.requests[i] // mutation: redis-answers
		if r.withdrawn {
			continue
		}
		if letters == "" || letters[0] == '*' && (len(more) == 0 || more[0] == "") {
			return errAnswer
		}
		if r.letter = letters[0]; r.letter == '*' {
			r.text, more = more[0], more[1:]
		}
		letters = letters[1:]
	}
	if letters != "" || len(more) > 0 {
		return errAnswer
	}
	b.s.srv.Clock.Learn(at, now)
	return nil
}

// refusedTogether reports whether the server has refused a whole batch before it ran the script.
// The reason may be the key of one request, for example one to which the user has no right. A
// proxy refuses a batch with CROSSSLOT if its keys are on different servers. Then all later
// requests are calls of their own.
func (s *store) refusedTogether(err error) bool {
	e, ok := errors.AsType[ServerError](err)
	if !ok {
		return false
	}
	word, _, _ := strings.Cut(string(e), " ")
	switch word {
	case "CROSSSLOT":
		s.combiner.stop()
		return true
	case "NOPERM", "MOVED", "ASK", "TRYAGAIN":
		return true
	}
	return false
}
