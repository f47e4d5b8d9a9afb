package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// Acquire requests a grant. See [driver.Store].
func (s *store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return s.acquire(ctx, r, nil)
}

// acquire requests a grant. Its first call also releases the grant old, unless old is nil.
func (s *store) acquire(ctx context.Context, r driver.Request, old *oldGrant) (driver.Grant, error) {
	e := &entry{r: r} // one allocation with the request, which escapes
	if err := s.srv.BeginRequest(ctx, &e.r); err != nil {
		return driver.Grant{}, err
	}
	defer s.srv.Leave()
	e.keys[0], e.keys[1], e.bucket = s.keys.of(r.Name)
	if r.Wait {
		s.expect(e)
	}
	a := attempt{s: s, e: e, old: old}
	g, err := a.run(ctx)
	if err != nil {
		s.mu.Lock()
		delete(s.entries, r.ID)
		s.mu.Unlock()
		s.srv.RecordLate(r.ID, err, a.lateUntil)
		return driver.Grant{}, server.WithdrawnIfEnded(ctx, err)
	}
	if old != nil {
		g.Handle.(*handle).counter = e.keys[1]
	}
	s.srv.HighWater.Raise(e.bucket, g.Last())
	s.hold(e, g)
	return g, nil
}

// hold registers a grant, so that its holder is notified when it ends.
func (s *store) hold(e *entry, g driver.Grant) {
	e.grant = held.Grant{Grant: g, From: e.r.From}
	s.srv.Held.Hold(&e.grant)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, g.ID)
	s.listen() // for the message of a break
}

// ttlMicros rounds a duration up to the server's unit, microseconds.
func ttlMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// attempt is one Acquire.
type attempt struct {
	s *store
	e *entry
	// lateUntil is the time, by the server's clock, until which a call without an answer may
	// arrive, if it creates an entry or a grant. It is 0 if there is no such call.
	lateUntil int64
	lead      time.Duration // with which the last call was sent; see server.TTL
	failures  int           // calls that have failed since the last answer
	refreshed bool          // the queue entry was refreshed once before Queued
	notified  bool          // Queued was called
	holders   []driver.Holder
	recalled  string    // the ID of the last grant whose client was notified: see recall
	old       *oldGrant // released by the next call, or nil

	// secret and calls make the tag of each call, "" if the request may not start before it
	// confirms a grant. lastTag and lastOwner are those of the last call.
	secret             string
	calls              int
	lastTag, lastOwner string
	// tag and owner are those of the last call that was answered with the queue entry. tagged is
	// when that call was sent.
	tag, owner string
	tagged     driver.Instant
}

// Indices of arguments of the acquire script. fastArgs is the number of arguments of the first call
// of a request that does not wait: its script takes the fast path.
const (
	argTTL    = 1
	argLife   = 2
	argLate   = 3
	argSeen   = 4
	fastArgs  = 5
	argTokens = 8
	argTag    = 9
)

// call runs the script once. It runs the script again if the server refused the request as too
// late, since the answer has corrected the estimate of the server's clock.
func (a *attempt) call(ctx context.Context, seq int64) (server.Reply, error) {
	s, r := a.s, &a.e.r
	if r.Wait && r.Provisional && r.Limit == driver.Exclusive && r.Tokens <= 1 && s.srv.Config.Replicas == 0 { // mutation: failover-provisional
		if a.secret == "" {
			a.secret = rand.Text()
		}
		a.calls++
		a.lastTag = a.secret + "-" + strconv.Itoa(a.calls)
	}
	for range 4 {
		if err := s.srv.RequireSafe(ctx); err != nil {
			return server.Reply{}, err
		}
		late := s.srv.Clock.Deadline()
		a.lead = s.srv.Lead()
		h := s.encodeHead(a.e, a.lead)
		a.lastOwner = h.owner
		args := append(make([]string, 0, 13), h.text+r.ID, h.micros, h.millis, strconv.FormatInt(late, 10), s.srv.HighWater.Text(a.e.bucket))
		if again := a.lateUntil != 0; r.Wait || seq != 0 || again || r.Tokens > 1 {
			args = append(args, server.Digit(r.Wait), strconv.FormatInt(seq, 10), server.Digit(again))
		}
		if r.Tokens > 1 {
			args = append(args, tokensText(r))
		} else if a.lastTag != "" {
			args = append(args, "1", a.lastTag)
		}
		if a.old != nil {
			args = a.old.appendTo(args)
		}
		rep, err := s.sendAcquire(ctx, a.e, args)
		a.reportRelease(&rep, err)
		if err != nil {
			if seq == 0 && driver.CodeOf(err) == driver.CodeUnknown {
				a.lateUntil = max(a.lateUntil, late)
			}
			return rep, err
		}
		switch rep.Kind {
		case 'L':
			continue
		case 'V':
			return rep, server.ErrUndone
		}
		return rep, nil
	}
	return server.Reply{}, driver.Errorf(driver.CodeUnavailable, "the server's clock advances too fast")
}

// maxTokens limits the tokens that a grant reserves. They are the last microseconds of the
// server's clock. So tokens rise after a failover that takes longer than a millisecond.
const maxTokens = 1000

// tokensText returns the number of tokens that a request reserves, for a script.
func tokensText(r *driver.Request) string { return strconv.Itoa(min(r.Tokens, maxTokens)) }

// sendAcquire runs the acquire script in one step with the bucket's counter. While the hash slot
// moves, the two keys may be on different servers. Then it runs the script without the counter.
func (s *store) sendAcquire(ctx context.Context, e *entry, args []string) (server.Reply, error) {
	rep, err := s.acquireStep(ctx, e, e.keys[:], args)
	if err == nil || !server.IsTryAgain(err) {
		return rep, err
	}
	// Read the counter, make the grant, and raise the counter before the caller gets the grant.
	// So the next grant, which may be made in one step again, has a larger token. Until then the
	// name's own key has the token.
	counted, err := s.raise(ctx, e, "0")
	if err != nil {
		return rep, err
	}
	counter, err := strconv.ParseUint(counted, 10, 64)
	if err != nil {
		return rep, driver.Errorf(driver.CodeRefused, "the counter %s is %q", e.keys[1], counted)
	}
	s.srv.HighWater.Raise(e.bucket, counter)
	args[argSeen] = s.srv.HighWater.Text(e.bucket)
	rep, err = s.acquireStep(ctx, e, e.keys[:1], args)
	if err == nil && (rep.Kind == 'G' || rep.Kind == 'g') {
		if _, err := s.raise(ctx, e, rep.Values[0]); err != nil {
			return rep, driver.Errorf(driver.CodeUnknown, "the token of a grant could not be recorded: %w", err)
		}
	}
	return rep, err
}

// raise raises the counter of an entry's bucket to a token, and returns the counter.
func (s *store) raise(ctx context.Context, e *entry, token string) (string, error) {
	answer, err := s.srv.Client.Eval(ctx, raiseScript, e.keys[1:], []string{token})
	if err != nil {
		return "", s.srv.Explain(err, e.keys[1])
	}
	if len(answer) != 2 {
		return "", driver.Errorf(driver.CodeUnknown, "the script %s returned %q", raiseScript.Name, answer)
	}
	return answer[1], nil
}

// acquireStep runs the acquire script. With WaitReplicas it waits for the replicas, and rolls
// back a grant that too few of them acknowledged.
func (s *store) acquireStep(ctx context.Context, e *entry, keys, args []string) (server.Reply, error) {
	switch {
	case s.srv.Config.Replicas > 0: // mutation: failover-grant-acked
		return s.srv.EvalGrant(ctx, acquireScript, keys, args, func() error {
			return s.undo(ctx, e.keys[0], e.r.ID, 0)
		})
	case len(args) == fastArgs && len(keys) == 2:
		return s.combine(ctx, acquireScript, keys, args, e.bucket)
	}
	return s.srv.Eval(ctx, acquireScript, keys, args)
}

// toGrant returns the grant of an answer to the request.
func (a *attempt) toGrant(rep server.Reply) (driver.Grant, error) {
	g, err := makeGrant(a.e, rep.Values, rep.Sent)
	if err != nil {
		return g, err
	}
	return a.withLease(g), nil
}

// withLease records the lead of a grant, and until when a late call may arrive, which the Release of the grant
// has to refuse.
func (a *attempt) withLease(g driver.Grant) driver.Grant {
	h := g.Handle.(*handle)
	h.LateUntil = a.lateUntil
	h.SetLead(a.lead)
	return g
}

// makeGrant returns the grant of an answer "TOKEN SLOT" or "TOKEN SLOT TOKENS".
func makeGrant(e *entry, values []string, sent driver.Instant) (driver.Grant, error) {
	r := &e.r
	if len(values) < 2 {
		return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "a grant without token and slot: %q", values)
	}
	token, err1 := strconv.ParseUint(values[0], 10, 64)
	slot, err2 := strconv.Atoi(values[1])
	tokens, err3 := 1, error(nil)
	if len(values) > 2 && r.Limit == driver.Exclusive {
		tokens, err3 = strconv.Atoi(values[2])
	}
	if err := errors.Join(err1, err2, err3); err != nil {
		return driver.Grant{}, driver.Errorf(driver.CodeUnknown, "a grant that cannot be parsed: %w", err)
	}
	return driver.Grant{
		ID: r.ID, Name: r.Name, Limit: r.Limit, Token: token, Tokens: tokens, SentAt: sent, TTL: time.Duration(ttlMicros(r.TTL)) * time.Microsecond,
		Slot: slotOf(slot, r.Limit), Handle: &handle{key: e.keys[0], slot: values[1]},
	}, nil
}

// holders parses the records of grants, without those that have expired.
func (s *store) holders(records []string, now int64) []driver.Holder {
	var all []driver.Holder
	for _, rec := range records {
		if h, ok := readHolder(strings.Clone(rec), now); ok && h.TTL > 0 {
			all = append(all, h)
		}
	}
	return all
}
