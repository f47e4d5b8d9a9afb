package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/fallback"
)

// peers implements the layouts of other client libraries. Every step is one script: see
// scripts/layout/common.lua.
//
// Exclusion. A script grants only what the other clients' own scripts would grant, and
// writes it as they do, in one step. A grant ends by its lease at the server, or by a
// script that names its owner, which no other request ever has.
//
// Requests without an answer. As in the native layout, a request carries the server's time
// after which the server refuses it. An undo leaves the request's ID in the name's
// side key until then.
//
// Waiting. A waiter sends a request, subscribes, and sends the request again. It repeats the
// request when a message comes, when the holder's lease expires, and after a second. So a lost
// message of another client costs a second, and not a lease.
type peers struct {
	s        *Store
	layout   Layout
	rules    *rules
	verbs    *verbs
	client   string // its UUID
	channels channels
	compares conditional

	mu           sync.Mutex
	held         map[string]*holding // by ID of the request
	timer        *time.Timer         // calls checkGrants
	checksGrants bool                // timer is set, or checkGrants runs
}

// peerHandle is the store's own data in a grant.
type peerHandle struct {
	own       string
	value     string // of the name's key, in the layout plain
	lateUntil int64  // as in handle
}

func newPeers(s *Store) *peers {
	r := layouts[s.cfg.layout]
	p := &peers{s: s, layout: s.cfg.layout, rules: r, verbs: loadVerbs(s.cfg.layout, r), client: newUUID(), held: map[string]*holding{}}
	p.channels = channels{s: s, sharded: s.client.Mode() == Cluster, all: map[string]*channelSub{}}
	return p
}

// keys returns the keys of a name.
func (p *peers) keys(key string) []string {
	all := append(make([]string, 0, 4), key, besideKey(key))
	if p.rules.keys != nil {
		all = append(all, p.rules.keys(key)...)
	}
	return all
}

// step has the key and the arguments of a script, which scripts/layout/common.lua describes.
type step struct {
	key     string // of the name
	id, own string
	ttl     time.Duration
	late    int64
	least   uint64
	owner   string
	limit   int
	queue   bool
	verbArg string
}

// args returns the arguments of a script.
func (p *peers) args(st *step) []string {
	return []string{
		st.id, st.own, strconv.FormatInt(millis(st.ttl), 10), strconv.FormatInt(st.late, 10), strconv.FormatUint(st.least, 10), st.owner,
		strconv.Itoa(st.limit), digit(p.channels.sharded), digit(st.queue), strconv.FormatInt(p.s.cfg.fairWait.Milliseconds(), 10),
		p.channel(st.key), stemOf(st.key), st.verbArg,
	}
}

// channel returns the channel on which a release of the name notifies.
func (p *peers) channel(key string) string {
	if p.rules.channel == "" {
		return ""
	}
	return prefixed(p.rules.channel, key)
}

// millis rounds a duration up to the unit of the layouts, milliseconds.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// pending is one Acquire.
type pending struct {
	p         *peers
	r         *driver.Request
	st        step
	lateUntil int64         // as in attempt
	failures  int           // calls that have failed since the last answer
	notified  bool          // Queued was called
	lead      time.Duration // by which the step's TTL is longer than the requested one
}

// acquire requests a grant. See [driver.Store].
func (p *peers) acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	if !p.rules.limits(r.Limit) {
		return driver.Grant{}, driver.Errorf(driver.CodeUnsupported, "redisstore: the layout %s has no locks of limit %d", p.layout, r.Limit)
	}
	if err := p.checkName(r.Name); err != nil {
		return driver.Grant{}, err
	}
	a := &pending{p: p, r: r, lead: p.s.lead()}
	a.st = step{id: r.ID, own: p.owner(r.ID, r.Limit), ttl: serverTTL(r.TTL, a.lead), limit: r.Limit, key: p.key(r.Name)}
	rep, err := a.call(ctx)
	switch {
	case err != nil:
	case rep.kind == 'G':
		return a.granted(rep)
	case rep.kind != 'B':
		err = driver.Errorf(driver.CodeUnknown, "an unexpected answer: %c %q", rep.kind, rep.values)
	case r.Wait:
		return a.wait(ctx)
	default:
		err = &driver.BusyError{Holders: p.holders(rep.values[1:])}
	}
	return driver.Grant{}, a.failed(err)
}

// failed records until when a request without an answer may arrive.
func (a *pending) failed(err error) error {
	if driver.CodeOf(err) == driver.CodeUnknown && a.lateUntil != 0 {
		s := a.p.s
		s.mu.Lock()
		defer s.mu.Unlock()
		s.late[a.r.ID] = a.lateUntil
	}
	return err
}

// call runs the script once, and again if the estimate of the server's clock was wrong.
func (a *pending) call(ctx context.Context) (reply, error) {
	p, s, st := a.p, a.p.s, &a.st
	for range 4 {
		if err := s.requireSafe(ctx); err != nil {
			return reply{}, err
		}
		bucket := s.keys.bucket(a.r.Name)
		st.late, st.owner, st.least = s.clock.deadline(), s.encodeOwner(a.r.From.Owner()), s.highWater.of(bucket).Load()
		st.verbArg = digit(!a.r.First)
		rep, err := p.send(ctx, p.verbs.acquire, "G", st)
		if err != nil {
			if driver.CodeOf(err) == driver.CodeUnknown {
				a.lateUntil = max(a.lateUntil, st.late)
			}
			return rep, err
		}
		switch rep.kind {
		case 'L':
			continue
		case 'V':
			return rep, errUndone
		case 'G', 'B':
			if len(rep.values) == 0 {
				return rep, driver.Errorf(driver.CodeUnknown, "the script %s returned no number", p.verbs.acquire.Name)
			}
		}
		return rep, nil
	}
	return reply{}, driver.Errorf(driver.CodeUnavailable, "the server's clock advances too fast")
}

// send runs a script that grants or renews. With WaitReplicas it waits for the replicas.
func (p *peers) send(ctx context.Context, sc *Script, only string, st *step) (reply, error) {
	s := p.s
	if s.cfg.replicas == 0 {
		return s.eval(ctx, sc, p.keys(st.key), p.args(st))
	}
	rep, acked, err := s.evalAcked(ctx, sc, p.keys(st.key), p.args(st), only)
	if err != nil || rep.kind != only[0] || acked >= s.cfg.replicas {
		return rep, err
	}
	err = driver.Errorf(driver.CodeUnavailable, "%d of %d replicas acknowledged it within %s", acked, s.cfg.replicas, s.cfg.ackTimeout)
	if sc == p.verbs.acquire {
		if uerr := p.undo(ctx, st, 0); uerr != nil {
			err = driver.Errorf(driver.CodeUnknown, "%w: %w: %w", err, errUndoFailed, uerr)
		}
	}
	return rep, err
}

// granted returns the grant of an answer "TOKEN" or "TOKEN VALUE", and registers it.
func (a *pending) granted(rep reply) (driver.Grant, error) {
	p, r := a.p, a.r
	token, err := strconv.ParseUint(rep.values[0], 10, 64)
	if err != nil {
		return driver.Grant{}, a.failed(driver.Errorf(driver.CodeUnknown, "a grant that cannot be parsed: %w", err))
	}
	h := &peerHandle{own: a.st.own, lateUntil: a.lateUntil}
	if len(rep.values) > 1 {
		h.value = strings.Clone(rep.values[1])
	}
	if p.layout != RedissonFenced {
		p.s.highWater.raise(p.s.keys.bucket(r.Name), token)
	}
	g := driver.Grant{ID: r.ID, Name: r.Name, Limit: r.Limit, Token: token, SentAt: rep.sent,
		TTL: time.Duration(millis(r.TTL)) * time.Millisecond, Slot: driver.NoSlot, Handle: h}
	p.hold(r.From, g, a.lead)
	return g, nil
}

// wait repeats the request until it is granted.
func (a *pending) wait(ctx context.Context) (driver.Grant, error) {
	p, s := a.p, a.p.s
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	a.st.queue = p.layout == RedissonFair
	channel := p.channel(a.st.key)
	if a.st.queue {
		channel += ":" + a.st.own
	}
	l := p.channels.listen(channel)
	defer l.leave()
	subscribing, stop := context.WithTimeout(ctx, subscribeTimeout)
	if l.awaitSubscribed(subscribing) {
		select { // the next request is sent now in any case
		case <-l.wake:
		default:
		}
	}
	stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		call, done := context.WithTimeout(ctx, s.waiterTimeout())
		rep, err := a.call(call)
		done()
		if err == nil && rep.kind == 'G' {
			return a.granted(rep)
		}
		if ctx.Err() == nil {
			delay, err := a.nextCall(ctx, rep, err)
			if err != nil {
				return driver.Grant{}, a.failed(a.leave(context.Background(), err))
			}
			timer.Reset(delay)
			select {
			case <-l.wake:
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			why := driver.Errorf(driver.CodeWithdrawn, "%w", context.Cause(ctx))
			if s.ctx.Err() != nil {
				why = errClosed
			}
			return driver.Grant{}, a.failed(a.leave(ctx, why))
		}
	}
}

// nextCall returns the delay until the next call, after the answer rep or the error err of the last
// one. It reports once that the request waits. It returns an error if the wait ends.
func (a *pending) nextCall(ctx context.Context, rep reply, err error) (time.Duration, error) {
	if err == nil && rep.kind == 'B' {
		a.failures = 0
		if !a.notified {
			a.notified = true
			a.r.From.Queued(a.p.holders(rep.values[1:]))
		}
		delay := jitter(fallback.After(ctx, peerFallback))
		if left, err := strconv.ParseInt(rep.values[0], 10, 64); err == nil && left >= 0 {
			delay = min(delay, time.Duration(left+1)*time.Millisecond)
		}
		return delay, nil
	}
	if err == nil {
		err = driver.Errorf(driver.CodeUnknown, "an unexpected answer: %c %q", rep.kind, rep.values)
	}
	if endsWait(err) {
		return 0, err
	}
	a.failures++
	return retryDelay(a.failures, peerFallback), nil
}

// leave withdraws the request, if the server may have an entry or a grant of it.
func (a *pending) leave(ctx context.Context, why error) error {
	if !a.st.queue && a.lateUntil == 0 {
		return why
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	if err := a.p.undo(ctx, &a.st, a.lateUntil); err != nil {
		return driver.Errorf(driver.CodeUnknown, "%w; the request could not be withdrawn: %w", why, err)
	}
	return why
}

// undo removes what the server has of a request, and makes it refuse the request until lateUntil.
func (p *peers) undo(ctx context.Context, st *step, lateUntil int64) error {
	st.late = lateUntil
	_, err := p.s.eval(ctx, p.verbs.undo, p.keys(st.key), p.args(st))
	return err
}

// undoAll withdraws a request. Its caller may have only the ID and the name.
func (p *peers) undoAll(ctx context.Context, r *driver.Request, lateUntil int64) error {
	p.forget(r.ID)
	limits := []int{r.Limit}
	if p.layout == RedissonReadWrite { // a reader and a writer have different owners
		limits = []int{driver.Exclusive, driver.Unlimited}
	}
	for _, limit := range limits {
		if err := p.undo(ctx, &step{id: r.ID, own: p.owner(r.ID, limit), key: p.key(r.Name)}, lateUntil); err != nil {
			return err
		}
	}
	return nil
}

// release ends a grant.
func (p *peers) release(ctx context.Context, g *driver.Grant) error {
	h, err := handleOf[*peerHandle](g)
	if err != nil {
		return err
	}
	st := &step{id: g.ID, own: h.own, late: h.lateUntil, key: p.key(g.Name), verbArg: strconv.FormatUint(g.Token, 10)}
	p.forget(g.ID)
	if done, err := p.deleteIfEqual(ctx, st, h); done || err != nil {
		return err
	}
	rep, err := p.s.eval(ctx, p.verbs.release, p.keys(st.key), p.args(st))
	if err == nil && rep.kind != 'R' {
		return notHeld(g.Name, g.Token)
	}
	return err
}

// renew sets new deadlines for grants.
func (p *peers) renew(ctx context.Context, grants []driver.Grant, lead time.Duration) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	calls := make([]Call, len(grants))
	steps := make([]step, len(grants))
	for i := range grants {
		g := &grants[i]
		h, err := handleOf[*peerHandle](g)
		if err != nil {
			return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
		}
		steps[i] = step{id: g.ID, own: h.own, ttl: serverTTL(g.TTL, lead), limit: g.Limit, key: p.key(g.Name)}
		calls[i] = Call{p.keys(steps[i].key), p.args(&steps[i])}
	}
	if p.s.cfg.replicas > 0 {
		eachRenewal(len(grants), func(i int) {
			rep, err := p.send(ctx, p.verbs.renew, "R", &steps[i])
			answers[i] = p.renewed(&grants[i], rep, err)
		})
		return answers
	}
	// The scripts handle the grants that the server's own commands do not renew.
	var left []int
	var undecided []Call
	for i, decided := range p.setIfEqual(ctx, grants, steps, answers) {
		if !decided {
			left, undecided = append(left, i), append(undecided, calls[i])
		}
	}
	if len(left) == 0 {
		return answers
	}
	sent, at := driver.Now(), micros()
	for i, a := range p.s.client.EvalAll(ctx, p.verbs.renew, undecided) {
		rep, err := p.s.read(p.verbs.renew, sent, at, a.Values, a.Err)
		answers[left[i]] = p.renewed(&grants[left[i]], rep, err)
	}
	return answers
}

// renewed returns the result of the renewal of a grant.
func (p *peers) renewed(g *driver.Grant, rep reply, err error) driver.Renewal {
	switch {
	case err != nil:
		return driver.Renewal{Err: err}
	case rep.kind != 'R':
		return driver.Renewal{Cause: ended(rep), Err: notHeld(g.Name, g.Token)}
	}
	p.prove(g.ID, rep.sent.Time())
	return driver.Renewal{SentAt: rep.sent, TTL: g.TTL}
}

// take ends a grant for an operator, and notifies waiters.
func (p *peers) take(ctx context.Context, name string, token uint64) error {
	st := &step{key: p.key(name), verbArg: strconv.FormatUint(token, 10)}
	rep, err := p.s.eval(ctx, p.verbs.take, p.keys(st.key), p.args(st))
	if err == nil && rep.kind != 'R' {
		err = notHeld(name, token)
	}
	return err
}

// holders parses the list of a script: owner, record, milliseconds left.
func (p *peers) holders(listed []string) []driver.Holder {
	var all []driver.Holder
	for i := 0; i+2 < len(listed); i += 3 {
		h := driver.Holder{Owner: driver.Owner{ID: p.shown(strings.Clone(listed[i]))}, Limit: driver.Exclusive, Slot: driver.NoSlot, TTL: driver.Forever, Note: "of another client"}
		if p.layout == RedissonReadWrite && !strings.HasSuffix(listed[i], writerSuffix) {
			h.Limit = driver.Unlimited
		}
		if part := strings.SplitN(strings.Clone(listed[i+1]), " ", 5); len(part) == 5 {
			token, err1 := strconv.ParseUint(part[1], 10, 64)
			since, err2 := strconv.ParseInt(part[2], 10, 64)
			limit, err3 := strconv.Atoi(part[3])
			if errors.Join(err1, err2, err3) == nil {
				h.Owner, h.Token, h.Limit, h.Note = readOwner(part[0], part[4], since), token, limit, ""
			}
		}
		if left, err := strconv.ParseInt(listed[i+2], 10, 64); err == nil && left >= 0 {
			h.TTL = time.Duration(left) * time.Millisecond
		}
		all = append(all, h)
	}
	return all
}
