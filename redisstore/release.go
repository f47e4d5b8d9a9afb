package redisstore

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// Release ends a grant. If the next queue entry belongs to this client, the server grants to it
// in the same step.
func (s *store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := s.srv.Begin(ctx); err != nil {
		return err
	}
	defer s.srv.Leave()
	h, err := server.HandleOf[*handle](&g)
	if err != nil {
		return err
	}
	keys, args, next := s.releaseCall(&g, h, max(keep, 0))
	var rep server.Reply
	if keep > 0 && s.srv.Config.Replicas > 0 { // mutation: failover-keep-acked
		// If too few replicas acknowledge that the grant stays, a failover could end it earlier. So the
		// release has to be repeated.
		rep, err = s.srv.EvalAcked(ctx, releaseScript, keys[:1], args, "R")
	} else {
		rep, err = s.sendRelease(ctx, keys, args)
	}
	switch {
	case err != nil:
		if next != nil {
			s.wake(next) // the server may have granted to it, and a refresh finds that out
		}
		return err
	case rep.Kind == 'N':
		return driver.NotHeld(g.Name, g.Token)
	case next != nil && len(rep.Values) >= 2:
		s.pass(next, rep)
	}
	return nil
}

// releaseArgs is the number of arguments of the release script without those about next.
const releaseArgs = 4

// releaseCall returns the keys and arguments of the release script. next is the queue entry of this
// client to which the script may grant, or nil. The grant is no longer checked.
func (s *store) releaseCall(g *driver.Grant, h *handle, keep time.Duration) (keys, args []string, next *entry) {
	lateUntil := s.lateUntil(h)
	next, seq := s.forgetAndFindNext(g, keep > 0)
	keys, args = []string{h.key}, append(make([]string, 0, 10), mark(g.ID, g.Token))
	if next != nil || h.slot != "0" || keep > 0 || lateUntil != 0 {
		args = append(args, h.slot, strconv.FormatInt(ttlMicros(keep), 10), strconv.FormatInt(lateUntil, 10))
	}
	switch {
	case next != nil:
		keys = append(keys, next.keys[1])
		args = append(args, strconv.FormatInt(seq, 10), next.r.ID, s.srv.HighWater.Text(next.bucket),
			strconv.FormatInt(s.srv.Clock.Deadline(), 10), s.srv.EncodeOwner(next.r.From.Owner()))
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
func (s *store) sendRelease(ctx context.Context, keys, args []string) (server.Reply, error) {
	if len(args) == 1 && len(keys) == 1 {
		return s.combine(ctx, releaseScript, keys, args, 0)
	}
	rep, err := s.srv.Eval(ctx, releaseScript, keys, args)
	if len(keys) > 1 && server.IsTryAgain(err) {
		return s.srv.Eval(ctx, releaseScript, keys[:1], args[:min(len(args), releaseArgs)])
	}
	return rep, err
}

// lateUntil returns until when a request with the ID of a grant may arrive, 0 if none can.
func (s *store) lateUntil(h *handle) int64 {
	if h.LateUntil != 0 && h.LateUntil < s.srv.Clock.Now()-server.Window.Microseconds() {
		return 0 // that time has passed
	}
	return h.LateUntil
}

// mark returns the text by which the scripts find a grant.
func mark(id string, token uint64) string {
	var b [64]byte
	return string(append(strconv.AppendUint(append(append(append(b[:0], ' '), id...), ' '), token, 10), ' '))
}

// forgetAndFindNext removes a grant that is about to end. It returns the first queue entry of this
// client and its number. It returns nil if the server must not grant to that entry in the step of
// the release.
func (s *store) forgetAndFindNext(g *driver.Grant, keep bool) (next *entry, seq int64) {
	s.srv.Held.Forget(g.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if keep || s.srv.Config.Replicas > 0 || !s.srv.Fresh() {
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
func (s *store) wake(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.seq != 0 {
		wakeup.Send(e.wake)
	}
}

// pass delivers a grant to the request that waits for it.
func (s *store) pass(e *entry, rep server.Reply) {
	g, err := makeGrant(e, rep.Values, rep.Sent)
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

// renew sets new deadlines for grants that still stand.
func (s *store) renew(ctx context.Context, grants []driver.Grant, lead time.Duration) []driver.Renewal {
	calls, err := s.renewCalls(grants, lead)
	if err != nil {
		return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
	}
	answers := make([]driver.Renewal, len(grants))
	for i, a := range s.srv.EvalRenewals(ctx, renewScript, calls) {
		answers[i] = s.srv.Renewed(&grants[i], a, max(grants[i].TTL, grants[i].Handle.(*handle).ttl))
	}
	return answers
}

// renewCalls returns the keys and arguments of the renew script for each grant.
func (s *store) renewCalls(grants []driver.Grant, lead time.Duration) ([]Call, error) {
	calls := make([]Call, len(grants))
	for i := range grants {
		g := &grants[i]
		h, err := server.HandleOf[*handle](g)
		if err != nil {
			return nil, err
		}
		args := append(make([]string, 0, 4), mark(g.ID, g.Token), h.slot, strconv.FormatInt(ttlMicros(server.TTL(max(g.TTL, h.ttl), lead)), 10))
		if h.ttl != 0 {
			args = append(args, "1")
		}
		calls[i] = Call{Keys: []string{h.key}, Args: args}
	}
	return calls, nil
}

// undo removes a queue entry or a grant by its ID. The server refuses the ID until lateUntil, see Undo of
// package server.
func (s *store) undo(ctx context.Context, key, id string, lateUntil int64) error {
	_, err := s.srv.Eval(ctx, undoScript, []string{key}, []string{id, strconv.FormatInt(lateUntil, 10)})
	return err
}
