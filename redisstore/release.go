package redisstore

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// Release ends a grant. The server grants to the next queue entries in the same step.
func (s *store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := s.srv.Begin(ctx); err != nil {
		return err
	}
	defer s.srv.Leave()
	h, err := server.HandleOf[*handle](&g)
	if err != nil {
		return err
	}
	keys, args := s.releaseCall(&g, h, max(keep, 0))
	var rep server.Reply
	if keep > 0 && s.srv.Config.Replicas > 0 { // mutation: failover-keep-acked
		// If too few replicas acknowledge that the grant stays, a failover could end it earlier. So the
		// release has to be repeated.
		rep, err = s.srv.EvalAcked(ctx, releaseScript, keys[:1], args, "R")
	} else {
		rep, err = s.sendRelease(ctx, keys, args)
	}
	if err == nil && rep.Kind == 'N' {
		return driver.NotHeld(g.Name, g.Token)
	}
	return err
}

// releaseCall returns the keys and arguments of the release script. The grant is no longer checked.
func (s *store) releaseCall(g *driver.Grant, h *handle, keep time.Duration) (keys, args []string) {
	s.srv.Held.Forget(g.ID)
	lateUntil := s.lateUntil(h)
	keys, args = []string{h.key}, append(make([]string, 0, 4), mark(g.ID, g.Token))
	if h.slot != "0" || keep > 0 || lateUntil != 0 {
		args = append(args, h.slot, strconv.FormatInt(ttlMicros(keep), 10), strconv.FormatInt(lateUntil, 10))
	}
	if h.counter != "" {
		keys = append(keys, h.counter)
	}
	return keys, args
}

// sendRelease runs the release script, in a batch if it needs only the mark of the grant. While the
// hash slot moves, the counter may be on another server. Then the script runs without it.
func (s *store) sendRelease(ctx context.Context, keys, args []string) (server.Reply, error) {
	if len(args) == 1 && len(keys) == 1 {
		return s.combine(ctx, releaseScript, keys, args, 0)
	}
	rep, err := s.srv.Eval(ctx, releaseScript, keys, args)
	if len(keys) > 1 && server.IsTryAgain(err) {
		return s.srv.Eval(ctx, releaseScript, keys[:1], args)
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
