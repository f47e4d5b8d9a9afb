package holdfast

// # The state machine of a local queue
//
// A queue has the waiters of one name in this Locker. It makes one request at a time, for the waiter
// at its head. [queueState.next] is a pure function like [leaseState.next], and docs/lease.md shows its
// phases, too. Locker.stepQueue applies an event and carries out the effects, under the mutex. It
// returns what follows after the mutex has been released: the cancellation of a request.
//
// # Invariants
//
//   - A waiter leaves the queue in exactly one way: it is served, it fails, or it gives up. Each removes the
//     waiter and records the result in one step.
//   - The request under way serves the head, or it is cancelled. It is not cancelled before a release that
//     went with it has its outcome.
//   - A waiter fails only if the store has refused its request, has not answered it in time, or is closed.

// queuePhase is a stage of a queue.
type queuePhase uint8

const (
	idle       queuePhase = iota // the next request is due
	requesting                   // a request is under way
	swapping                     // a request is under way with the release of another lease, which has no outcome yet
	delaying                     // the next request waits for the release of the lease that was delivered last
	offered                      // that release waits for the next request
	pausing                      // the last request has failed, and the next follows after a pause
	finished                     // no waiter is left, and the queue is not used again
)

// queueEventKind is the kind of an event of a queue.
type queueEventKind uint8

const (
	waiterJoined   queueEventKind = iota // a waiter is the last of the queue now
	waiterLeft                           // a waiter has left the queue by itself, or with a lease from a handoff
	storeAnswered                        // the store has answered the request under way that the name is held
	requestGranted                       // the request under way was granted
	requestFailed                        // the request under way failed, and is repeated
	requestBusy                          // the same; the store answered that the name is held
	requestRefused                       // the request under way failed, and a repetition would fail, too
	storeClosed                          // the request under way failed because the store is closed
	releaseBegan                         // the lease that was delivered last is being released
	swapAnswered                         // the release of the request under way has its outcome, or was not sent
	requestDue                           // the pause or the delay, if there was one, is over
	lockerClosed                         // the Locker closes
)

// queueFacts are the further inputs of next.
type queueFacts struct {
	// waits: the queue has a waiter. fits: its head accepts a grant of the request under way.
	waits, fits bool
	// swaps: the release can go with the request of the head, or for requestGranted of the waiter behind it.
	swaps    bool
	usable   bool // for requestGranted: the grant is valid
	answered bool // the store has answered the request under way
	// unanswered: the request under way was ended because the store had not answered it in time.
	unanswered bool
	closed     bool // the Locker is closed
}

// queueEffect is a set of actions after an event of a queue.
type queueEffect uint16

// The effects, in the order in which they are carried out.
const (
	noteAll        queueEffect = 1 << iota // records for all waiters that the name is held
	serveHead                              // gives the lease to the head
	giveBack                               // drops the lease
	failHead                               // fails the head
	failAll                                // fails all waiters
	failUnanswered                         // fails the waiters that have had no answer for the request timeout
	// delay records for all waiters that the lease which was delivered holds the name, and sets the time
	// of the next request.
	delay
	pause         // sets the time of the next request, after a failure
	returnSwap    // returns a release to its Unlock: it has its outcome, or was not sent
	offerSwap     // accepts the release of the lease that was delivered last
	wake          // wakes the queue's goroutine
	request       // makes the request of the head; with a release in phase swapping
	cancelRequest // ends the request under way
	finish        // removes the queue
)

// queueState is the state of a queue.
type queueState struct {
	phase     queuePhase
	held      bool // the last answer of the store was that the name is held
	cancelled bool // the request under way was cancelled
	failures  int8 // the number of requests that failed one after another, up to 2
}

// pending reports whether a request is under way.
func (s queueState) pending() bool { return s.phase == requesting || s.phase == swapping }

// busy reports whether the queue has found the name held: at the store, or by the lease that it delivered last.
func (s queueState) busy() bool { return s.held || s.phase == delaying }

// next returns the state after an event, and what the Locker has to do.
func (s queueState) next(e queueEventKind, f queueFacts) (queueState, queueEffect) {
	do := s.apply(e, &f)
	return s, do
}

// apply does the work of next in place.
func (s *queueState) apply(e queueEventKind, f *queueFacts) queueEffect {
	switch e {
	case waiterJoined:
		// The failure count restarts, so that the waiter does not inherit a long backoff.
		switch {
		case s.phase == pausing && s.failures > 1:
			s.failures = 1
			return pause | wake
		case s.phase == requesting:
			s.failures = 0
		}
	case waiterLeft, lockerClosed:
		return s.useless(f)
	case storeAnswered:
		if s.pending() {
			s.held = true
			return noteAll
		}
	case requestGranted:
		return s.granted(f)
	case requestFailed, requestBusy, requestRefused, storeClosed:
		return s.failed(e, f)
	case releaseBegan:
		switch {
		case s.phase == delaying && f.swaps:
			s.phase = offered // mutation: offered
			return offerSwap | wake
		case s.phase == delaying:
			s.phase = idle
			return wake
		}
	case swapAnswered:
		if s.phase == swapping {
			s.phase = requesting
			return returnSwap | s.useless(f)
		}
	case requestDue:
		return s.due(f)
	}
	return 0
}

// useless cancels the request under way if it does not serve the head. Close ends the waiting for the next one.
func (s *queueState) useless(f *queueFacts) queueEffect {
	switch {
	case s.phase == requesting && !s.cancelled && (!f.fits || f.closed): // mutation: useless
		s.cancelled = true
		return cancelRequest
	case f.closed && (s.phase == delaying || s.phase == pausing):
		s.phase = idle
		return wake
	}
	return 0
}

// granted applies a grant. Its release may go with the next request, which then waits for it.
func (s *queueState) granted(f *queueFacts) queueEffect {
	if !s.pending() {
		return 0
	}
	s.phase, s.held = idle, false // mutation: granted-phase
	if !f.usable {                // mutation: usable
		return s.fail(f)
	}
	s.failures = 0
	switch {
	case !f.fits || f.closed: // mutation: give-back
		return giveBack // mutation: give-back-effect
	case f.swaps:
		s.phase = delaying
		return serveHead | delay // mutation: granted-swap
	}
	return serveHead
}

// failed applies the failure of the request under way. A request that was cancelled before the store should have
// answered has no failure.
func (s *queueState) failed(e queueEventKind, f *queueFacts) (do queueEffect) {
	if !s.pending() {
		return 0
	}
	s.phase = idle // mutation: failed-phase
	switch {
	case s.cancelled && !f.unanswered:
		return 0
	case e == storeClosed:
		return failAll
	case e == requestRefused && f.fits:
		return failHead // the refusal is about its request; another head has another request
	case e == requestRefused:
		return 0
	case e == requestBusy:
		do = noteAll
	}
	if f.answered {
		s.failures = 0
	}
	s.held = false
	return do | s.fail(f)
}

// fail lets the next request follow after a pause. After Close there is none.
func (s *queueState) fail(f *queueFacts) queueEffect {
	if f.closed {
		return 0
	}
	s.phase, s.failures = pausing, min(s.failures+1, 2)
	return failUnanswered | pause
}

// due makes the next request, or ends the queue.
func (s *queueState) due(f *queueFacts) (do queueEffect) {
	if s.phase == offered && !f.swaps {
		do = returnSwap // mutation: return-swap
	}
	switch {
	case s.pending() || s.phase == finished:
		return 0
	case !f.waits || f.closed: // mutation: due-closed
		s.phase = finished
		return do | failAll | finish // mutation: finish
	case s.phase == offered && f.swaps:
		s.phase = swapping // mutation: swap
	default:
		s.phase = requesting
	}
	s.cancelled = false
	return do | request
}
