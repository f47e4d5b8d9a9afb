package redlock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

func notHeld(g *driver.Grant) error {
	return driver.Errorf(driver.CodeNotHeld, "redlock: %q: the grant of token %d does not stand", g.Name, g.Token)
}

// own returns the ballot of a grant, or nil if the grant belongs to another store.
func own(g *driver.Grant) *ballot {
	if h, ok := g.Handle.(*handle); ok && h.token == g.Token {
		return h.b
	}
	return nil
}

// Release ends a grant. It returns when a quorum of servers has confirmed that. The
// client ends the other votes in the background. While a server finds a release with keep
// late, the client repeats it, until the grant's TTL has passed. See [driver.Store].
func (s *store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	b := own(&g)
	if b == nil {
		return notHeld(&g)
	}
	s.held.Forget(g.ID)
	b.mu.Lock()
	if b.answered {
		b.mu.Unlock()
		return notHeld(&g)
	}
	b.end(true, keep)
	b.mu.Unlock()
	for {
		b.mu.Lock()
		ended, unclear, pending := b.countEnded()
		denied := b.answered || ended+unclear+pending < s.quorum // undone, lost, or released by another call
		confirmed := ended >= s.quorum
		impossible := ended+pending < s.quorum
		b.answered = denied || confirmed || impossible
		b.mu.Unlock()
		switch {
		case denied:
			return notHeld(&g)
		case confirmed:
			b.awaitEnd(ctx, 0)
			return nil
		case impossible:
			return driver.Errorf(driver.CodeUnknown,
				"redlock: %q: %d of %d servers have confirmed the release, a quorum is %d, and the votes have ended",
				g.Name, ended, len(s.nodes), s.quorum)
		}
		select {
		case <-b.changed:
		case <-ctx.Done():
			return driver.Errorf(driver.CodeUnknown, "redlock: %d of %d servers have confirmed the release, and a quorum is %d: %w", ended, len(s.nodes), s.quorum, context.Cause(ctx))
		case <-s.life.Done():
			return calls.ErrClosed
		}
	}
}

// countEnded returns on how many servers the release has ended a vote, on how many it may have, because an
// answer was lost, and on how many the outcome is pending. A withheld server has given no vote to another
// client, but it does not keep a lock. The caller holds the mutex.
func (b *ballot) countEnded() (ended, unclear, pending int) {
	for i := range b.votes {
		switch v := &b.votes[i]; {
		case v.left:
		case v.state != voteNone:
			pending++
		case b.undone:
		case v.ended == answerKept, v.ended == answerVoteEnded, v.ended == answerWithheld && b.keepUntil.IsZero():
			ended++
		case v.ended == answerWithheld, v.unclear:
			unclear++
		}
	}
	return ended, unclear, pending
}

// Undo withdraws a request. See [driver.Store].
func (s *store) Undo(ctx context.Context, r driver.Request) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	s.held.Forget(r.ID)
	s.mu.Lock()
	all := slices.Clone(s.ballots[r.ID])
	s.mu.Unlock()
	for _, b := range all {
		b.mu.Lock()
		b.undone = true
		b.end(true, 0)
		b.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	key := s.prefix() + r.Name
	return s.await(ctx, func(n *node) error {
		_, err := n.eval(2*time.Second, endScript, endKeys(key, r.ID), s.endArgs(r.ID+".", s.keepOutMillis(), "0", r.ID+" "+s.channel, true))
		return err
	})
}

// await calls onAll, and returns soon after the context ends.
func (s *store) await(ctx context.Context, call func(*node) error) error {
	timeout := 2 * time.Second
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	done := make(chan error, 1)
	if !s.task(func() { done <- s.onAll(timeout, call) }) {
		return calls.ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return driver.Errorf(driver.CodeUnknown, "redlock: %w", context.Cause(ctx))
	}
}

// renewal is the progress of the renewal of one grant, or of a check of it.
type renewal struct {
	b     *ballot
	grant *driver.Grant
	// out is set when decided is true.
	out     *driver.Renewal
	decided bool
	// kept is the number of servers that have the vote, and gone of those that have not. taken of
	// the latter have a tombstone.
	kept, gone, taken int
	errs              []error
}

// Renew extends the votes of grants. It also requests votes from servers that have no vote for the grant,
// because they were restarted or could not be reached. A grant is renewed if a quorum confirms the
// renewal before the grant ends. See [driver.Store].
func (s *store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	if err := s.calls.Enter(); err != nil {
		for i := range out {
			out[i].Err = err
		}
		return out
	}
	defer s.calls.Leave()
	sent := driver.Now()
	live := make([]renewal, 0, len(grants))
	for i := range grants {
		g := &grants[i]
		b := own(g)
		if b == nil {
			out[i] = driver.Renewal{Err: notHeld(g), Cause: driver.CauseGone}
		} else if out[i] = b.beginRenewal(g); out[i].Err == nil {
			live = append(live, renewal{b: b, grant: g, out: &out[i]})
		}
	}
	if len(live) == 0 {
		return out
	}
	reports := make(chan []answer, len(s.nodes))
	outstanding := 0
	for _, n := range s.nodes {
		if s.task(func() { reports <- n.renew(live) }) {
			outstanding++
		}
	}
	for undecided := len(live); outstanding > 0 && undecided > 0; {
		select {
		case answers := <-reports:
			outstanding--
			for j := range live {
				r := &live[j]
				r.add(answers[j])
				if !r.decided && r.decide(sent) {
					undecided--
				}
			}
		case <-ctx.Done():
			outstanding = 0
		}
	}
	for j := range live {
		if r := &live[j]; !r.decided {
			r.out.Err = driver.Errorf(driver.CodeUnknown, "redlock: %q: %d of %d servers have renewed it, and a quorum is %d: %w",
				r.grant.Name, r.kept, len(s.nodes), s.quorum, errors.Join(append(r.errs, context.Cause(ctx))...))
		}
	}
	return out
}

// beginRenewal returns an error for a grant that cannot be renewed.
func (b *ballot) beginRenewal(g *driver.Grant) driver.Renewal {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended && b.clean() < b.s.quorum:
		return driver.Renewal{Err: driver.Errorf(driver.CodeUnknown, "redlock: %q: its release is not confirmed", g.Name)}
	case !b.stillHeld():
		return driver.Renewal{Err: notHeld(g), Cause: driver.CauseExpired}
	}
	b.voteSent = time.Now()
	return driver.Renewal{}
}

// stillHeld reports whether a grant has not ended and its TTL has not passed. The caller
// holds the mutex.
func (b *ballot) stillHeld() bool {
	passed, _ := b.validFrom.Elapsed()
	return b.granted && !b.ended && !b.broken && passed < b.ttl
}

// add counts the answer of one server.
func (r *renewal) add(a answer) {
	if a.err != nil {
		r.errs = append(r.errs, a.err)
		return
	}
	switch a.kind {
	case answerRenewed, answerVoted:
		r.kept++
	case answerTombstone, answerWithdrawn:
		r.taken++
		r.gone++
	case answerOther, answerNoVote, answerBusy:
		r.gone++
	}
}

// lost reports whether too many servers have no vote for a quorum to be left, and the cause.
func (r *renewal) lost() (bool, driver.Cause) {
	cause := driver.CauseGone
	if r.taken > 0 {
		cause = driver.CauseTaken
	}
	return r.gone > len(r.b.s.nodes)-r.b.s.quorum, cause
}

// decide sets the outcome of the renewal if enough servers have answered, and reports whether it did.
func (r *renewal) decide(sent driver.Instant) bool {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	lost, cause := r.lost()
	switch {
	case r.kept >= b.s.quorum && b.stillHeld():
		b.validFrom = sent
		*r.out = driver.Renewal{SentAt: sent, TTL: b.ttl}
	case r.kept >= b.s.quorum:
		*r.out = driver.Renewal{Err: notHeld(r.grant), Cause: driver.CauseExpired}
	case lost:
		*r.out = driver.Renewal{Err: notHeld(r.grant), Cause: cause}
	default:
		return false
	}
	r.decided = true
	return true
}

// renew renews grants at one server. It then requests a vote for each grant that has no vote there.
func (n *node) renew(live []renewal) []answer {
	now, skew := text(n.s.now()), text(n.s.cfg.skew.Microseconds())
	calls := make([]server.Call, len(live))
	var longest time.Duration
	for j := range live {
		b := live[j].b
		longest = max(longest, b.ttl)
		calls[j] = server.Call{Keys: []string{b.key, tombstone + b.id}, Args: []string{b.id + " ", millis(b.stands), now, skew}}
	}
	answers := n.evalAll(timeout(longest), renewScript, calls)
	var missing []int // the grants without a vote
	var requests []server.Call
	for j := range live {
		b := live[j].b
		b.mu.Lock()
		if b.recordRenewal(n, answers[j]) {
			missing = append(missing, j)
			requests = append(requests, server.Call{Keys: b.voteKeys(), Args: b.voteArgs(b.token, server.OwnerText(b.r.From.Owner()))})
		}
		b.mu.Unlock()
	}
	if len(missing) == 0 {
		return answers
	}
	for k, a := range n.evalAll(timeout(longest), voteScript, requests) {
		b := live[missing[k]].b
		b.mu.Lock()
		b.recordAnswer(n, a.reply, a.err)
		if a.err == nil && a.kind != answerVoted && a.kind != answerWithdrawn && a.kind != answerBusy {
			a.err = b.votes[n.i].err // such a server has voted for no other holder, so this is no loss
		}
		b.mu.Unlock()
		answers[missing[k]] = a
	}
	return answers
}

// recordRenewal records a server's answer to a renewal. It returns true if the client has to request
// the vote again. The caller holds the mutex.
func (b *ballot) recordRenewal(n *node, a answer) (request bool) {
	v := &b.votes[n.i]
	if a.err != nil || v.state == voteRequested || v.state == voteEnding {
		return false // a request that is in flight sets the state
	}
	switch a.kind {
	case answerRenewed, answerClock:
		v.state = voteGiven
		if b.ended {
			b.endVote(n)
		}
	case answerNoVote, answerOther:
		// An earlier request for the vote may still arrive, until the server refuses it as late. Another ballot that
		// has the vote does not change that: it may end first.
		if v.state == voteUnsure && time.Since(v.requested) <= b.s.late() {
			return false
		}
		if a.kind == answerOther {
			v.state = voteNone
			return false
		}
		if !b.stillHeld() {
			return false
		}
		v.state = voteRequested
		b.voteSent = time.Now()
		v.requested = b.voteSent
		return true
	default:
		v.state = voteNone
	}
	return false
}

// checkInterval is the interval at which a client checks that its grants still stand.
const checkInterval = noticeTimeout / 4

// checkHeld reads the votes of held grants from every server. It reports a grant as lost if fewer servers than a
// quorum may still have its vote.
func (s *store) checkHeld(due []*held.Grant) {
	if s.calls.Enter() != nil {
		return
	}
	defer s.calls.Leave()
	standing := make([]renewal, 0, len(due))
	grants := due[:0]
	var calls []server.Call
	for _, h := range due {
		b := own(&h.Grant)
		b.mu.Lock()
		if b.stillHeld() {
			grants, standing = append(grants, h), append(standing, renewal{b: b})
			calls = append(calls, server.Call{Keys: []string{b.key, tombstone + b.id}, Args: []string{b.id + " ", "0", "0", "0"}})
		}
		b.mu.Unlock()
	}
	if len(calls) == 0 {
		return
	}
	reports := make(chan []answer, len(s.nodes))
	for _, n := range s.nodes {
		if !s.task(func() { reports <- n.evalAll(checkInterval, renewScript, calls) }) {
			reports <- nil
		}
	}
	for range s.nodes {
		for j, a := range <-reports {
			if a.err == nil && a.kind == answerClock {
				a.kind = answerRenewed // the vote exists: such a request is always late, so the server changes nothing
			}
			standing[j].add(a)
		}
	}
	for j := range standing {
		if lost, cause := standing[j].lost(); lost && standing[j].b.lose(cause) {
			s.held.Lose(grants[j], cause, nil)
		}
	}
}

// lose reports whether a grant that is lost was held until now. After a break, no renewal counts.
func (b *ballot) lose(cause driver.Cause) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.stillHeld()
	b.broken = b.broken || held && cause == driver.CauseTaken
	return held
}

// Break ends the grant of a token. It returns when a quorum of servers has confirmed
// that. See [driver.Breaker].
func (s *store) Break(ctx context.Context, name string, token uint64) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	found, err := s.read(ctx, []string{name})
	if err != nil {
		return err
	}
	h := found[0]
	if h.id == "" && h.open {
		return s.unavailable("redlock: %q: too few servers have answered to find its holder", name)
	}
	if h.id == "" || h.holder.Token != token || h.holder.ID == "" {
		return driver.Errorf(driver.CodeNotHeld, "redlock: %q: no grant of token %d exists", name, token)
	}
	key := s.prefix() + name
	// The holder may have renewed the votes since then. It sends no renewal after its TTL.
	keepOut := millis(max(h.holder.TTL, h.ttl) + s.late())
	var ended atomic.Bool // at any server
	err = s.await(ctx, func(n *node) error {
		r, err := n.eval(2*time.Second, endScript, endKeys(key, h.id), s.endArgs(h.id+" ", keepOut, "0", "", true))
		if err == nil && r.kind == answerVoteEnded {
			ended.Store(true)
		}
		return err
	})
	if err == nil && !ended.Load() {
		return driver.Errorf(driver.CodeNotHeld, "redlock: %q: the grant of token %d has ended", name, token)
	}
	return err
}
