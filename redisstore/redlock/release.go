package redlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
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
// client ends the other votes in the background. See [driver.Store].
func (s *Store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.ops.Done()
	b := own(&g)
	if b == nil {
		return notHeld(&g)
	}
	b.mu.Lock()
	if b.settled {
		b.mu.Unlock()
		return notHeld(&g)
	}
	b.end(true, keep)
	b.mu.Unlock()
	for {
		b.mu.Lock()
		ended, pending := 0, 0
		for i := range b.votes {
			switch v := &b.votes[i]; {
			case v.state != voteNone:
				pending++
			case b.undone:
			case v.ended == 'R', v.ended == 'U': // a withheld server has given no vote to another client
				ended++
			}
		}
		switch {
		case b.settled:
			b.mu.Unlock()
			return notHeld(&g)
		case ended >= s.quorum:
			b.settled = true
			b.mu.Unlock()
			b.settle(ctx, 0)
			return nil
		case ended+pending < s.quorum:
			b.settled = true // the votes ended before: the request was undone, or the grant was lost
			b.mu.Unlock()
			return notHeld(&g)
		}
		b.mu.Unlock()
		select {
		case <-b.changed:
		case <-ctx.Done():
			return driver.Errorf(driver.CodeUnknown, "redlock: %d of %d servers have confirmed the release, and a quorum is %d: %w", ended, len(s.nodes), s.quorum, context.Cause(ctx))
		case <-s.life.Done():
			return errClosed
		}
	}
}

// Undo withdraws a request. See [driver.Store].
func (s *Store) Undo(ctx context.Context, r driver.Request) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.ops.Done()
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
	return s.await(ctx, func(n *node) (reply, error) {
		return n.eval(2*time.Second, endScript, []string{key, stateKey, tombstone + r.ID, queueKey + key}, s.endArgs(r.ID+".", s.keepOutMillis(), "0", r.ID+" "+s.channel, true))
	})
}

// await calls onAll, and returns soon after the context ends.
func (s *Store) await(ctx context.Context, call func(*node) (reply, error)) error {
	timeout := 2 * time.Second
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end))
	}
	done := make(chan error, 1)
	if !s.task(func() { done <- s.onAll(ctx, timeout, call) }) {
		return errClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return driver.Errorf(driver.CodeUnknown, "redlock: %w", context.Cause(ctx))
	}
}

// renewal is the progress of the renewal of one grant.
type renewal struct {
	kept, gone, taken, pending int
	errs                       []error
}

// Renew extends the votes of grants. It also requests votes from servers that have no vote for the grant,
// because they were restarted or could not be reached. A grant is renewed if a quorum confirms the
// renewal before the grant ends. See [driver.Store].
func (s *Store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	if len(grants) == 0 {
		return out
	}
	err := s.enter()
	if err == nil {
		defer s.ops.Done()
	}
	var live []int // indices of the grants that may be valid
	sent := driver.Now()
	var ttl time.Duration
	for i := range grants {
		b := own(&grants[i])
		switch {
		case err != nil:
			out[i].Err = err
		case b == nil:
			out[i] = driver.Renewal{Err: notHeld(&grants[i]), Cause: driver.CauseGone}
		default:
			b.mu.Lock()
			if b.ended && b.clean() < s.quorum {
				out[i].Err = driver.Errorf(driver.CodeUnknown, "redlock: %q: its release is not confirmed", grants[i].Name)
			} else if !b.stillHeld() {
				out[i] = driver.Renewal{Err: notHeld(&grants[i]), Cause: driver.CauseExpired}
			} else {
				live = append(live, i)
				b.voteSent = time.Now()
				ttl = max(ttl, b.ttl)
			}
			b.mu.Unlock()
		}
	}
	if len(live) == 0 {
		return out
	}
	type report struct {
		answers []answer
	}
	reports := make(chan report, len(s.nodes))
	outstanding := 0
	for _, n := range s.nodes {
		if s.task(func() { reports <- report{s.renewAt(n, grants, live)} }) {
			outstanding++
		}
	}
	tallies := make([]renewal, len(live))
	for i := range tallies {
		tallies[i].pending = outstanding
	}
	open := len(live)
	for outstanding > 0 && open > 0 {
		select {
		case rep := <-reports:
			outstanding--
			open = 0
			for j, i := range live {
				t := &tallies[j]
				t.add(rep.answers[j])
				if out[i].Err == nil && out[i].TTL == 0 && !s.decide(&out[i], &grants[i], t, sent) {
					open++
				}
			}
		case <-ctx.Done():
			outstanding = 0
		}
	}
	for j, i := range live {
		if out[i].Err == nil && out[i].TTL == 0 {
			t := &tallies[j]
			out[i].Err = driver.Errorf(driver.CodeUnknown, "redlock: %q: %d of %d servers have renewed it, and a quorum is %d: %w",
				grants[i].Name, t.kept, len(s.nodes), s.quorum, errors.Join(append(t.errs, context.Cause(ctx))...))
		}
	}
	return out
}

// stillHeld reports whether a grant has not ended and its TTL has not passed. The caller
// holds the mutex.
func (b *ballot) stillHeld() bool {
	passed, _ := b.expires.Elapsed()
	return b.granted && !b.ended && !b.lost && passed < b.ttl
}

func (t *renewal) add(a answer) {
	t.pending--
	switch {
	case a.err != nil:
		t.errs = append(t.errs, a.err)
	case a.kind == 'R', a.kind == 'G':
		t.kept++
	case a.kind == 'T', a.kind == 'V':
		t.taken++
		t.gone++
	case a.kind == 'O', a.kind == 'N', a.kind == 'B':
		t.gone++
	}
}

// decide sets the outcome of the renewal of one grant if enough servers have answered,
// and reports whether it did.
func (s *Store) decide(out *driver.Renewal, g *driver.Grant, t *renewal, sent driver.Instant) bool {
	b := own(g)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case t.kept >= s.quorum && b.stillHeld():
		b.expires = sent
		*out = driver.Renewal{SentAt: sent, TTL: b.ttl}
	case t.kept >= s.quorum:
		*out = driver.Renewal{Err: notHeld(g), Cause: driver.CauseExpired}
	case t.gone > len(s.nodes)-s.quorum:
		*out = driver.Renewal{Err: notHeld(g), Cause: driver.CauseGone}
		if t.taken > 0 {
			out.Cause = driver.CauseTaken
		}
	default:
		return false
	}
	return true
}

// renewAt renews grants at one server. It requests a vote for each grant that has no vote
// there.
func (s *Store) renewAt(n *node, grants []driver.Grant, live []int) []answer {
	now, skew := text(s.now()), text(s.cfg.skew.Microseconds())
	calls := make([]redisstore.Call, len(live))
	var longest time.Duration
	for j, i := range live {
		b := own(&grants[i])
		longest = max(longest, b.ttl)
		calls[j] = redisstore.Call{Keys: []string{b.key, tombstone + b.id}, Args: []string{b.id + " ", millis(b.stands), now, skew}}
	}
	answers := n.evalAll(timeout(longest), renewScript, calls)
	var heal []int
	var votes []redisstore.Call
	for j, i := range live {
		b := own(&grants[i])
		a := answers[j]
		b.mu.Lock()
		v := &b.votes[n.i]
		switch {
		case v.state == voteRequested || v.state == voteEnding: // another request decides
		case a.err != nil:
		case a.kind == 'R' || a.kind == 'C':
			v.state = voteGiven
			if b.ended {
				b.endVote(n, true)
			}
		case a.kind == 'N' && (v.state != voteUnsure || time.Since(v.requested) > s.late()) && b.stillHeld():
			v.state = voteRequested
			b.voteSent = time.Now()
			v.requested = b.voteSent
			heal = append(heal, j)
			votes = append(votes, redisstore.Call{Keys: b.voteKeys(), Args: b.voteArgs(b.token, ownerText(b.r.From.Owner()))})
		case a.kind != 'N':
			v.state = voteNone
		}
		b.mu.Unlock()
	}
	if len(heal) == 0 {
		return answers
	}
	for k, a := range n.evalAll(timeout(longest), voteScript, votes) {
		j := heal[k]
		b := own(&grants[live[j]])
		b.mu.Lock()
		b.answered(n, a.reply, a.err)
		if a.err == nil && a.kind != 'G' && a.kind != 'V' && a.kind != 'B' {
			a.err = b.votes[n.i].err // such a server has voted for no other holder, so this is no loss
		}
		b.mu.Unlock()
		answers[j] = a
	}
	return answers
}

// checkInterval is the interval at which a client checks that its grants still stand.
const checkInterval = noticeTimeout / 4

// checkInBackground starts the background task that checks the held grants.
func (s *Store) checkInBackground() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.checking || s.closing {
		return
	}
	s.checking = true
	s.tasks.Add(1)
	go s.serve(func() {
		t := time.NewTicker(checkInterval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-s.ctx.Done():
				return
			}
			if !s.checkGrants() {
				return
			}
		}
	})
}

// checkGrants reads the votes of the held grants from every server. It reports a grant as lost if fewer
// servers than a quorum may still have its vote. It returns false if there are no ballots.
func (s *Store) checkGrants() bool {
	var all, held []*ballot
	s.mu.Lock()
	for _, some := range s.ballots {
		all = append(all, some...)
	}
	if len(all) == 0 {
		s.checking = false
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return false
	}
	for _, b := range all { // without the store's mutex, which is locked after a ballot's
		b.mu.Lock()
		if b.stillHeld() {
			held = append(held, b)
		}
		b.mu.Unlock()
	}
	if len(held) == 0 {
		return true
	}
	calls := make([]redisstore.Call, len(held))
	for j, b := range held {
		calls[j] = redisstore.Call{Keys: []string{b.key, tombstone + b.id}, Args: []string{b.id + " ", "0", "0", "0"}}
	}
	reports := make(chan []answer, len(s.nodes))
	for _, n := range s.nodes {
		if !s.task(func() { reports <- n.evalAll(checkInterval, renewScript, calls) }) {
			reports <- nil
		}
	}
	tallies := make([]renewal, len(held))
	for range s.nodes {
		for j, a := range <-reports {
			if a.err == nil && a.kind == 'C' {
				a.kind = 'R'
			}
			tallies[j].add(a)
		}
	}
	for j, b := range held {
		if t := tallies[j]; t.gone > len(s.nodes)-s.quorum {
			b.mu.Lock()
			lost := b.stillHeld() // and not released since
			b.lost = b.lost || lost && t.taken > 0
			b.mu.Unlock()
			cause := driver.CauseGone
			if t.taken > 0 {
				cause = driver.CauseTaken
			}
			if lost {
				b.r.From.Lost(cause, nil)
			}
		}
	}
	return true
}

// Break ends the grant of a token. It returns when a quorum of servers has confirmed
// that. See [driver.Breaker].
func (s *Store) Break(ctx context.Context, name string, token uint64) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.ops.Done()
	found, err := s.read(ctx, []string{name})
	if err != nil {
		return err
	}
	h := found[0]
	if h.id == "" || h.holder.Token != token || h.holder.ID == "" {
		return driver.Errorf(driver.CodeNotHeld, "redlock: %q: no grant of token %d exists", name, token)
	}
	key := s.prefix() + name
	// The holder may have renewed the votes since then. It sends no renewal after its TTL.
	keepOut := millis(max(h.holder.TTL, h.ttl) + s.late())
	ended := make(chan byte, len(s.nodes))
	err = s.await(ctx, func(n *node) (reply, error) {
		r, err := n.eval(2*time.Second, endScript, []string{key, stateKey, tombstone + h.id, queueKey + key}, s.endArgs(h.id+" ", keepOut, "0", "", true))
		if err == nil {
			ended <- r.kind
		}
		return r, err
	})
	if err == nil && strings.Count(drain(ended), "R") == 0 {
		return driver.Errorf(driver.CodeNotHeld, "redlock: %q: the grant of token %d has ended", name, token)
	}
	return err
}

func drain(c chan byte) string {
	var b []byte
	for len(c) > 0 {
		b = append(b, <-c)
	}
	return string(b)
}
