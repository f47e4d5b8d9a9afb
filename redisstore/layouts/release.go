package layouts

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// undo removes what the server has of a request, and makes it refuse the request until lateUntil.
func (s *store) undo(ctx context.Context, st *step, lateUntil int64) error {
	st.late = lateUntil
	_, err := s.eval(ctx, s.verbs.undo, st)
	return err
}

// undoAll withdraws a request, of which the caller of Undo may have only the ID and the name.
func (s *store) undoAll(ctx context.Context, r *driver.Request, lateUntil int64) error {
	limits := []int{r.Limit}
	if s.layout == RedissonReadWrite { // a reader and a writer have different owners
		limits = []int{driver.Exclusive, driver.Unlimited}
	}
	for _, limit := range limits {
		if err := s.undo(ctx, &step{id: r.ID, own: s.owner(r.ID, limit), key: s.key(r.Name)}, lateUntil); err != nil {
			return err
		}
	}
	return nil
}

// Release ends a grant. keep has no effect: no layout keeps a released lock.
func (s *store) Release(ctx context.Context, g driver.Grant, _ time.Duration) error {
	if err := s.srv.Begin(ctx); err != nil {
		return err
	}
	defer s.srv.Leave()
	h, err := server.HandleOf[*handle](&g)
	if err != nil {
		return err
	}
	st := &step{id: g.ID, own: h.own, late: h.LateUntil, key: s.key(g.Name), verbArg: strconv.FormatUint(g.Token, 10)}
	s.srv.Held.Forget(g.ID)
	rep, err := s.eval(ctx, s.verbs.release, st)
	if err == nil && rep.Kind != 'R' {
		return driver.NotHeld(g.Name, g.Token)
	}
	if err == nil {
		s.turns.released(st.key, s.listening(st.key, rep))
	}
	return err
}

// listening reports whether other clients received the message of a release. Clients that poll do not
// listen: in their layouts all listeners are holdfast's.
func (s *store) listening(key string, rep server.Reply) bool {
	if s.rules.poll > 0 || len(rep.Values) == 0 {
		return false
	}
	received, err := strconv.Atoi(rep.Values[0])
	if s.channels.subscribed(s.channel(key)) {
		received--
	}
	return err == nil && received > 0
}

// renew sets new deadlines for grants.
func (s *store) renew(ctx context.Context, grants []driver.Grant, lead time.Duration) []driver.Renewal {
	calls := make([]server.Call, len(grants))
	for i := range grants {
		g := &grants[i]
		h, err := server.HandleOf[*handle](g)
		if err != nil {
			return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
		}
		calls[i] = s.call(&step{id: g.ID, own: h.own, ttl: server.TTL(g.TTL, lead), limit: g.Limit, key: s.key(g.Name)})
	}
	answers := make([]driver.Renewal, len(grants))
	for i, a := range s.srv.EvalRenewals(ctx, s.verbs.renew, calls) {
		answers[i] = s.srv.Renewed(&grants[i], a, grants[i].TTL)
	}
	return answers
}

// check checks grants, each by a call of the script.
func (s *store) check(ctx context.Context, due []*held.Grant) {
	calls := make([]server.Call, len(due))
	for i, h := range due {
		calls[i] = s.call(&step{id: h.ID, own: h.Handle.(*handle).own, key: s.key(h.Name)})
	}
	for i, a := range s.srv.EvalAll(ctx, s.verbs.check, calls) {
		switch h := due[i]; {
		case a.Err != nil:
		case a.Reply.Kind == 'R':
			s.srv.Held.Prove(h.ID, a.Reply.Sent.Time())
		default:
			s.srv.Held.Lose(h, a.Reply.EndCause(), driver.NotHeld(h.Name, h.Token))
		}
	}
}
