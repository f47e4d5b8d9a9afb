package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/fallback"
)

const (
	// near is how often a place near the head is refreshed; the script says when
	// less will do. wakeBound is what a lost message costs, with the answer's way.
	near      = 700 * time.Millisecond
	wakeBound = time.Second
	// callBound bounds one call of a waiter, which has time to try again; where replicas
	// have to acknowledge a grant, at least their time and acksMore.
	callBound = 2 * time.Second
	acksMore  = time.Second
	// hearBound is how long a first waiter waits for messages to arrive before it
	// says that it waits.
	hearBound = 100 * time.Millisecond
	// leaveBound is how long a cancelled waiter takes to take its place back.
	leaveBound = 250 * time.Millisecond
)

// run asks, and waits if it may.
func (a *attempt) run(ctx context.Context) (driver.Grant, error) {
	s, e := a.s, a.e
	asked := micros()
	rep, err := a.call(ctx, 0)
	if err == nil {
		switch rep.kind {
		case 'G':
			return a.toGrant(rep)
		case 'B':
			return driver.Grant{}, &driver.BusyError{Holders: s.holders(rep.values, s.clock.now())}
		}
	}
	if err != nil || rep.kind != 'Q' || !e.r.Wait {
		if err == nil {
			err = driver.Errorf(driver.CodeUnknown, "an answer that was not asked for: %c %q", rep.kind, rep.values)
		}
		return driver.Grant{}, err
	}
	g, err := a.wait(ctx, rep, asked)
	s.unplace(e)
	return g, err
}

// wait keeps the place until it is granted: it refreshes it, and with each
// refresh asks whether its turn has come. A message only makes it ask sooner.
func (a *attempt) wait(ctx context.Context, rep reply, asked int64) (driver.Grant, error) {
	s, e := a.s, a.e
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	bound := callBound
	if s.cfg.replicas > 0 {
		bound = max(bound, s.cfg.patience+acksMore)
	}
	var err error
	failures := 0
	for {
		var delay time.Duration
		exact := false
		switch {
		case err == nil && rep.kind == 'G':
			return a.toGrant(rep)
		case s.passedTo(e) != nil:
			return a.unvoided(*s.passedTo(e)), nil
		case ctx.Err() != nil:
			return driver.Grant{}, a.leave(ctx)
		case err == nil && rep.kind == 'Q':
			failures = 0
			if delay, exact, err = a.placed(rep, asked); err != nil {
				return driver.Grant{}, a.giveUp(err)
			}
			if a.told {
				delay = fallback.After(ctx, delay)
			}
		case err == nil:
			// The place is gone: the server has lost its memory, or took us for dead.
			s.unplace(e)
			delay = 0
		default:
			switch driver.CodeOf(err) {
			case driver.CodeUnknown, driver.CodeUnavailable:
			default:
				return driver.Grant{}, a.giveUp(err)
			}
			if errors.Is(err, errUndoing) {
				// The undo may still arrive, and would take away what this ID is granted.
				return driver.Grant{}, a.giveUp(err)
			}
			if errors.Is(err, errVoid) {
				return driver.Grant{}, a.giveUp(err) // another request may be granted
			}
			failures++
			delay = min(near, 20*time.Millisecond<<min(failures, 6))
		}
		// Spread, but never beyond what the script asked for.
		if !exact {
			delay -= rand.N(delay/5 + 1)
		}
		timer.Reset(delay)
		for again := false; !again; {
			select {
			case <-e.wake:
				again = true
			case <-e.close:
				timer.Reset(max(min(delay, fallback.After(ctx, near))-rand.N(near/5), 0))
			case <-timer.C:
				again = true
			case <-ctx.Done():
				again = true
			}
		}
		if ctx.Err() != nil || s.passedTo(e) != nil {
			rep, err = reply{}, nil
			continue
		}
		call, done := context.WithTimeout(ctx, bound)
		asked = micros()
		rep, err = a.call(call, s.seqOf(e))
		done()
	}
}

// placed takes note of a place and says when to refresh it: about then, or when
// the first grant ends, which is no use to be early for.
func (a *attempt) placed(rep reply, asked int64) (delay time.Duration, exact bool, err error) {
	s, e := a.s, a.e
	var n [4]int64
	for i := range n {
		if len(rep.values) < len(n) {
			return 0, false, driver.Errorf(driver.CodeUnknown, "a place that cannot be read: %q", rep.values)
		}
		if n[i], err = strconv.ParseInt(rep.values[i], 10, 64); err != nil {
			return 0, false, driver.Errorf(driver.CodeUnknown, "a place that cannot be read: %w", err)
		}
	}
	seq, ahead, refresh, expiry := n[0], n[1], time.Duration(n[2])*time.Millisecond, time.Duration(n[3])*time.Millisecond
	hears, again := s.place(e, seq, asked)
	if len(rep.values) > len(n) {
		a.holders = s.holders(rep.values[len(n):], s.clock.now())
	}
	if !a.told && again && !a.looked {
		// It looks once more before it says that it waits.
		a.looked = true
		return hearBound, false, nil
	}
	if !a.told {
		a.told = true
		e.r.From.Queued(a.holders)
	}
	if !hears {
		refresh = min(refresh, near)
	}
	if ahead == 0 && expiry >= 0 {
		// The first of the holders may have died.
		exact = expiry < refresh
		refresh = min(refresh, expiry+time.Millisecond)
	}
	return refresh, exact, nil
}

// place enters the place of a request among those that can be woken or passed a
// grant. It tells whether messages arrive. If they do not yet, or only since after
// the place was asked for, one may have been missed: the waiter is to look again
// as soon as they do. Where they could not be had it does not wait for that.
func (s *Store) place(e *entry, seq, asked int64) (hears, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.subs[e.channel]
	if e.seq == 0 {
		e.wake, e.close = make(chan struct{}, 1), make(chan struct{}, 1)
		s.queued[e.r.Name] = append(s.queued[e.r.Name], e)
	}
	e.seq = seq
	hears = sub != nil && sub.ready != 0
	again = !hears || sub.ready >= asked
	if e.woken || hears && again {
		poke(e.wake)
	}
	e.woken = false
	return hears, again && !(sub != nil && sub.failed)
}

func (s *Store) unplace(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.seq == 0 {
		return
	}
	e.seq, e.woken = 0, false
	name := e.r.Name
	s.queued[name] = slices.DeleteFunc(s.queued[name], func(o *entry) bool { return o == e })
	if len(s.queued[name]) == 0 {
		delete(s.queued, name)
	}
}

func (s *Store) seqOf(e *entry) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.seq
}

func (s *Store) passedTo(e *entry) *driver.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.passed
}

// poke makes a waiter look; pokes merge.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// leave takes the place back, or the grant that crossed with it.
func (a *attempt) leave(ctx context.Context) error {
	cause := context.Cause(ctx)
	err := a.withdraw(ctx)
	switch {
	case err != nil:
		return driver.Errorf(driver.CodeUnknown, "%w; the place could not be taken back: %w", cause, err)
	case a.s.ctx.Err() != nil:
		return errClosed
	}
	return driver.Errorf(driver.CodeWithdrawn, "%w", cause)
}

// giveUp leaves because of an answered no.
func (a *attempt) giveUp(why error) error {
	if err := a.withdraw(context.Background()); err != nil {
		return driver.Errorf(driver.CodeUnknown, "%s; the place could not be taken back: %w", why, err)
	}
	return why
}

func (a *attempt) withdraw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBound)
	defer cancel()
	void := int64(0)
	if a.asked {
		void = a.void
	}
	_, err := a.s.eval(ctx, undoScript, a.e.keys[:1], []string{a.e.r.ID, strconv.FormatInt(void, 10)})
	return err
}
