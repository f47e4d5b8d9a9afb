package holdfast

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// # The state machine of a lease
//
// A lease is what the store keeps for one granted request. Everything that can happen to it is
// an event. [leaseState.next] is a pure function of the state, the event and the facts about
// it, above all the time. It returns the new state and the effects. It reads no clock, takes no
// mutex and makes no calls. docs/lease.md shows how the phase changes; a test generates that
// page from its table of all transitions.
//
// The Locker applies an event in two parts:
//
//   - step, under the Locker's mutex, reads the clock, calls next, stores the new state, and carries out the
//     effects on the lease's own data. It updates the indexes that follow from the state: the leases that
//     Close ends, the heap of the next due times, the validity that readers load without the mutex.
//   - perform, after the mutex has been released, carries out the other effects, in the order in which the
//     effect constants are declared.
//
// # One mutex
//
// Locker.mu guards the leases, the local queues and the schedule. It is the only
// mutex under which anything is decided. Nothing that can block or that belongs
// to a caller runs under it: no call to the store, no hook, no context, no
// cancellation. The rest are leaf mutexes (outbox.eventsMu, background.mu):
// each guards one small structure, may be taken while Locker.mu is
// held, and no other mutex is taken under it.
//
// # Invariants
//
//   - The contexts of all Locks on a lease have ended before the store can receive its release, and before the
//     next waiter can get it. perform ends them before it releases, so the last Unlock is one event where the
//     release follows. A handoff happens in the step itself, and a MinHold can end on another goroutine: then
//     Unlock is two events, of which unlocked ends the context and left decides what follows. The goroutine of
//     an earlier loss, Close or Unlock may not have ended its contexts yet, so a release ends all of them.
//   - A lease that the store may still keep is released exactly once: by the
//     last Unlock, at the end of its MinHold, by Close, or by a rollback.
//   - The contexts end after the mutex has been released. In between, a goroutine that reads
//     the state of a Lock finds the loss in the lease and ends the context itself (Lock.check).
//     So no caller sees an expired lease as valid.
//   - Validity counts from the send of the last acknowledged request. Only granted and renewed
//     prolong it.
//   - Only the present holder's Locks act on a lease: limitReached and a join of
//     an earlier holder's Lock are ignored.
//
// # Handoffs with reserved tokens
//
// A handoff gives the lease to the next waiter of this Locker without a call to the
// store. Exclusion holds as for one holder: the store keeps one grant, and the contexts
// of the holder before have ended. Tokens rise strictly: the store has reserved the
// tokens Token to Token+Tokens-1 for the grant, in the step that made it; hold i of the
// grant gets Token+i, there are at most Tokens holds, and every later grant of the name
// has larger tokens. A token that no hold gets is never used. The order between
// processes: spare and handoffUntil limit the holds that overtake a waiter of another
// process; each of them begins within driver.HandoffTime of the grant.
//
// A request reserves tokens only if goroutines of this process contend for the name:
// goroutines wait behind the head of the local queue, or one waited when a lease was
// unlocked lately.
//
// # Kept leases
//
// With Sticky the last Unlock of an exclusive lease keeps it for the next request of this Locker: phase kept.
// The request takes it (taken) as a waiter takes a lease in a handoff: with the next reserved token, without a
// call to the store, and after the contexts of the hold before have ended. So the reasons above hold here, too,
// but for the order between processes, which handoffUntil does not ensure here. A watch of the name does, from the
// first time that the lease is kept to its end: when another process waits, the lease is recalled. A kept
// lease is then released at once, and one that is held again is released by its next last Unlock.
//
// The lease is also recalled when it was kept for as long as Sticky allows, when a request of this Locker for another
// limit or TTL comes, and when the watch fails. The hold before was reported as released when
// it was unlocked. So a kept lease that is lost has no loss to report, and its release is reported only if
// it fails.
//
// # Renewals out of step
//
// Clients that get their leases at one moment would renew them at one moment forever. So would clients whose
// renewals failed during an outage, and succeed soon after it. The first renewal of a lease, and the first one
// after a failure, therefore moves the next one to a random time before it is due. Leases that are renewed in one call
// stay together.
//
// # Provisional grants
//
// A provisional grant (see driver.Grant) is a granted event with the send of an earlier
// request and a short TTL. Its renewal is due after confirmAfter, and the renewed event
// sets the requested TTL. A release before needs no confirmation.

// phase is a stage of a lease.
type phase uint8

const (
	requested phase = iota // the request was sent, and the store has not granted yet
	revoked                // the store ended the grant before its answer arrived
	held                   // the store has granted the lease, it is valid, and it has a holder
	lingering              // it is unlocked, or the Locker is closed, and is renewed until the end of its MinHold
	kept                   // it is unlocked, and is renewed for the next request of this Locker
	lost                   // the lease ended without a release while Locks on it were not unlocked
	releasing              // the first attempt to release the lease is in flight
	ended                  // the core does not use it again; the background may still release it or roll it back
)

// eventKind is the kind of an event.
type eventKind uint8

const (
	// granted: the store's grant has arrived, with sent, ttl and valid. lock, if set, is
	// the holder's first Lock, which is opened in the same step.
	granted    eventKind = iota
	denied               // the request failed and left nothing at the store
	unanswered           // the request has an unknown outcome
	opened               // the holder gets its first Lock
	joined               // the holder gets a further Lock, by reentrancy
	unlocked             // a Lock is being unlocked; keep is its MinHold
	// left: the context of a Lock that is being unlocked has ended. It follows unlocked
	// unless the effects of that are final.
	left
	dropped       // the holder gave up before its first Lock was opened
	revoke        // the store reports the end of the lease, with cause
	checked       // a reader found no validity
	ticked        // the lease is due
	resumed       // the machine was suspended
	renewed       // the store has renewed the lease, with sent, ttl and valid
	renewalFailed // a renewal failed; the next follows after keep
	limitReached  // the MaxHold of a Lock is over
	lingered      // the MinHold is over
	// taken: a request of this Locker wants the kept lease, and can rely on it for valid after
	// the send.
	taken
	recalled           // the Locker is not to keep the lease, or not any longer: see Kept leases
	closed             // the Locker closes
	released           // the store has confirmed the release
	releaseDenied      // the store reports that the lease had ended before
	releaseUnconfirmed // the release failed or has an unknown outcome; keep is for how much longer the lease was to stand
	releaseImpossible  // the release failed, and a retry is useless
)

// event is an eventKind with its values. Points in time, here and in the state, count from the creation of
// the Locker: such a number is small and cheap to copy.
type event struct {
	kind  eventKind
	sent  time.Duration // granted, renewed: the send from which validity counts
	ttl   time.Duration // granted, renewed: the TTL that the store granted
	valid time.Duration // granted, renewed, taken: for how long after the send
	keep  time.Duration // see the kinds
	cause driver.Cause  // revoke
	// provisional is set for granted: a renewal has to confirm the grant.
	provisional bool
	// spare is, for granted, the number of handoffs that the lease allows. within is the time
	// for them after the grant; 0 means no such limit.
	spare  int32
	within time.Duration
	// early, for renewed, is a random part, from 0 to 1, of the time until the next renewal. The renewal is due by so
	// much earlier if this one may be in step with those of other clients.
	early float64
	// lock and err are for the effects: the Lock of the event, and the store's error.
	lock *Lock
	err  error
}

// facts are the further inputs of next.
type facts struct {
	now time.Duration // since the creation of the Locker
	// age is the time since the send from which validity counts. The machine was
	// suspended for the part slept of it.
	age, slept time.Duration
	// used: the context of a Lock lives or the Lock drains, so that a renewal is of use.
	used bool
	// next: a waiter of this Locker can have the lease in a handoff.
	next bool
	// nextValid is for how long after the send that waiter can rely on the lease.
	nextValid time.Duration
	// minHold, for closed, is the longest MinHold of the open Locks.
	minHold time.Duration
	// stale: the event's Lock belongs to an earlier holder.
	stale bool
	// storeKeeps: the store can keep the lease for its MinHold after a release.
	storeKeeps bool
	// sticky is for how long the Locker may keep the lease after its last Unlock.
	sticky time.Duration
}

// effect is a set of actions after an event.
type effect uint32

// The effects, in the order in which they are carried out. step carries out the first three, and
// handOff and linger. Locker.takeKept carries out take.
const (
	link effect = 1 << iota // adds the event's Lock to the open Locks, and unlink removes it
	unlink
	contend           // makes later requests for the name reserve tokens
	endAll            // ends the contexts of all open Locks with the loss
	endOne            // ends the context of the event's Lock, with the loss or ErrReleased
	endLimit          // ends the context of the event's Lock with ErrHoldLimit, and reports it
	reportLoss        // reports the loss
	stopLinger        // stops the timer of linger
	renew             // requests a renewal of the lease, together with others
	reportRenewal     // reports the answer to a renewal
	handOff           // gives the lease to the next local waiter
	reportRelease     // reports that the holder has released the lease
	release           // makes the first attempt to release the lease, on this goroutine
	reportUnconfirmed // reports a release that is not confirmed
	releaseLater      // releases the lease in the background
	undo              // rolls the request back in the background
	linger            // starts the timer of the MinHold, or of a kept lease
	take              // gives the kept lease to the request of the event
)

// effects are what the Locker does after an event.
type effects struct {
	do effect
	// keep is for how much longer the lease is to stand. It belongs to release, releaseLater
	// and linger.
	keep time.Duration
	// within is the validity that is left, which limits release.
	within time.Duration
	// cause is why the event ended the lease, where that is a loss.
	cause driver.Cause
	// final is set for unlocked: the Lock was the last one, and no left follows.
	final bool
	// quiet is set for releaseLater: the release was reported when the lease was kept.
	quiet bool
}

// leaseState is the state of a lease.
type leaseState struct {
	phase phase
	// forever: the lease does not expire by a clock.
	forever bool
	// renewing: a renewal is in flight.
	renewing bool
	// provisional: the grant has a short TTL until the first renewal.
	provisional bool
	// lossReported: an effect has reported the loss of the lease.
	lossReported bool
	// inStep: the next renewal may be in step with those of other clients, see Renewals out of step.
	inStep bool
	// recalled: the Locker is not to keep the lease after its last Unlock.
	recalled bool
	// quiet: the lease is being released after it was kept.
	quiet bool
	// open is the number of Locks whose Unlock has not begun. leaving is the number of those
	// that are being unlocked, whose contexts are ending.
	open, leaving int32
	// handoffs counts how often the lease went to the next local waiter. spare is the number of
	// handoffs that are still allowed.
	handoffs, spare int32
	// ttl is the TTL that the store granted; valid is how long after the send the holder
	// can rely on the lease.
	ttl, valid time.Duration
	// keep is the longest MinHold of the holder's Locks that were unlocked.
	keep time.Duration
	// renewAt is when the next renewal is due.
	renewAt time.Duration
	// since is when the present holder got the lease.
	since time.Duration
	// handoffUntil is when the time for handoffs is over, 0 if it is not limited.
	handoffUntil time.Duration
}

// confirmAfter is the time from a provisional grant to the renewal that confirms it. A shorter
// hold needs no confirmation.
const confirmAfter = 5 * time.Millisecond

// renewTogether divides the time between two renewals: renewals that are due within such a part
// go in one call.
const renewTogether = 16

// next returns the state after an event, and what the Locker has to do.
func (s leaseState) next(e event, f facts) (leaseState, effects) {
	fx := s.apply(&e, &f)
	return s, fx
}

// apply does the work of next in place, which saves copies. It changes nothing but s, and
// depends on nothing but s and its arguments. A lease has one loss: a Close that keeps a MinHold has
// reported it, and the end of that MinHold may find another cause.
func (s *leaseState) apply(e *event, f *facts) effects {
	fx := s.decide(e, f)
	if s.lossReported {
		fx.do &^= reportLoss
	}
	s.lossReported = s.lossReported || fx.do&reportLoss != 0
	return fx
}

func (s *leaseState) decide(e *event, f *facts) effects {
	switch e.kind {
	case granted:
		return s.granted(e, f)
	case denied, unanswered:
		if s.phase == requested || s.phase == revoked { // mutation: denied
			s.phase = ended
			if e.kind == unanswered {
				return effects{do: undo} // mutation: unanswered
			}
		}
	case opened, joined:
		if e.kind == joined && (f.stale || s.phase != held || s.open == 0) {
			return effects{do: endOne}
		}
		s.open++             // mutation: open
		if s.phase != held { // mutation: opened-ended
			return effects{do: endOne}
		}
		return effects{do: link}
	case unlocked:
		fx := s.expire(f)
		if s.phase == held && f.next {
			fx.do |= contend
		}
		s.open--
		s.keep = max(s.keep, e.keep)                                                             // mutation: unlock-keep
		if s.open == 0 && s.leaving == 0 && !s.canHandOff(f) && !s.lingers(f) && !s.canKeep(f) { // mutation: last-unlock
			last := s.finish(f, false)
			last.do, last.cause, last.final = last.do|fx.do|endOne, fx.cause, true // mutation: end-context
			return last
		}
		s.leaving++
		fx.do |= endOne
		return fx
	case left:
		var unlinks effect
		if s.phase == held { // else a loss has ended the list
			unlinks = unlink
		}
		if s.leaving--; s.open > 0 || s.leaving > 0 { // mutation: left
			return effects{do: unlinks}
		}
		last := s.finish(f, false)
		last.do |= unlinks
		return last
	case dropped:
		return s.finish(f, true)
	case revoke:
		return s.lose(e.cause)
	case checked:
		return s.expire(f)
	case ticked, resumed:
		return s.tick(e, f)
	case renewed, renewalFailed:
		return s.renewalAnswered(e, f)
	case limitReached:
		if s.phase == held && f.used {
			return effects{do: endLimit}
		}
	case lingered:
		if s.phase == lingering {
			s.phase = releasing
			return effects{do: endAll | stopLinger | release, within: s.left(f)} // mutation: lingered
		}
	case taken:
		return s.take(e, f)
	case recalled:
		if s.phase == held {
			s.recalled = true // mutation: recalled
		}
		return s.recall(f)
	case closed:
		switch s.phase {
		case held:
			s.keep = max(s.keep, f.minHold) // mutation: closed-keep
			if s.expired(f) && !f.storeKeeps {
				s.keep = 0 // mutation: closed-expired
			}
			rest := s.rest(f)
			if s.lingers(f) { // mutation: closed-linger
				s.phase = lingering
				return effects{do: endAll | reportLoss | linger, keep: rest, cause: driver.CauseClosed}
			}
			s.phase = ended
			return effects{do: endAll | reportLoss | releaseLater, keep: rest, cause: driver.CauseClosed} // mutation: closed
		case kept:
			s.phase = ended
			return effects{do: stopLinger | releaseLater, quiet: true} // mutation: closed-kept
		case lost:
			s.phase = ended                           // mutation: closed-ends
			return effects{do: endAll | releaseLater} // mutation: closed-lost
		}
	case released, releaseDenied, releaseUnconfirmed, releaseImpossible:
		return s.releaseAnswered(e)
	}
	return effects{}
}

// granted applies a grant. A grant that was revoked, or that expired before its answer
// arrived, is rolled back.
func (s *leaseState) granted(e *event, f *facts) effects {
	if s.phase != requested && s.phase != revoked {
		return effects{}
	}
	s.setValidity(e)
	if e.provisional {
		s.provisional, s.renewAt = true, f.now+confirmAfter
	}
	if s.phase == revoked || f.age >= s.valid { // mutation: revoked
		s.phase = ended
		return effects{do: undo}
	}
	s.phase, s.since, s.spare, s.inStep = held, f.now, e.spare, true // mutation: granted-hold
	if e.within > 0 {
		s.handoffUntil = f.now + e.within
	}
	if e.lock != nil {
		s.open++
		return effects{do: link}
	}
	return effects{}
}

func (s *leaseState) setValidity(e *event) {
	s.ttl, s.valid, s.provisional = e.ttl, e.valid, false
	s.forever = e.ttl == driver.Forever
	if !s.forever {
		s.renewAt = e.sent + e.ttl/3
	}
}

// alive reports whether the lease counts as valid by its phase alone. The clock may show that it has ended.
func (s *leaseState) alive() bool {
	return s.phase == held || s.phase == lingering || s.phase == kept
}

func (s *leaseState) left(f *facts) time.Duration {
	if s.forever {
		return driver.Forever
	}
	return s.valid - f.age
}

// expired reports whether the clock has ended the lease.
func (s *leaseState) expired(f *facts) bool { return s.alive() && !s.forever && f.age >= s.valid }

// expire ends the lease if its validity is over.
func (s *leaseState) expire(f *facts) effects {
	if s.expired(f) {
		if f.age-f.slept < s.valid {
			return s.lose(driver.CauseSlept)
		}
		return s.lose(driver.CauseExpired) // mutation: expired
	}
	return effects{}
}

// lose ends the lease without a release. A lease that lingers or is kept has no Unlock to
// come, so it is released at once: the store may still keep it.
func (s *leaseState) lose(cause driver.Cause) effects {
	switch s.phase {
	case requested:
		s.phase = revoked // mutation: revoked-early
		return effects{cause: cause}
	case held:
		s.phase = lost                                        // mutation: lose
		return effects{do: endAll | reportLoss, cause: cause} // mutation: lost-effects
	case lingering:
		s.phase = ended
		return effects{do: endAll | reportLoss | stopLinger | releaseLater, cause: cause} // mutation: linger-lost
	case kept:
		s.phase = ended
		return effects{do: stopLinger | releaseLater, cause: cause} // mutation: kept-lost
	}
	return effects{}
}

// rest returns for how much longer the lease has to stand for a MinHold.
func (s *leaseState) rest(f *facts) time.Duration {
	return max(s.keep-(f.now-s.since), 0) // mutation: rest
}

// lingers reports whether the process has to keep the lease for a MinHold.
func (s *leaseState) lingers(f *facts) bool { return !f.storeKeeps && s.phase == held && s.rest(f) > 0 }

// canHandOff reports whether a handoff is possible: a local waiter can have the lease, and
// neither the number of handoffs nor the time for them is used up.
func (s *leaseState) canHandOff(f *facts) bool {
	return f.next && s.phase == held && !s.recalled && s.spare > 0 && // mutation: spare
		(s.handoffUntil == 0 || f.now < s.handoffUntil) && s.rest(f) == 0 && s.left(f) > s.valid/2 // mutation: handoff-rest
}

// canKeep reports whether the Locker can keep the lease after its last Unlock. A MinHold that is not over
// comes first, and the lease is then not kept.
func (s *leaseState) canKeep(f *facts) bool {
	return f.sticky > 0 && s.phase == held && !s.recalled && s.spare > 0 && s.rest(f) == 0 && s.left(f) > s.valid/2
}

// take gives a kept lease to a request. If little validity is left, the request goes to the store instead.
func (s *leaseState) take(e *event, f *facts) effects {
	switch {
	case s.phase != kept:
		return effects{}
	case s.expired(f):
		return s.expire(f)
	case !s.forever && f.age >= e.valid/2:
		return s.recall(f)
	}
	s.phase = held
	s.startHold(e.valid, f) // mutation: taken
	return effects{do: take}
}

// recall releases a kept lease.
func (s *leaseState) recall(f *facts) effects {
	if s.phase != kept {
		return effects{}
	}
	s.phase, s.quiet = releasing, true
	return effects{do: stopLinger | release, within: s.left(f)} // mutation: recall
}

// startHold begins the time of the next holder.
func (s *leaseState) startHold(valid time.Duration, f *facts) {
	s.handoffs++ // mutation: handoffs
	s.spare--
	s.valid, s.since, s.keep = valid, f.now, 0
}

// finish decides what follows after the end of a holder. A lost lease is released in the
// background: it may still stand at the store, within its margin or because the store only
// notifies the holder.
func (s *leaseState) finish(f *facts, unused bool) effects {
	switch s.phase {
	case lost:
		s.phase = ended
		return effects{do: releaseLater} // mutation: lost
	case held:
	default:
		return effects{}
	}
	rest := s.rest(f)
	switch {
	case s.canHandOff(f):
		s.startHold(f.nextValid, f)
		return effects{do: handOff | reportRelease}
	case unused:
		s.phase = ended
		return effects{do: releaseLater} // mutation: dropped
	case s.lingers(f):
		s.phase = lingering
		return effects{do: linger, keep: rest} // mutation: linger
	case s.canKeep(f):
		s.phase = kept
		return effects{do: linger | reportRelease, keep: f.sticky} // mutation: kept-time
	}
	s.phase = releasing
	return effects{do: release, keep: rest, within: s.left(f)} // mutation: release-keep
}

// tick ends a lease that has expired and renews one whose renewal is due. After a
// suspend of the machine every lease is renewed at once.
func (s *leaseState) tick(e *event, f *facts) effects {
	if s.expired(f) || !s.alive() {
		return s.expire(f)
	}
	if e.kind == resumed {
		s.renewAt = min(s.renewAt, f.now)
	}
	together := s.ttl / 3 / renewTogether
	if s.provisional {
		together = 0 // a hold that ends before needs no confirmation
	}
	if s.renewing || s.renewAt > f.now+together || !s.worthRenewing(f) {
		return effects{}
	}
	s.renewing = true
	return effects{do: renew}
}

// worthRenewing reports whether the lease is still in use: by a Lock whose context lives or
// that drains, by a holder whose first Lock is about to be opened, by a MinHold, or by the next request of
// a kept lease.
func (s *leaseState) worthRenewing(f *facts) bool {
	return s.phase == lingering || f.used || s.open == 0 && s.leaving == 0
}

// due returns when the lease needs attention next: its renewal, or its end.
func (s *leaseState) due(f *facts) time.Duration {
	end := f.now + s.left(f)
	if !s.renewing && s.renewAt < end && s.worthRenewing(f) {
		return s.renewAt
	}
	return end
}

// renewalAnswered applies the answer to a renewal. A failure is neither a loss nor a
// reset: the renewal is repeated until the validity is over.
func (s *leaseState) renewalAnswered(e *event, f *facts) effects {
	s.renewing = false
	if !s.alive() {
		return effects{}
	}
	if e.kind == renewed {
		confirms := s.provisional
		s.setValidity(e) // mutation: validity
		// The send may be that of an earlier request, so the renewal is not repeated at once.
		soonest := f.now + s.ttl/20
		s.renewAt = max(s.renewAt, soonest)
		if s.inStep && !confirms {
			s.renewAt -= time.Duration(e.early * float64(s.renewAt-soonest))
			s.inStep = false
		}
	} else {
		s.renewAt, s.inStep = f.now+e.keep, true
	}
	if s.phase == kept {
		return effects{} // it has no hold that could report it
	}
	return effects{do: reportRenewal}
}

// releaseAnswered applies the answer to the first attempt to release.
func (s *leaseState) releaseAnswered(e *event) effects {
	if s.phase != releasing {
		return effects{}
	}
	s.phase = ended
	switch e.kind {
	case released, releaseDenied:
		if s.quiet {
			return effects{}
		}
	}
	switch e.kind {
	case released:
		return effects{do: reportRelease}
	case releaseDenied:
		return effects{do: reportLoss, cause: driver.CauseGone}
	case releaseImpossible:
		return effects{do: reportUnconfirmed}
	}
	return effects{do: reportUnconfirmed | releaseLater, keep: e.keep} // mutation: unconfirmed
}
