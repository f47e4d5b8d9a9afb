package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// handle is the store's own data in a grant.
type handle struct {
	b     *ballot
	token uint64
}

// maxToken is the limit below which the numbers of Lua are exact.
const maxToken = 1 << 53

// Acquire requests the votes of all servers. See [driver.Store].
func (s *store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := s.check(&r); err != nil {
		return driver.Grant{}, err
	}
	if err := s.begin(ctx); err != nil {
		return driver.Grant{}, server.WithdrawnIfEnded(ctx, err)
	}
	defer s.calls.Leave()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.calls.Ctx, func() { cancel(calls.ErrClosed) })
	defer stop()
	c := candidate{s: s, r: r}
	var g driver.Grant
	var err error
	if r.Wait {
		g, err = c.wait(ctx)
	} else {
		var res result
		if res, err = c.try(ctx, ""); err == nil && res.holders != nil {
			err = &driver.BusyError{Holders: res.holders}
		}
		g = res.grant
	}
	if err != nil && !c.awaitEnd(ctx) {
		err = driver.Errorf(driver.CodeUnknown, "%w; votes for the request may stand", err)
	}
	return g, err
}

// check returns an error for an invalid request.
func (s *store) check(r *driver.Request) error {
	if err := server.CheckRequest("redlock", r); err != nil {
		return err
	}
	if r.Limit != driver.Exclusive {
		return driver.Errorf(driver.CodeUnsupported, "redlock: limit %d: a vote is for one holder, so locks are exclusive", r.Limit)
	}
	if r.TTL < minTTL || r.TTL > s.cfg.maxTTL {
		return driver.Errorf(driver.CodeInvalid, "redlock: TTL %s: give %s to max_ttl, which is %s", r.TTL, minTTL, s.cfg.maxTTL)
	}
	if strings.HasPrefix(s.prefix()+r.Name, stateKey) && s.cfg.redsync {
		return driver.Errorf(driver.CodeInvalid, "redlock: name %q: keys that begin with %s are the store's own", r.Name, stateKey)
	}
	return nil
}

// candidate is one Acquire, which makes one ballot after another.
type candidate struct {
	s       *store
	r       driver.Request
	ballots int   // the number of its ballots so far
	since   int64 // when its first ballot began, by the fleet's time
	last    *ballot
}

// awaitEnd waits until no ballot of a failed request can be granted, for at most
// withdrawTimeout. It reports whether that is certain.
func (c *candidate) awaitEnd(ctx context.Context) bool {
	c.s.mu.Lock()
	all := slices.Clone(c.s.ballots[c.r.ID])
	c.s.mu.Unlock()
	ended := true
	deadline := time.Now().Add(withdrawTimeout)
	for _, b := range all {
		ended = b.awaitEnd(ctx, time.Until(deadline)) && ended
	}
	return ended
}

// result is the outcome of a try without an error: a grant, or the holders of a busy name.
type result struct {
	grant   driver.Grant
	holders []driver.Holder // not nil if the name is busy; empty if no request has a quorum
	queued  int             // the number of servers on which the request has a queue entry
	free    time.Time       // when a quorum of servers may be free
	foreign bool            // a client of another library holds the name
}

const (
	// splitTimeout is how long a try continues while no request has a quorum.
	splitTimeout = time.Second
	// splitWait is the base of the random delay between two ballots, or two rounds of one ballot.
	splitWait = 2 * time.Millisecond
	// lateTimeout is how long a ballot continues while servers refuse its requests as late.
	lateTimeout = 2 * time.Second
	// maxRounds is the number of rounds after which a ballot without a quorum ends, even if it
	// has the most votes.
	maxRounds = 8
)

// try makes ballots until the request is granted, or another request has a quorum. If no
// request gets one, it stops after splitTimeout.
func (c *candidate) try(ctx context.Context, entry string) (result, error) {
	began := time.Now()
	for pauses := 0; ; pauses++ {
		res, split, err := c.ballot(ctx, entry)
		if !split || err != nil {
			return res, err
		}
		if time.Since(began) > splitTimeout {
			return res, nil
		}
		if c.r.Wait {
			c.r.From.Queued(nil) // the servers have answered
		}
		if backoff.Sleep(ctx, splitWait/2+rand.N(splitWait<<min(pauses, 4))) != nil {
			return result{}, withdrawn(ctx)
		}
	}
}

// withdrawn returns the error of a request whose context has ended.
func withdrawn(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, calls.ErrClosed) {
		return calls.ErrClosed
	}
	return driver.Errorf(driver.CodeWithdrawn, "%w", cause)
}

// tally counts the servers of a ballot by their last answers.
type tally struct {
	given    int // the server has given its vote
	fresh    int // of the given votes, those of servers whose counters are below the proposed token
	refused  int // another request has the vote, or has waited longer
	behind   int // of the refused ones, the servers on which another request has waited longer
	late     int // the server found the request late
	withheld int // the server has no vote
	pending  int // the ballot waits for the answer
	// rival is the other ballot with the most votes, and rivalVotes their number. Of two ballots
	// with as many votes, it is the one with the smaller identifier.
	rival      string
	rivalVotes int
	// errs are the errors of the servers that cannot vote, the late ones included.
	errs []error
	// highest is the largest counter of the servers that have given their votes.
	highest uint64
}

// count counts the votes. Once a quorum of servers has answered, the ballot does not wait for the
// servers that are slow, or were silent before. The caller holds the mutex.
func (b *ballot) count() (t tally) {
	slow := 0
	var rivals map[string]int
	for i := range b.votes {
		switch v := &b.votes[i]; {
		case v.state == voteRequested && v.slow:
			slow++
		case v.state == voteRequested:
			t.pending++
		case v.state == voteGiven: // mutation: redlock-given
			t.given++
			t.highest = max(t.highest, v.counter)
			if v.counter < b.token {
				t.fresh++
			}
		case v.last == answerBusy:
			t.refused++
			id, _, _ := strings.Cut(v.rival, " ")
			if rivals == nil {
				rivals = map[string]int{}
			}
			rivals[id]++
		case v.last == answerBehind:
			t.refused++
			t.behind++
		default:
			switch v.last {
			case answerClock:
				t.late++
			case answerWithheld:
				t.withheld++
			}
			t.errs = append(t.errs, v.err)
		}
	}
	if t.given+t.refused < b.s.quorum {
		t.pending += slow
	}
	for id, n := range rivals {
		if n > t.rivalVotes || n == t.rivalVotes && id < t.rival {
			t.rival, t.rivalVotes = id, n
		}
	}
	return t
}

// ballot makes one ballot. split reports that no request has a quorum, and that this ballot does not
// continue.
func (c *candidate) ballot(ctx context.Context, entry string) (res result, split bool, err error) {
	b, err := c.requestVotes(entry)
	if err != nil {
		return res, false, err
	}
	res, split, err = c.awaitVotes(ctx, b)
	if err != nil {
		b.mu.Lock()
		b.end(true, 0)
		b.mu.Unlock()
	}
	return res, split, err
}

// requestVotes begins a ballot, and requests the votes of all servers.
func (c *candidate) requestVotes(entry string) (*ballot, error) {
	s := c.s
	offset, err := s.offset()
	if err != nil {
		return nil, err
	}
	now := server.Micros() + offset
	if c.since == 0 {
		c.since = now
	}
	c.ballots++
	b := s.newBallot(c.r, c.ballots, entry, c.since)
	b.owner = server.OwnerText(c.r.From.Owner())
	if c.last != nil { // its queue entries and positions are those of the request
		c.last.mu.Lock()
		for i := range b.votes {
			b.votes[i].queued = c.last.votes[i].queued
		}
		c.last.mu.Unlock()
	}
	c.last = b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.token = b.propose(now)
	b.sent = driver.Now()
	for _, n := range s.nodes {
		b.requestVote(n)
	}
	return b, nil
}

// awaitVotes waits until the votes of a ballot decide the request, in rounds: it repeats the request to
// the servers whose refusal may be temporary. If several ballots have a part of the votes, the one with
// the most continues.
func (c *candidate) awaitVotes(ctx context.Context, b *ballot) (res result, split bool, err error) {
	s := c.s
	var nextRound, grace <-chan time.Time
	began := time.Now()
	for rounds := 0; ; {
		b.mu.Lock()
		t := b.count()
		b.mu.Unlock()
		roundOver := t.pending == 0 && nextRound == nil
		canVote := t.given + t.refused + t.pending
		switch {
		case t.fresh >= s.quorum:
			res, err = c.grant(b)
			return res, false, err
		case t.given >= s.quorum:
			// A counter is not below the proposed token, so the client writes a larger
			// token to the servers.
			if err = b.raise(ctx, t.highest); err == nil {
				res, err = c.grant(b)
			}
			return res, false, err
		case t.rivalVotes >= s.quorum:
			return c.concede(ctx, b, t.rival, true)
		case t.behind > 0 && canVote >= s.quorum && canVote-t.behind < s.quorum:
			return c.concede(ctx, b, "", true) // the servers keep the name for another waiter
		case roundOver && canVote >= s.quorum && (rounds >= maxRounds || !b.leads(t)):
			return c.concede(ctx, b, t.rival, false)
		case t.pending == 0 && canVote < s.quorum && (t.late == 0 || time.Since(began) > lateTimeout):
			return res, false, c.noQuorum(t)
		case roundOver:
			rounds++
			delay := rand.N(splitWait) + splitWait/4
			if t.late > 0 {
				delay = 0 // the clocks were measured by the answers
			}
			nextRound = time.After(delay)
		case t.pending > 0 && t.given+t.refused >= s.quorum && grace == nil:
			// Wait for the others as long again as the quorum took, since they may be
			// as fast.
			grace = time.After(max(quorumGrace, time.Since(began)))
		}
		select {
		case <-b.changed:
		case <-grace:
			grace = nil
			b.leaveOutPending()
		case <-nextRound:
			nextRound = nil
			b.repeatRequests()
		case <-ctx.Done():
			return res, false, withdrawn(ctx)
		}
	}
}

// leads reports whether this ballot has votes, and more of them than its top rival. Of two ballots
// with as many votes, the one with the smaller identifier leads.
func (b *ballot) leads(t tally) bool {
	return t.given > t.rivalVotes || t.given == t.rivalVotes && t.given > 0 && b.id < t.rival
}

// leaveOutPending marks the servers without an answer as slow.
func (b *ballot) leaveOutPending() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.votes {
		b.votes[i].slow = b.votes[i].state == voteRequested
	}
}

// repeatRequests requests the votes of the servers that refused the last request, or found it late.
func (b *ballot) repeatRequests() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.s.nodes {
		if v := &b.votes[n.i]; v.state == voteNone && (v.last == answerBusy || v.last == answerBehind || v.last == answerClock) {
			b.requestVote(n)
		}
	}
}

// concede ends a ballot without a quorum. quorum reports whether the rival has one, and so holds
// the name, or whether a quorum of servers keeps the name for a request that has waited longer, with
// an empty rival. If it is false, the outcome is a split.
func (c *candidate) concede(ctx context.Context, b *ballot, rival string, quorum bool) (res result, split bool, err error) {
	res = b.busy(rival, quorum)
	b.mu.Lock()
	b.end(!quorum, 0)
	b.mu.Unlock()
	b.awaitEnd(ctx, quorumGrace)
	if ctx.Err() != nil && !quorum {
		return res, false, withdrawn(ctx)
	}
	return res, !quorum, nil
}

// noQuorum returns the error of a ballot for which fewer servers than a quorum can vote.
func (c *candidate) noQuorum(t tally) error {
	code := driver.CodeUnavailable
	refused := func(err error) bool { return driver.CodeOf(err) == driver.CodeRefused }
	if len(t.errs) >= c.s.quorum && slices.ContainsFunc(t.errs, refused) {
		code = driver.CodeRefused
	}
	advice := ""
	if t.withheld > 0 {
		advice = c.s.advice
	}
	return driver.Errorf(code, "%d of %d servers can vote, and a quorum is %d: %w%s",
		len(c.s.nodes)-len(t.errs), len(c.s.nodes), c.s.quorum, errors.Join(t.errs...), advice)
}

// raise writes a token above highest to the servers that voted, and returns when a quorum has
// acknowledged it.
func (b *ballot) raise(ctx context.Context, highest uint64) error {
	s := b.s
	token := max(highest, s.tokens.Of(b.bucket).Load(), uint64(max(s.now(), 0))) + 1
	if token >= maxToken {
		return driver.Errorf(driver.CodeRefused, "tokens are used up")
	}
	b.mu.Lock()
	b.token = token
	args := []string{b.id + " ", b.value(token, b.owner), field(b.bucket), text(token)}
	for _, n := range s.nodes {
		if b.votes[n.i].state == voteGiven {
			b.requestRaise(n, args)
		}
	}
	b.mu.Unlock()
	for {
		b.mu.Lock()
		raised, pending := 0, 0
		var errs []error
		for i := range b.votes {
			switch v := &b.votes[i]; {
			case v.raised:
				raised++
			case v.state == voteRequested:
				pending++
			case v.err != nil:
				errs = append(errs, v.err)
			}
		}
		b.mu.Unlock()
		switch {
		case raised >= s.quorum:
			return nil
		case raised+pending < s.quorum:
			return s.unavailable("%d of %d servers have the token, and a quorum is %d: %w", raised, len(b.votes), s.quorum, errors.Join(errs...))
		}
		select {
		case <-b.changed:
		case <-ctx.Done():
			return withdrawn(ctx)
		}
	}
}

// requestRaise writes the ballot's token to a server that voted, in the background. The caller holds
// the mutex.
func (b *ballot) requestRaise(n *node, args []string) {
	v := &b.votes[n.i]
	v.state = voteRequested
	if !b.s.task(func() {
		r, err := n.eval(timeout(b.ttl), raiseScript, []string{b.key, stateKey}, args)
		b.mu.Lock()
		defer b.mu.Unlock()
		v.state, v.err, v.last = voteGiven, err, r.kind
		v.raised = err == nil && r.kind == answerDone
		switch {
		case err != nil:
			v.state = voteUnsure
		case r.kind == answerNoVote:
			v.state, v.err = voteNone, b.s.unavailable("%s: the vote has ended", n.store)
		}
		if b.ended {
			b.endVote(n)
			b.forgetClean()
		}
		wakeup.Send(b.changed)
	}) {
		v.state = voteGiven
	}
}

// grant returns the grant of a ballot with a quorum, or an error if the TTL has passed.
func (c *candidate) grant(b *ballot) (result, error) {
	s := c.s
	b.mu.Lock()
	defer b.mu.Unlock()
	if total, _ := b.sent.Elapsed(); total >= b.ttl {
		return result{}, s.unavailable("the votes took %s of a TTL of %s", total, b.ttl)
	}
	b.granted, b.validFrom = true, b.sent
	s.tokens.Raise(b.bucket, b.token)
	b.held = held.Grant{From: c.r.From, Grant: driver.Grant{
		ID: c.r.ID, Name: c.r.Name, Limit: c.r.Limit, Token: b.token, SentAt: b.sent, TTL: b.ttl, Slot: driver.NoSlot,
		Handle: &handle{b: b, token: b.token},
	}}
	s.held.Hold(&b.held)
	return result{grant: b.held.Grant}, nil
}

// busy returns when the name may be free, and with quorum the holder of the name: the ballot that
// has a quorum of votes.
func (b *ballot) busy(holder string, quorum bool) (res result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ends []time.Time
	now := time.Now()
	res.holders = []driver.Holder{}
	for i := range b.votes {
		v := &b.votes[i]
		if v.queued {
			res.queued++
		}
		switch {
		case v.state == voteGiven:
			ends = append(ends, now)
		case v.last == answerBehind:
			ends = append(ends, v.until)
		case v.last == answerBusy:
			ends = append(ends, v.until)
			if id, _, _ := strings.Cut(v.rival, " "); id != holder || !quorum {
				continue
			}
			h, _, ours := b.s.readHolder(v.rival, time.Until(v.until))
			res.foreign = res.foreign || !ours
			if len(res.holders) == 0 {
				res.holders = append(res.holders, h)
			}
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	res.free = now
	if len(ends) >= b.s.quorum {
		res.free = ends[b.s.quorum-1]
	} else if quorum && len(ends) > 0 { // the others cannot give a vote
		res.free = ends[len(ends)-1]
	}
	return res
}

// readHolder parses the value of a lock that expires after left; see ballot.value. It returns the
// holder and the TTL that the holder requested. ours is false for a value of another client library.
func (s *store) readHolder(value string, left time.Duration) (h driver.Holder, ttl time.Duration, ours bool) {
	h = driver.Holder{Limit: driver.Exclusive, Slot: driver.NoSlot, TTL: max(left, time.Millisecond)}
	foreign := h
	foreign.Note = "of another client library"
	part := strings.SplitN(value, " ", 5)
	if len(part) != 5 {
		return foreign, 0, false
	}
	id, _, isBallot := strings.Cut(part[0], ".")
	token, err1 := strconv.ParseUint(part[1], 10, 64)
	since, err2 := strconv.ParseInt(part[2], 10, 64)
	ms, err3 := strconv.ParseInt(part[3], 10, 64)
	owner, known := server.ReadOwner(id, part[4], since)
	released := strings.HasPrefix(part[0], "*") // written by end.lua
	if !isBallot && !released || !known || errors.Join(err1, err2, err3) != nil {
		return foreign, 0, false
	}
	h.Token = token
	h.Owner = owner
	ttl = time.Duration(ms) * time.Millisecond
	if released {
		h.ID, h.Kept, h.Note = "", true, driver.NoteKept
	} else {
		// A vote stands longer than the TTL. The difference is no time of the lease.
		h.TTL = max(min(left-(s.standing(ttl)-ttl), ttl), time.Millisecond)
	}
	return h, ttl, true
}
