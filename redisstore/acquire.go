package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Limits of a lease.
const (
	minTTL = time.Millisecond
	maxTTL = 24 * time.Hour
)

// Acquire requests a grant. See [driver.Store].
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return s.acquire(ctx, r, nil)
}

// acquire requests a grant. Its first call also releases the grant old, unless old is nil.
func (s *Store) acquire(ctx context.Context, r driver.Request, old *oldGrant) (driver.Grant, error) {
	e := &entry{r: r} // one allocation with the request, which escapes
	if err := checkRequest(&e.r); err != nil {
		return driver.Grant{}, err
	}
	if err := s.begin(ctx); err != nil {
		return driver.Grant{}, withdrawnIfEnded(ctx, err)
	}
	defer s.ops.Done()
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	if s.peers != nil {
		g, err := s.peers.acquire(ctx, &e.r)
		return g, withdrawnIfEnded(ctx, err)
	}
	e.keys[0], e.keys[1], e.bucket = s.keys.of(r.Name)
	if r.Wait {
		s.expect(e)
	}
	a := attempt{s: s, e: e, old: old}
	g, err := a.run(ctx)
	if err != nil {
		s.mu.Lock()
		s.forget(r.ID)
		if driver.CodeOf(err) == driver.CodeUnknown && a.lateUntil != 0 {
			s.late[r.ID] = a.lateUntil
		}
		s.mu.Unlock()
		return driver.Grant{}, withdrawnIfEnded(ctx, err)
	}
	if old != nil {
		g.Handle.(*handle).counter = e.keys[1]
	}
	s.highWater.raise(e.bucket, g.Last())
	s.hold(e, g)
	return g, nil
}

// withdrawnIfEnded gives the error of a request without effect the code CodeWithdrawn, if ctx has
// ended.
func withdrawnIfEnded(ctx context.Context, err error) error {
	if driver.CodeOf(err) == driver.CodeUnavailable && ctx.Err() != nil {
		return &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	return err
}

// checkRequest returns an error for a request that the scripts cannot encode.
func checkRequest(r *driver.Request) error {
	bad := r.ID == "" || len(r.ID) > 40 || r.Limit < 1 || r.Limit > driver.Unlimited || r.From == nil
	for _, c := range []byte(r.ID) {
		bad = bad || c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}
	if err := driver.CheckName(r.Name); err != nil || bad {
		return driver.Errorf(driver.CodeInvalid, "redisstore: a request of id %q, name %q, limit %d", r.ID, r.Name, r.Limit)
	}
	if r.TTL < minTTL || r.TTL > maxTTL {
		return driver.Errorf(driver.CodeInvalid, "redisstore: TTL %s: give %s to %s", r.TTL, minTTL, maxTTL)
	}
	return nil
}

// ttlMicros rounds a duration up to the server's unit, microseconds.
func ttlMicros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// attempt is one Acquire.
type attempt struct {
	s *Store
	e *entry
	// lateUntil is the time, by the server's clock, until which a call without an answer may
	// arrive, if it creates an entry or a grant. It is 0 if there is no such call.
	lateUntil int64
	failures  int  // calls that have failed since the last answer
	refreshed bool // the queue entry was refreshed once before Queued
	notified  bool // Queued was called
	holders   []driver.Holder
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

// reply is the answer of a script.
type reply struct {
	kind   byte
	values []string
	sent   driver.Instant
}

// Indices of arguments of the acquire script. fastArgs is the number of arguments of the first call
// of a request that does not wait: its script takes the fast path.
const (
	argTTL   = 1
	argLife  = 2
	argLate  = 3
	argSeen  = 4
	fastArgs = 5
)

// call runs the script once. It runs the script again if the server refused the request as too
// late, since the answer has corrected the estimate of the server's clock.
func (a *attempt) call(ctx context.Context, seq int64) (reply, error) {
	s, r := a.s, &a.e.r
	if r.Wait && r.Provisional && r.Limit == driver.Exclusive && r.Tokens <= 1 && s.cfg.replicas == 0 {
		if a.secret == "" {
			a.secret = rand.Text()
		}
		a.calls++
		a.lastTag = a.secret + "-" + strconv.Itoa(a.calls)
	}
	for range 4 {
		if err := s.requireSafe(ctx); err != nil {
			return reply{}, err
		}
		late := s.clock.deadline()
		a.e.lead = s.lead()
		h := s.encodeHead(a.e)
		a.lastOwner = h.owner
		args := append(make([]string, 0, 13), h.text+r.ID, h.micros, h.millis, strconv.FormatInt(late, 10), s.highWater.text(a.e.bucket))
		if again := a.lateUntil != 0; r.Wait || seq != 0 || again || r.Tokens > 1 {
			args = append(args, digit(r.Wait), strconv.FormatInt(seq, 10), digit(again))
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
		switch rep.kind {
		case 'L':
			continue
		case 'V':
			return rep, errUndone
		}
		return rep, nil
	}
	return reply{}, driver.Errorf(driver.CodeUnavailable, "the server's clock advances too fast")
}

// maxTokens limits the tokens that a grant reserves. They are the last microseconds of the
// server's clock. So tokens rise after a failover that takes longer than a millisecond.
const maxTokens = 1000

// tokensText returns the number of tokens that a request reserves, for a script.
func tokensText(r *driver.Request) string { return strconv.Itoa(min(r.Tokens, maxTokens)) }

func digit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// errUndone means that the server refuses the ID of the request for a while: the request was
// undone, or its grant was broken before the client received it.
var errUndone = driver.Errorf(driver.CodeUnavailable, "the request was undone, or its grant was broken")

// sendAcquire runs the acquire script in one step with the bucket's counter. While the hash slot
// moves, the two keys may be on different servers. Then it runs the script without the counter.
func (s *Store) sendAcquire(ctx context.Context, e *entry, args []string) (reply, error) {
	rep, err := s.acquireStep(ctx, e, e.keys[:], args)
	if err == nil || !isTryAgain(err) {
		return rep, err
	}
	// Read the counter, make the grant, and raise the counter before the caller gets the grant.
	// So the next grant, which may be made in one step again, has a larger token. Until then the
	// name's own key has the token.
	counted, err := s.eval(ctx, raiseScript, e.keys[1:], []string{"0"})
	if err != nil {
		return rep, err
	}
	counter, err := strconv.ParseUint(counted.values[0], 10, 64)
	if err != nil {
		return rep, driver.Errorf(driver.CodeRefused, "the counter %s is %q", e.keys[1], counted.values[0])
	}
	s.highWater.raise(e.bucket, counter)
	args[argSeen] = s.highWater.text(e.bucket)
	rep, err = s.acquireStep(ctx, e, e.keys[:1], args)
	if err == nil && (rep.kind == 'G' || rep.kind == 'g') {
		if _, err := s.eval(ctx, raiseScript, e.keys[1:], []string{rep.values[0]}); err != nil {
			return rep, driver.Errorf(driver.CodeUnknown, "the token of a grant could not be recorded: %w", err)
		}
	}
	return rep, err
}

// errUndoFailed means that an undo was sent and has no answer.
var errUndoFailed = errors.New("it could not be undone")

// acquireStep runs the acquire script. With WaitReplicas it waits for the replicas, and rolls
// back a grant that too few of them acknowledged.
func (s *Store) acquireStep(ctx context.Context, e *entry, keys, args []string) (reply, error) {
	if s.cfg.replicas == 0 {
		if len(args) == fastArgs && len(keys) == 2 {
			return s.combine(ctx, acquireScript, keys, args, e.bucket)
		}
		return s.eval(ctx, acquireScript, keys, args)
	}
	rep, acked, err := s.evalAcked(ctx, acquireScript, keys, args, "G")
	if err == nil && rep.kind == 'G' && acked < s.cfg.replicas {
		_, uerr := s.eval(ctx, undoScript, keys[:1], []string{e.r.ID, "0"})
		if uerr != nil {
			return rep, driver.Errorf(driver.CodeUnknown, "%d of %d replicas acknowledged the grant within %s: %w: %w", acked, s.cfg.replicas, s.cfg.ackTimeout, errUndoFailed, uerr)
		}
		return rep, driver.Errorf(driver.CodeUnavailable, "%d of %d replicas acknowledged the grant within %s", acked, s.cfg.replicas, s.cfg.ackTimeout)
	}
	return rep, err
}

// eval runs a script whose answer starts with a letter and the server's time.
func (s *Store) eval(ctx context.Context, sc *Script, keys, args []string) (reply, error) {
	var sent driver.Instant
	if sc != releaseScript || len(keys) > 1 { // no other release returns a grant to this client
		sent = driver.Now()
	}
	at := micros()
	values, err := s.client.Eval(ctx, sc, keys, args)
	return s.read(sc, sent, at, values, err)
}

// evalAcked is eval and WAIT: see Client.EvalAcked.
func (s *Store) evalAcked(ctx context.Context, sc *Script, keys, args []string, only string) (reply, int, error) {
	sent, at := driver.Now(), micros()
	values, acked, err := s.client.EvalAcked(ctx, sc, keys, args, only, s.cfg.replicas, s.cfg.ackTimeout)
	rep, err := s.read(sc, sent, at, values, err)
	return rep, acked, err
}

// read parses the answer of a script, and corrects the estimate of the server's clock.
func (s *Store) read(sc *Script, sent driver.Instant, at int64, values []string, err error) (reply, error) {
	if err != nil {
		return reply{}, s.explain(err)
	}
	if len(values) == 1 {
		// The fast paths of the scripts return all words in one string.
		switch v := values[0]; {
		case len(v) == 1:
			return reply{kind: v[0], sent: sent}, nil
		case len(v) > 2 && v[0] == 'G' && v[1] != ' ':
			values = []string{"G", v[1:], v[1:], "0"}
		default:
			values = strings.Split(v, " ")
		}
	}
	if len(values) < 2 || len(values[0]) != 1 {
		return reply{}, driver.Errorf(driver.CodeUnknown, "the script %s returned %q", sc.Name, values)
	}
	if sc == raiseScript {
		return reply{kind: values[0][0], values: values[1:], sent: sent}, nil
	}
	now, err := strconv.ParseInt(values[1], 10, 64)
	if err != nil {
		return reply{}, driver.Errorf(driver.CodeUnknown, "the script %s returned %q", sc.Name, values)
	}
	s.clock.learn(at, now)
	return reply{kind: values[0][0], values: values[2:], sent: sent}, nil
}

// toGrant returns the grant of an answer to the request.
func (a *attempt) toGrant(rep reply) (driver.Grant, error) {
	g, err := makeGrant(a.e, rep.values, rep.sent)
	if err != nil {
		return g, err
	}
	return a.setLate(g), nil
}

// setLate records in a grant until when a late call may arrive, which the Release of the grant has
// to refuse.
func (a *attempt) setLate(g driver.Grant) driver.Grant {
	g.Handle.(*handle).lateUntil = a.lateUntil
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
func (s *Store) holders(records []string, now int64) []driver.Holder {
	var all []driver.Holder
	for _, rec := range records {
		if h, ok := readHolder(strings.Clone(rec), now); ok {
			all = append(all, h)
		}
	}
	return all
}
