package redisstore

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// notHeld returns the error of a grant that does not exist any more.
func notHeld(name string, token uint64) error {
	return driver.Errorf(driver.CodeNotHeld, "no grant of %q with token %d exists", name, token)
}

// handleOf returns the handle of a grant of this store.
func handleOf[H any](g *driver.Grant) (H, error) {
	h, ok := g.Handle.(H)
	if !ok {
		return h, driver.Errorf(driver.CodeInvalid, "redisstore: a grant of another store")
	}
	return h, nil
}

// Release ends a grant. If the next queue entry belongs to this client, the server grants to it
// in the same step.
func (s *Store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.ops.Done()
	if s.peers != nil {
		return s.peers.release(ctx, &g)
	}
	h, err := handleOf[*handle](&g)
	if err != nil {
		return err
	}
	keys, args, next := s.releaseCall(&g, h, max(keep, 0))
	rep, err := s.sendRelease(ctx, keys, args)
	switch {
	case err != nil:
		if next != nil {
			s.wake(next) // the server may have granted to it, and a refresh finds that out
		}
		return err
	case rep.kind == 'N':
		return notHeld(g.Name, g.Token)
	case next != nil && len(rep.values) >= 2:
		s.pass(next, rep)
	}
	return nil
}

// releaseArgs is the number of arguments of the release script without those about next.
const releaseArgs = 4

// releaseCall returns the keys and arguments of the release script. next is the queue entry of this
// client to which the script may grant, or nil. The grant is no longer checked.
func (s *Store) releaseCall(g *driver.Grant, h *handle, keep time.Duration) (keys, args []string, next *entry) {
	lateUntil := s.lateUntil(h)
	next, seq := s.forgetAndFindNext(g, keep > 0)
	keys, args = []string{h.key}, append(make([]string, 0, 10), mark(g.ID, g.Token))
	if next != nil || h.slot != "0" || keep > 0 || lateUntil != 0 {
		args = append(args, h.slot, strconv.FormatInt(ttlMicros(keep), 10), strconv.FormatInt(lateUntil, 10))
	}
	switch {
	case next != nil:
		keys = append(keys, next.keys[1])
		args = append(args, strconv.FormatInt(seq, 10), next.r.ID, s.highWater.text(next.bucket),
			strconv.FormatInt(s.clock.deadline(), 10), s.encodeOwner(next.r.From.Owner()))
		if next.r.Tokens > 1 {
			args = append(args, tokensText(&next.r))
		}
	case h.counter != "":
		keys = append(keys, h.counter)
	}
	return keys, args, next
}

// sendRelease runs the release script, in a batch if it needs only the mark of the grant. While the
// hash slot moves, the counter may be on another server. Then the script runs without it, and grants
// as if the next entry were of another client.
func (s *Store) sendRelease(ctx context.Context, keys, args []string) (reply, error) {
	if len(args) == 1 && len(keys) == 1 {
		return s.combine(ctx, releaseScript, keys, args, 0)
	}
	rep, err := s.eval(ctx, releaseScript, keys, args)
	if len(keys) > 1 && isTryAgain(err) {
		return s.eval(ctx, releaseScript, keys[:1], args[:min(len(args), releaseArgs)])
	}
	return rep, err
}

// lateUntil returns until when a request with the ID of a grant may arrive, 0 if none can.
func (s *Store) lateUntil(h *handle) int64 {
	if h.lateUntil != 0 && h.lateUntil < s.clock.now()-window.Microseconds() {
		return 0 // that time has passed
	}
	return h.lateUntil
}

// mark returns the text by which the scripts find a grant.
func mark(id string, token uint64) string {
	var b [64]byte
	return string(append(strconv.AppendUint(append(append(append(b[:0], ' '), id...), ' '), token, 10), ' '))
}

// forgetAndFindNext removes a grant that is about to end. It returns the first queue entry of this
// client and its number. It returns nil if the server must not grant to that entry in the step of
// the release.
func (s *Store) forgetAndFindNext(g *driver.Grant, keep bool) (next *entry, seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(g.ID)
	if keep || s.cfg.replicas > 0 || !s.fresh() {
		return nil, 0 // the next waiter sends its own request, after a probe
	}
	for _, e := range s.queued[g.Name] {
		if e.seq != 0 && (next == nil || e.seq < seq) {
			next, seq = e, e.seq
		}
	}
	return next, seq
}

// wake makes a waiter refresh its queue entry now.
func (s *Store) wake(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.seq != 0 {
		wakeup.Send(e.wake)
	}
}

// pass delivers a grant to the request that waits for it.
func (s *Store) pass(e *entry, rep reply) {
	g, err := makeGrant(e, rep.values, rep.sent)
	if err != nil {
		return // the next refresh of the request returns the grant
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.passed = &g
	if e.wake != nil {
		wakeup.Send(e.wake)
	}
}

// Renew sets new deadlines for grants that still stand.
func (s *Store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	if len(grants) == 0 {
		return nil
	}
	if err := s.begin(ctx); err != nil {
		return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
	}
	defer s.ops.Done()
	lead := s.lead()
	var answers []driver.Renewal
	if s.peers != nil {
		answers = s.peers.renew(ctx, grants, lead)
	} else {
		answers = s.renew(ctx, grants, lead)
	}
	for i := range answers {
		if answers[i].Err == nil && s.cfg.replicas > 0 {
			s.setLead(grants[i].ID, lead)
		}
	}
	return answers
}

// renew is Renew in the native layout.
func (s *Store) renew(ctx context.Context, grants []driver.Grant, lead time.Duration) []driver.Renewal {
	calls, err := s.renewCalls(grants, lead)
	if err != nil {
		return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
	}
	answers := make([]driver.Renewal, len(grants))
	if s.cfg.replicas > 0 {
		s.renewAcked(ctx, grants, calls, answers)
		return answers
	}
	sent, at := driver.Now(), micros()
	for i, a := range s.client.EvalAll(ctx, renewScript, calls) {
		rep, err := s.read(renewScript, sent, at, a.Values, a.Err)
		answers[i] = s.renewed(&grants[i], rep, err)
	}
	return answers
}

// renewCalls returns the keys and arguments of the renew script for each grant.
func (s *Store) renewCalls(grants []driver.Grant, lead time.Duration) ([]Call, error) {
	calls := make([]Call, len(grants))
	for i := range grants {
		g := &grants[i]
		h, err := handleOf[*handle](g)
		if err != nil {
			return nil, err
		}
		args := append(make([]string, 0, 4), mark(g.ID, g.Token), h.slot, strconv.FormatInt(ttlMicros(serverTTL(max(g.TTL, h.ttl), lead)), 10))
		if h.ttl != 0 {
			args = append(args, "1")
		}
		calls[i] = Call{Keys: []string{h.key}, Args: args}
	}
	return calls, nil
}

// renewed returns the result of the renewal of a grant.
func (s *Store) renewed(g *driver.Grant, rep reply, err error) driver.Renewal {
	switch {
	case err != nil:
		return driver.Renewal{Err: err}
	case rep.kind != 'R':
		return driver.Renewal{Cause: ended(rep), Err: notHeld(g.Name, g.Token)}
	}
	s.prove(g.ID, rep.sent.Time())
	return driver.Renewal{SentAt: rep.sent, TTL: max(g.TTL, g.Handle.(*handle).ttl)}
}

// ended returns the cause of the end of a grant.
func ended(rep reply) driver.Cause {
	if rep.kind == 'T' {
		return driver.CauseTaken
	}
	return driver.CauseGone
}

// maxRenewals limits the renewals under way that replicas acknowledge: each needs a connection of
// its own.
const maxRenewals = 16

// eachRenewal calls f with the index of each of n renewals, for at most maxRenewals at once.
func eachRenewal(n int, f func(i int)) {
	var all sync.WaitGroup
	slots := make(chan struct{}, maxRenewals)
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			f(i)
			<-slots
		})
	}
	all.Wait()
}

// renewAcked sets the answers to renewals. It confirms a renewal only when enough replicas have
// acknowledged it. Otherwise a failover could free the name before the validity of its holder ends.
func (s *Store) renewAcked(ctx context.Context, grants []driver.Grant, calls []Call, answers []driver.Renewal) {
	eachRenewal(len(grants), func(i int) {
		rep, acked, err := s.evalAcked(ctx, renewScript, calls[i].Keys, calls[i].Args, "R")
		if err == nil && rep.kind == 'R' && acked < s.cfg.replicas {
			err = driver.Errorf(driver.CodeUnavailable, "%d of %d replicas acknowledged the renewal within %s", acked, s.cfg.replicas, s.cfg.ackTimeout)
		}
		answers[i] = s.renewed(&grants[i], rep, err)
	})
}

// Undo removes a queue entry or a grant by its ID. The server keeps a tombstone of the ID, so
// that it refuses a delayed request. It keeps the tombstone until it would refuse the request as
// too old.
func (s *Store) Undo(ctx context.Context, r driver.Request) error {
	if err := driver.CheckName(r.Name); err != nil || r.ID == "" {
		return driver.Errorf(driver.CodeInvalid, "redisstore: undoing id %q of name %q", r.ID, r.Name)
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.ops.Done()
	s.mu.Lock()
	lateUntil, known := s.late[r.ID]
	if !known {
		lateUntil = s.clock.deadline()
		s.late[r.ID] = lateUntil
	}
	if e := s.entries[r.ID]; e != nil && e.held {
		s.forget(r.ID)
	}
	s.mu.Unlock()
	var err error
	if s.peers != nil {
		err = s.peers.undoAll(ctx, &r, lateUntil)
	} else {
		_, err = s.eval(ctx, undoScript, []string{s.keys.key(r.Name)}, []string{r.ID, strconv.FormatInt(lateUntil, 10)})
	}
	if err == nil {
		s.mu.Lock()
		delete(s.late, r.ID)
		s.mu.Unlock()
	}
	return err
}

// Break ends a grant and notifies its holder.
func (s *Store) Break(ctx context.Context, name string, token uint64) error {
	if err := driver.CheckName(name); err != nil {
		return driver.Errorf(driver.CodeInvalid, "redisstore: %w", err)
	}
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.ops.Done()
	if s.peers != nil {
		return s.peers.take(ctx, name, token)
	}
	rep, err := s.eval(ctx, breakScript, []string{s.keys.key(name)}, []string{strconv.FormatUint(token, 10)})
	if err == nil && rep.kind == 'N' {
		err = notHeld(name, token)
	}
	return err
}
