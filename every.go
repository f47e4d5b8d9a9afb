package holdfast

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/ticks"
)

// Schedule returns the times at which work is due. The schedules of a cron parser, such
// as that of robfig/cron, have this method. Next returns the first time after t, or the
// zero time if there is none. All replicas must compute the same times: Next depends on
// t alone, and not on when the process has started. The time t is in the local zone, so a cron
// expression means local time, as for cron. Give all replicas the same TZ, or an expression with a
// zone: CRON_TZ=Europe/Berlin 0 3 * * *.
type Schedule interface {
	Next(t time.Time) time.Time
}

// Period is a [Schedule] with equal distances, counted from midnight UTC of January 1 in
// year 1: Period(time.Hour) is due at each full hour.
type Period time.Duration

// Next returns the first multiple of the period after t.
func (p Period) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(p)).Add(time.Duration(p))
}

// Tick is a time of a schedule that this process has to serve.
type Tick struct {
	// Time is the time of the schedule in UTC, the same on every replica. It can serve as the
	// key of what the tick has done.
	Time time.Time
	ctx  context.Context
}

// Context returns the context of the work. It ends with the context of Every, and when
// this process cannot keep up its lease: the tick is then reported as missed.
func (t Tick) Context() context.Context {
	if t.ctx == nil {
		return context.Background()
	}
	return t.ctx
}

// Every yields the ticks of the schedule that this process is to serve, from now on until ctx
// ends. Any number of replicas call it with the same name and schedule, and one of them gets
// each tick. The body of the loop does the work:
//
//	for tick, err := range locker.Every(ctx, "report", holdfast.Period(time.Hour)) {
//		if err != nil {
//			log.Print(err) // a missed tick, or the store was away
//			continue
//		}
//		report(tick.Context(), tick.Time)
//	}
//
// A tick is served at most once. Replicas may be late, and their clocks may differ, by less
// than the distance to the next tick and by less than an hour. A replica that is later
// leaves the tick out. Before a pause of the schedule, the distance is a sixteenth of the
// time to the sixteenth next tick.
//
// A tick is missed if no replica could serve it, or if the replica that began it died. One
// of the replicas that ran at that time then yields an error that matches [ErrMissed]; after
// an outage of the store several do. The error comes at the earliest one distance (or an
// hour) and one TTL after the tick. If a replica dies in the middle of a longer run, the
// error comes up to eight distances (or 12 hours) after the tick. If it dies later than four distances
// (or six hours), less one TTL, after the tick, there may be no error. A replica that dies as it is about to
// yield the error takes it along. A replica may also die
// after the body has ended and before it has recorded that, or the store may not confirm the
// record for longer than the TTL. Then the tick counts as missed, too, unless the replica
// records it before another one checks it. Other errors concern only this replica: it could not take part in the tick of that
// Time, or in several from then on, or could not check in time whether the tick was served.
//
// This needs a store that keeps a lock without its client (Guarantees.Linger). Other stores
// lose the records of a replica when it dies or closes its Locker. Then a late replica can
// serve such a tick again, and a served tick can be reported as missed. Each record is a lock, so in the session recipes
// of SQL it keeps a connection: at most 15 for each job, and 2 for a daily one, unless the TTL is more than two distances.
//
// Give a changed schedule a new name. For up to 13 hours, records of ticks of the old
// schedule can be in the way of ticks of the new one, which are then reported as missed. The same holds for work
// that is longer than sixteen distances. A store may keep a record for longer than asked, as etcd does
// after a change of its leader. Every breaks such a record when its slot is used again, and serves the tick.
//
// Ticks of one replica do not overlap. Ticks of two replicas do, if the work takes longer
// than the distance. Use TryDo in the body to leave such a tick out.
//
// TTL is how long the other replicas wait for a dead one. The default is two distances, from
// the store's minimum to 30 s; the most is four distances, or six hours, less the Granularity of the store's leases. So
// on etcd the distance is at least half a second, and on S3 as it comes a second and a half. Wait, MinHold and
// Sticky have no effect.
// Shared, Limit and Reentrant are invalid.
func (l *Locker) Every(ctx context.Context, name string, s Schedule, o ...LockOption) iter.Seq2[Tick, error] {
	return func(yield func(Tick, error) bool) {
		e := &every{l: l, ctx: ctx, name: name, schedule: s}
		if err := e.prepare(o); err != nil {
			yield(Tick{}, err)
			return
		}
		e.run(yield)
	}
}

// # How a tick is served once
//
// A tick has two locks: the claim and the marker. A replica takes the claim first. Before
// the work begins, it leaves the claim at the store for longer than the clocks of replicas
// can differ. The claim outlives the death of its replica, so no replica begins the tick
// again. The replica holds the marker during the work, and leaves it at the store after it.
// If the marker ends early, the work did not come to its end. Each replica that did not
// serve the tick tries to take the marker later. The replica that gets it reports the tick
// as missed, and leaves the marker in place. So a replica that has claimed the tick and has
// not begun can no longer begin, and no other replica reports the tick again.
//
// The names of both locks repeat, because some stores keep a counter for each name forever.
// There are slots of ticks, for even and for odd days, and no lock of a slot lasts until the
// next use of the slot. For a tick before a pause of the schedule, its times follow from the
// mean distance up to that use.

const (
	day = 24 * time.Hour
	// watchedTicks is the number of distances for which a replica watches a tick, at most
	// maxWatch.
	watchedTicks, maxWatch = 8, 12 * time.Hour
	// maxSkew limits by how much the clocks of replicas may differ.
	maxSkew = time.Hour
	// longestSleep is the longest time between two readings of the clock, which may be
	// set meanwhile.
	longestSleep = time.Minute
)

type every struct {
	l        *Locker
	ctx      context.Context
	name     string
	schedule Schedule
	options  []LockOption
	ttl      time.Duration // 0: derived from the distance of ticks
	minTTL   time.Duration
	beyond   time.Duration // for how long a lease may stand at the store after its TTL

	// counted is the last tick of the day that has a slot, and index is its number.
	counted time.Time
	index   int
	// watched are the ticks that may be missed.
	watched []*tick
}

// tick is a time of the schedule, as this replica sees it.
type tick struct {
	at   time.Time
	slot string
	// skew limits how late a replica may serve it, and by how much clocks may differ.
	skew, ttl time.Duration
	// until is when watching ends; check is when the replica checks the tick next. known is set
	// if an error of the tick was reported. served is set if this replica has done the work, and the store has not
	// confirmed the record of that.
	until, check  time.Time
	known, served bool
	// done is set if the store has the marker of the tick without a holder: it was served, or reported. unanswered is
	// set if a check has failed: its request for the marker may stand at the store, and be in the way of all replicas.
	done, unanswered bool
}

// late reports whether it is too late to serve the tick: another replica may have served
// it, and its claim may be gone.
func (e *every) late(t *tick) bool { return e.now().Sub(t.at) >= t.skew } // mutation: every-late

func (e *every) now() time.Time { return ticks.Now(e.ctx) }

// after returns the next time of the schedule. A cron parser uses the zone of its argument.
func (e *every) after(t time.Time) time.Time { return e.schedule.Next(t.Local()) }

func (e *every) prepare(o []LockOption) error {
	set, err := e.l.cfg.resolve(o)
	switch {
	case err != nil:
		return err
	case set.limit != driver.Exclusive || set.reentrant:
		return invalid("Every(%q): Shared, Limit and Reentrant are not for a schedule", e.name)
	case e.schedule == nil:
		return invalid("Every(%q): the schedule is nil", e.name)
	}
	if p, ok := e.schedule.(Period); ok && p < Period(MinTTL) {
		return invalid("Every(%q): Period(%s): at least %s is allowed", e.name, time.Duration(p), MinTTL)
	}
	if set.hasTTL {
		e.ttl = set.ttl
	}
	e.options = append(o[:len(o):len(o)], func(s *settings) { s.minHold, s.sticky, s.job = 0, 0, e.name })
	if err := checkName(e.name); err != nil {
		return err
	}
	return checkName(ticks.Lock(e.name, ticks.Claim, ticks.Slot(0, 0)))
}

// run waits for ticks, and for the times at which it checks earlier ticks.
func (e *every) run(yield func(Tick, error) bool) {
	for next := e.after(e.now()); ; {
		wake := next
		for _, t := range e.watched {
			if wake.IsZero() || t.check.Before(wake) {
				wake = t.check
			}
		}
		if wake.IsZero() {
			return // the schedule has ended
		}
		if d := wake.Sub(e.now()); d > 0 {
			if !sleep(e.ctx, e.l.ctx, min(d, longestSleep)) && e.ctx.Err() != nil {
				return
			}
		}
		if e.ctx.Err() != nil {
			return
		}
		if e.l.ctx.Err() != nil {
			yield(Tick{}, e.l.closedError(e.name))
			return
		}
		if !e.watch(yield) {
			return
		}
		if next.IsZero() || e.now().Before(next) {
			continue
		}
		t, following, err := e.tick(next)
		if err != nil {
			yield(Tick{}, err)
			return
		}
		next = following
		switch {
		case !e.late(t):
			if !e.take(t, next, yield) {
				return
			}
		case e.now().Before(t.until):
			e.watched = append(e.watched, t)
		default:
			if next, err = e.pass(next); !yield(Tick{Time: t.at}, err) {
				return
			}
		}
	}
}

// pass returns the first tick that can still be served, and an error about those before
// it: this process did not run when they were due.
func (e *every) pass(next time.Time) (time.Time, error) {
	passed := 1
	for now := e.now(); !next.IsZero() && next.Before(now.Add(-maxSkew)); passed++ {
		next = e.after(next)
	}
	return next, &failure{name: e.name, store: e.l.where,
		err: fmt.Errorf("%d ticks have passed while this process did not run, and other replicas may have served them", passed)}
}

// tick returns the tick of a time, and the time of the next one.
func (e *every) tick(at time.Time) (*tick, time.Time, error) {
	if e.minTTL == 0 {
		g, err := e.l.loadGuarantees(e.ctx, e.l.cfg.requestTimeout)
		if err == nil {
			e.minTTL, e.beyond = max(g.MinTTL, MinTTL), g.Granularity
		}
	}
	next := e.after(at)
	distance := next.Sub(at)
	if next.IsZero() {
		distance = maxWatch
	} else if reuse := e.reuse(at); !reuse.IsZero() {
		distance = min(distance, reuse.Sub(at)/ticks.Slots)
	}
	ttl := e.ttl
	switch {
	case ttl > 0:
	case e.minTTL == 0: // the store has not reported it yet
		ttl = min(4*distance, DefaultTTL)
	default:
		ttl = min(max(2*distance, e.minTTL), DefaultTTL)
	}
	switch {
	case distance <= 0:
		return nil, next, invalid("Every(%q): the schedule does not advance from %s", e.name, at)
	case ttl+e.beyond > min(4*distance, maxWatch/2): // a replica checks a tick before it stops watching it
		return nil, next, invalid("Every(%q): a TTL of %s is, with the %s for which the store may keep it longer, more than four times the distance of two ticks, %s, or than %s",
			e.name, ttl, e.beyond, distance, maxWatch/2)
	}
	slot, err := e.slot(at)
	if err != nil {
		return nil, next, err
	}
	t := &tick{at: at.UTC(), slot: slot, skew: min(distance, maxSkew), ttl: ttl}
	t.until = at.Add(min(watchedTicks*distance, maxWatch))
	t.check = at.Add(t.skew + ttl)
	return t, next, nil
}

// reuse returns the next tick of the same day that has the slot of a tick, or the zero
// time if there is none.
func (e *every) reuse(at time.Time) time.Time {
	end := at.UTC().Truncate(day).Add(day)
	for range ticks.Slots {
		if at = e.after(at); at.IsZero() || !at.Before(end) {
			return time.Time{}
		}
	}
	return at
}

// slot returns the name of a tick's slot: whether its day is even or odd, and its number within
// the day, modulo ticks.Slots.
func (e *every) slot(at time.Time) (string, error) {
	midnight := at.UTC().Truncate(day)
	if e.counted.Before(midnight) {
		e.counted, e.index = midnight.Add(-1), -1
	}
	for e.counted.Before(at) {
		next := e.after(e.counted)
		if !next.After(e.counted) {
			break
		}
		e.counted = next
		e.index++
	}
	if !e.counted.Equal(at) {
		return "", invalid("Every(%q): the schedule depends on when it was started, so replicas would disagree: use Period", e.name)
	}
	return fmt.Sprintf("%d-%02d", midnight.Unix()/int64(day/time.Second)%2, e.index%ticks.Slots), nil // mutation: every-slot
}

// errOtherTick is wrapped together with ErrBusy: a lock of another tick is in the way.
var errOtherTick = errors.New("a lock of another tick is in the way")

// try takes a lock of the tick without waiting. Some stores can keep a lock for longer than asked, up to the next
// use of its slot. Such a lock of an earlier tick is broken.
func (e *every) try(t *tick, kind string) (*Lock, error) {
	name := ticks.Lock(e.name, kind, t.slot)
	o := append([]LockOption{Reason(ticks.Reason(t.at)), TTL(t.ttl)}, e.options...)
	for again := true; ; again = false {
		k, err := e.l.TryLock(e.ctx, name, o...)
		if !errors.Is(err, ErrBusy) {
			return k, e.rename(err)
		}
		is, at := e.holderOf(name)
		switch {
		case at.IsZero() || at.Equal(t.at): // mutation: every-other
			t.done = at.Equal(t.at) && is.Kept && kind == ticks.Marker
			return nil, e.rename(err)
		case again && is.Kept && e.now().Sub(at) > t.settled().Sub(t.at):
			limited, cancel := context.WithTimeout(e.ctx, e.l.cfg.requestTimeout)
			err = e.l.Break(limited, name, is.Token)
			cancel()
			if err == nil || errors.Is(err, ErrNotHeld) {
				continue
			}
		}
		return nil, &failure{name: e.name, store: e.l.where, kind: ErrBusy, err: errOtherTick}
	}
}

// holderOf returns the holder of a lock and its tick, or no time if they are unknown.
func (e *every) holderOf(name string) (is Holder, at time.Time) {
	if st, err := e.l.Inspect(e.ctx, name); err == nil && len(st.Holders) > 0 {
		is = st.Holders[0]
		at, _ = ticks.At(is.Reason)
	}
	return is, at
}

// rename replaces the name of a tick's lock by that of the job.
func (e *every) rename(err error) error {
	switch is := err.(type) {
	case *BusyError:
		c := *is
		c.Name = e.name
		return &c
	case *failure:
		c := *is
		c.name = e.name
		return &c
	}
	return err
}

// leave unlocks k and lets the store keep it until a time.
func (e *every) leave(k *Lock, until time.Time) error {
	k.Keep(until.Sub(e.now()))
	return e.rename(k.Unlock())
}

// take claims a tick and serves it. It reports whether to continue.
func (e *every) take(t *tick, next time.Time, yield func(Tick, error) bool) bool {
	var claim *Lock
	for r := (retry{}); claim == nil; {
		var err error
		claim, err = e.try(t, ticks.Claim)
		switch {
		case err == nil:
		case e.ctx.Err() != nil:
			return false
		case errors.Is(err, ErrBusy): // another replica serves it
			e.watched = append(e.watched, t)
			return true
		case permanent(err):
			yield(Tick{Time: t.at}, err)
			return false
		case !sleep(e.ctx, e.l.ctx, r.delay()) || e.late(t) || !next.IsZero() && !e.now().Before(next):
			t.known = true
			e.watched = append(e.watched, t)
			return yield(Tick{Time: t.at}, err)
		}
	}
	if e.late(t) {
		_ = claim.Unlock()
		e.watched = append(e.watched, t)
		return true
	}
	marker, err := e.try(t, ticks.Marker)
	for r := (retry{}); errors.Is(err, errOtherTick) && sleep(e.ctx, e.l.ctx, r.delay()) && !e.late(t); {
		if !next.IsZero() && !e.now().Before(next) {
			break
		}
		marker, err = e.try(t, ticks.Marker)
	}
	// Two skews: this replica may have claimed the tick one skew late, and another clock may be
	// one skew behind. If the store has not confirmed the release, the claim may end with its
	// TTL.
	if left := e.leave(claim, t.at.Add(2*t.skew+t.ttl)); err == nil && left != nil { // mutation: every-claim
		_ = marker.Unlock()
		err = left
	}
	switch {
	case err == nil:
	case e.ctx.Err() != nil:
		return false
	default:
		t.known = !errors.Is(err, ErrBusy) // mutation: every-known
		e.watched = append(e.watched, t)
		return !t.known || yield(Tick{Time: t.at}, err)
	}
	served := false
	defer func() {
		if !served { // a panic
			_ = marker.Unlock()
		}
	}()
	more := yield(Tick{Time: t.at, ctx: marker.Context()}, nil)
	served = true
	t.served = marker.Context().Err() == nil
	if !e.record(t, marker) {
		e.watched = append(e.watched, t)
	}
	return more
}

// record leaves the marker of a tick that was served or is reported. It returns false if watch has to try again: the
// marker has ended before, or the store has not confirmed the record of a tick that was served.
func (e *every) record(t *tick, marker *Lock) bool {
	end := e.now().Add(min(marker.Remaining(), t.ttl) + t.ttl/8) // the validity is shorter than the TTL by a margin
	err := e.leave(marker, t.settled())                          // mutation: every-marker
	if err == nil || !t.served && !errors.Is(err, ErrLost) {     // mutation: every-lost
		return true
	}
	if t.served || t.check.Before(end) {
		t.check = end
	}
	return false
}

// missed returns the error of a tick that was not served, with its reason if that is known.
func (e *every) missed(t *tick, reason error) error {
	err := errors.New(t.at.Format(time.RFC3339Nano))
	if reason != nil {
		err = fmt.Errorf("%w: %w", err, reason)
	}
	return &failure{name: e.name, store: e.l.where, kind: ErrMissed, err: err}
}

// settled returns when the marker of a tick may end: by then no replica watches the tick,
// whatever its clock shows.
func (t *tick) settled() time.Time { return t.until.Add(t.skew + t.ttl) }

// unchecked returns the error for a tick that this replica watched and could not check in time.
func (e *every) unchecked() error {
	return &failure{name: e.name, store: e.l.where, err: errors.New("this process could not check in time whether the tick was served")}
}

// watch checks the watched ticks that are due. It reports whether to continue.
func (e *every) watch(yield func(Tick, error) bool) bool {
	now := e.now()
	type report struct {
		at  time.Time
		err error
	}
	var reports []report
	// A served tick is watched so that this replica records it before another one reports it as missed.
	add := func(t *tick, err error) {
		if !t.served {
			reports = append(reports, report{t.at, err})
		}
	}
	e.watched = slices.DeleteFunc(e.watched, func(t *tick) bool {
		if now.Before(t.check) { // mutation: every-watch
			return false
		}
		if now.After(t.until) {
			if !t.known {
				add(t, e.unchecked())
			}
			return true
		}
		marker, err := e.try(t, ticks.Marker)
		switch {
		case errors.Is(err, errOtherTick):
			if t.check = now.Add(t.ttl); t.check.After(t.until) {
				add(t, e.missed(t, errOtherTick))
				return true
			}
			return false
		case errors.Is(err, ErrBusy): // another replica serves it, or has served it
			if t.check = t.at.Add(2 * t.check.Sub(t.at)); t.check.After(t.until) && t.unanswered && !t.done && !t.known {
				add(t, e.unchecked())
			}
			return t.done || t.check.After(t.until) // mutation: every-done
		case e.ctx.Err() != nil && err != nil:
			return false
		case err != nil:
			t.unanswered = true
			if t.check = now.Add(t.ttl); t.check.After(t.until) {
				add(t, err)
				return true
			}
			return false
		case e.now().After(t.until): // the marker of a served tick may be gone
			_ = marker.Unlock()
			if !t.known {
				add(t, e.unchecked())
			}
			return true
		}
		if !e.record(t, marker) {
			return false
		}
		add(t, e.missed(t, nil))
		return true
	})
	for _, r := range reports {
		if !yield(Tick{Time: r.at}, r.err) {
			return false
		}
	}
	return true
}
