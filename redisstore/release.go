package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

func notHeld(name string, token uint64) error {
	return driver.Errorf(driver.CodeNotHeld, "no grant of %q with token %d exists", name, token)
}

// handleOf returns the handle of a grant of this store.
func handleOf(g *driver.Grant) (*handle, error) {
	h, ok := g.Handle.(*handle)
	if !ok {
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: a grant of another store")
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
	h, err := handleOf(&g)
	if err != nil {
		return err
	}
	lateUntil := s.lateUntil(h)
	args := append(make([]string, 0, 10), mark(g.ID, g.Token))
	keys := []string{h.key}
	next, seq := s.release(&g, keep > 0)
	if next != nil || h.slot != "0" || keep > 0 || lateUntil != 0 {
		args = append(args, h.slot, strconv.FormatInt(ttlMicros(max(keep, 0)), 10), strconv.FormatInt(lateUntil, 10))
	}
	if next == nil && h.counter != "" {
		keys = append(keys, h.counter)
	}
	if next != nil {
		keys = append(keys, next.keys[1])
		args = append(args, strconv.FormatInt(seq, 10), next.r.ID, s.highWater.text(next.bucket),
			strconv.FormatInt(s.clock.deadline(), 10), s.encodeOwner(next.r.From.Owner()))
		if next.r.Tokens > 1 {
			args = append(args, tokensText(&next.r))
		}
	}
	var rep reply
	if len(args) == 1 && len(keys) == 1 {
		rep, err = s.combine(ctx, releaseScript, keys, args, 0)
	} else {
		rep, err = s.eval(ctx, releaseScript, keys, args)
	}
	if len(keys) > 1 && isTryAgain(err) {
		rep, err = s.eval(ctx, releaseScript, keys[:1], args[:min(len(args), 4)])
	}
	if next != nil && err != nil {
		s.mu.Lock()
		if next.seq != 0 {
			wakeup.Send(next.wake) // the server may have granted to it, and a refresh finds that out
		}
		s.mu.Unlock()
	}
	switch {
	case err != nil:
		return err
	case rep.kind == 'N':
		return notHeld(g.Name, g.Token)
	case next != nil && len(rep.values) >= 2:
		s.pass(next, rep)
	}
	return nil
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

// release removes a grant that is about to end, and returns the first queue entry of this
// client, or nil.
func (s *Store) release(g *driver.Grant, keep bool) (next *entry, seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[g.ID]; e != nil {
		s.forget(e)
	}
	if keep || s.cfg.replicas > 0 || !s.fresh() {
		return nil, 0 // the next waiter sends its own request, after a probe
	}
	for _, e := range s.queued[g.Name] {
		if e.seq != 0 && (next == nil || e.seq < next.seq) {
			next = e
		}
	}
	if next != nil {
		seq = next.seq
	}
	return next, seq
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
	answers := make([]driver.Renewal, len(grants))
	if len(grants) == 0 {
		return answers
	}
	fail := func(err error) []driver.Renewal {
		for i := range answers {
			answers[i] = driver.Renewal{Err: err}
		}
		return answers
	}
	if err := s.begin(ctx); err != nil {
		return fail(err)
	}
	defer s.ops.Done()
	lead := s.lead()
	if s.peers != nil {
		answers = s.peers.renew(ctx, grants)
		for i := range answers {
			if answers[i].Err == nil {
				s.peers.setLead(grants[i].ID, lead)
			}
		}
		return answers
	}
	if s.cfg.replicas > 0 {
		answers = s.renewAcked(ctx, grants, answers)
		for i := range answers {
			if answers[i].Err == nil {
				s.setLead(grants[i].ID, lead)
			}
		}
		return answers
	}
	calls, err := s.renewCalls(grants)
	if err != nil {
		return fail(err)
	}
	sent, at := driver.Now(), micros()
	for i, a := range s.client.EvalAll(ctx, renewScript, calls) {
		rep, err := s.read(renewScript, sent, at, a.Values, a.Err)
		answers[i] = s.renewed(&grants[i], rep, err)
	}
	return answers
}

func (s *Store) renewCalls(grants []driver.Grant) ([]Call, error) {
	calls := make([]Call, len(grants))
	for i := range grants {
		g := &grants[i]
		h, err := handleOf(g)
		if err != nil {
			return nil, err
		}
		args := append(make([]string, 0, 4), mark(g.ID, g.Token), h.slot, strconv.FormatInt(s.serverTTL(max(g.TTL, h.ttl)), 10))
		if h.ttl != 0 {
			args = append(args, "1")
		}
		calls[i] = Call{Keys: []string{h.key}, Args: args}
	}
	return calls, nil
}

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

// renewAcked confirms a renewal only when enough replicas have acknowledged it. Otherwise a
// failover could free the name before the validity of its holder ends.
func (s *Store) renewAcked(ctx context.Context, grants []driver.Grant, answers []driver.Renewal) []driver.Renewal {
	calls, err := s.renewCalls(grants)
	for i := range grants {
		if err != nil {
			answers[i] = driver.Renewal{Err: err}
			continue
		}
		s.ops.Add(1)
	}
	if err != nil {
		return answers
	}
	done := make(chan struct{}, len(grants))
	limit := make(chan struct{}, 16)
	for i := range grants {
		go func() {
			defer s.ops.Done()
			defer func() { done <- struct{}{} }()
			limit <- struct{}{}
			defer func() { <-limit }()
			rep, acked, err := s.evalAcked(ctx, renewScript, calls[i].Keys, calls[i].Args, "R")
			if err == nil && rep.kind == 'R' && acked < s.cfg.replicas {
				err = driver.Errorf(driver.CodeUnavailable, "%d of %d replicas acknowledged the renewal within %s", acked, s.cfg.replicas, s.cfg.ackTimeout)
			}
			answers[i] = s.renewed(&grants[i], rep, err)
		}()
	}
	for range grants {
		<-done
	}
	return answers
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
		s.forget(e)
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
