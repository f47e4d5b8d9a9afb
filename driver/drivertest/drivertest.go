// Package drivertest is the conformance suite of holdfast's stores. A store is finished when it
// passes. A store of another project runs it in the same way:
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{
//			Open: func(t testing.TB, namespace string) driver.Store { ... },
//		})
//	}
//
// The suite tests the contract of package driver directly, with several independent clients. It
// tests it again through several Lockers, so that no local queue hides the store's behaviour.
// It checks what the store's Guarantees declare. What they do not declare must return an error
// of code CodeUnsupported.
package drivertest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/driver"
)

// Harness describes a store to the suite.
type Harness struct {
	// Open opens an independent client of the same store each time, as another process
	// would. The suite closes it. An unreachable server is no error.
	Open func(t testing.TB, namespace string) driver.Store
	// OpenWithoutFallback opens a client that depends on notifications alone: its waiters do
	// not poll at intervals. nil if the store cannot switch the polling off; Open if its
	// waiters never poll.
	OpenWithoutFallback func(t testing.TB, namespace string) driver.Store
	// EntryTTL is how long a queue entry stands without renewal; 0 if it stands as long as a
	// session or a connection.
	EntryTTL time.Duration
	// Disconnect ends every connection between clients and the store. They may reconnect at
	// once. nil if the harness cannot, or a client has none.
	Disconnect func(t testing.TB)
	// TTL is the TTL of tests of expiry. Default 400 ms; more for stores with a coarse
	// granularity.
	TTL time.Duration
	// Stop makes the store unreachable for all clients, and Start ends that; nil if the
	// harness cannot.
	Stop, Start func(t testing.TB)
	// Delay delays every answer of the store by d, until it is called with 0; nil if the
	// harness cannot.
	Delay func(t testing.TB, d time.Duration)
	// LoseAnswer lets the store execute the next request and loses one of the answers: the
	// client gets an error instead. after is the number of answers that arrive before the lost
	// one. If a request has one answer, its value may be ignored. A negative after ends that. nil if
	// the harness cannot, or if OpenLate does it.
	LoseAnswer func(t testing.TB, after int)
	// DelayRequests delays every request to the store by d, until it is called with 0; nil if the
	// harness cannot.
	DelayRequests func(t testing.TB, d time.Duration)
	// OpenLate opens a client like Open, whose requests the suite can hold back; nil if the harness
	// cannot.
	OpenLate func(t testing.TB) (driver.Store, Late)
	// Steps disturbs single requests of one client; nil if the harness cannot.
	Steps *Steps
	// Bubble reports that a client can be opened, used and closed in a bubble of
	// testing/synctest, whose time is the year 2000. The suite uses it as a client with a wrong
	// clock. Such a client shares no goroutines, channels or timers with clients outside.
	Bubble bool
	// SetClock sets the store's clock ahead of the clients', or behind them if ahead is negative;
	// nil if the harness cannot, or the store does not use one.
	SetClock func(t testing.TB, ahead time.Duration)
	// Session reports that the store confirms a grant by heartbeats of a session, which many
	// grants share, and not by its request. So SentAt may be before the call, by at most half
	// of the TTL.
	Session bool
	// SupportsName reports whether the store supports a name. The store refuses other names with
	// an error of code CodeUnsupported. nil if it supports every name.
	SupportsName func(name string) bool
	// Leftovers returns what the store has kept by mistake while no name has a holder or a
	// waiter; nil if the harness cannot.
	Leftovers func(t testing.TB) []string
	// Corrupt replaces the record of a held name by one that no client has written, and returns a
	// function that removes the record; nil if the harness cannot.
	Corrupt func(t testing.TB, namespace, name string) (remove func())
	// Cause is an error of the client library that means much if a server returns it, such as the end of a session.
	// The suite uses it as the cause of a context, which is no answer of the store; nil if there is none.
	Cause error
	// Forge sends messages to every client, as another program may that knows the IDs of the requests for a name and
	// the token of its grant; nil if the store sends no messages, or the harness cannot.
	Forge func(t testing.TB, name string, ids []string, token uint64)
	// Outside opens a client just outside of Guarantees.Reach, and Within one that differs from those of Open as far
	// as Reach allows; nil if the harness cannot, or there is none.
	Outside, Within func(t testing.TB, namespace string) driver.Store
	// WatchesWaiters reports that Watch reports only requests that begin to wait.
	WatchesWaiters bool
	// Background names functions, as in a stack trace, whose goroutines belong to the
	// harness and are no leak.
	Background []string
}

// firstTimeout limits every wait for something that must happen. It does not measure speed: a
// healthy store needs a small part of it. After a test has failed, the later ones wait for
// laterTimeout. So the suite ends soon although most tests of a new store fail.
const (
	firstTimeout = time.Minute
	laterTimeout = 8 * time.Second
)

// Run runs the suite as subtests of t. Each subtest waits up to a minute for an event that must
// happen. After one has failed, the later ones wait for 8 s.
func Run(t *testing.T, h Harness) {
	ignore := goleak.IgnoreCurrent()
	s := newSuite(t, h)
	for _, test := range []suiteTest{
		{"Guarantees", guaranteesAreWhole},
		{"Exclusive", exclusive},
		{"Reach", reach},
		{"LimitRule", limitRule},
		{"LimitsNotDeclared", limitsNotDeclared},
		{"Slots", slots},
		{"WritersDoNotStarve", writersDoNotStarve},
		{"ReadersComeTogether", readersComeTogether},
		{"Order", order},
		{"WaitEndsByRelease", waitEndsByRelease},
		{"PushWakesWaiter", pushWakesWaiter},
		{"WakesWithoutFallback", wakesWithoutFallback},
		{"WakesAfterReconnect", wakesAfterReconnect},
		{"WaitEndsByClose", waitEndsByClose},
		{"ForgedMessagesOnlyWake", forgedMessagesOnlyWake},
		{"CancelledWaitLeavesNothing", cancelledWait},
		{"CancelInTheMiddle", cancelInTheMiddle},
		{"CancelBesideAHolder", cancelBesideAHolder},
		{"CancelAtAnyMoment", cancelAtAnyMoment},
		{"CancelledBefore", cancelledBefore},
		{"TokensRise", tokensRise},
		{"TokensOfAWrongClock", tokensOfAWrongClock},
		{"TokensReserved", tokensReserved},
		{"ReservedRangesRise", reservedRangesRise},
		{"ValidityFromTheSend", validityFromTheSend},
		{"ValidityNotFromTheAnswer", validityNotFromTheAnswer},
		{"ValidityNotFromTheArrival", validityNotFromTheArrival},
		{"RenewBatch", renewBatch},
		{"ReleaseTwice", releaseTwice},
		{"Swap", swaps},
		{"SwapQueuesLast", swapQueuesLast},
		{"SwapOfYoungGrant", swapOfYoungGrant},
		{"SwapToAnotherRequest", swapToAnotherRequest},
		{"SwapOfEndedGrant", swapOfEndedGrant},
		{"SwapCancelledBefore", swapCancelledBefore},
		{"Undo", undo},
		{"Faults", faults},
		{"LateRequests", lateRequests},
		{"Inspect", inspect},
		{"InspectNewOwner", inspectNewOwner},
		{"List", list},
		{"BrokenRecord", brokenRecord},
		{"Watch", watch},
		{"Break", breakGrant},
		{"Namespaces", namespaces},
		{"StrangeNames", strangeNames},
		{"Closed", closed},
		{"Down", down},
		{"OpenWithoutServer", openWithoutServer},
		{"StandsForItsTTLAfterDelays", standsAfterDelays},
		{"EveryLimitEnds", everyLimitEnds},
		{"SemaphoreQueue", semaphoreQueue},
		{"DownConfirmsNothing", downConfirmsNothing},
		{"LongerTTLOutlastsStop", longerTTLOutlastsStop},
		{"Lockers/Exclusion", lockersExclude},
		{"Lockers/Shared", lockersShare},
		{"Lockers/Semaphore", lockersCount},
		{"Lockers/ValidityNotFromTheAnswer", lockersDelayed},
		{"Lockers/Cancel", lockersCancel},
		{"Lockers/Turns", lockersTakeTurns},
		{"Lockers/WriterAmongReaders", lockersWriter},
		{"Lockers/SmallerLimit", lockersSmallerLimit},
		{"Lockers/Lead", lockersLead},
		{"Lockers/LostAnswers", lockersLoseAnswers},
		{"OperatorsBesideLockers", operatorsBesideLockers},
		{"UnlockedNameIsFree", unlockedNameIsFree},
		{"Lockers/Break", lockersBreak},
		{"Lockers/Down", lockersDown},
	} {
		s.run(t, test)
	}
	// These wait for leases to expire, and disturb no server.
	s.run(t, []suiteTest{
		{"WaitOutlivesEntry", waitOutlivesEntry},
		{"WaitEndsByExpiry", waitEndsByExpiry},
		{"TokensRiseAcrossExpiry", tokensRiseAcrossExpiry},
		{"Renew", renew},
		{"RenewNeverRevives", renewNeverRevives},
		{"RenewAfterDeadline", renewAfterDeadline},
		{"ExpiresWithoutRenewal", expiresWithoutRenewal},
		{"ReleaseByStaleOwner", releaseByStaleOwner},
		{"Linger", linger},
		{"StandsForItsTTL", standsForItsTTL},
		{"LongerTTLStands", longerTTLStands},
		{"LingerIsNotRenewed", lingerIsNotRenewed},
		{"Lockers/HoldBeyondTTL", lockersHold},
	}...)
	// A thread of the server that waits while the clock is set back may wait for an hour.
	s.run(t, []suiteTest{
		{"TokensOfAServerClock", tokensOfAServerClock},
	}...)
	none := []goleak.Option{ignore}
	for _, f := range h.Background {
		none = append(none, goleak.IgnoreAnyFunction(f))
	}
	// Some goroutines end a while after Close; goleak itself waits less than half a second.
	for end := time.Now().Add(s.timeout()); ; {
		err := goleak.Find(none...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// suiteTest is a test of the suite.
type suiteTest struct {
	name string
	run  func(*env)
}

// run runs tests side by side. Then nothing may be left at the store.
func (s *suite) run(t *testing.T, tests ...suiteTest) {
	t.Helper()
	var all sync.WaitGroup
	for _, test := range tests {
		all.Go(func() {
			passed := t.Run(test.name, func(t *testing.T) {
				e := &env{suite: s, T: t}
				t.Cleanup(e.closeAll) // also after a failure
				test.run(e)
				e.closeAll()
				if len(tests) == 1 {
					e.nothingLeft()
				}
			})
			if !passed {
				s.failed.Store(true)
			}
		})
	}
	all.Wait()
	if len(tests) > 1 {
		t.Run("NothingIsLeft", func(t *testing.T) { (&env{suite: s, T: t}).nothingLeft() })
	}
}

// nothingLeft requires that nothing is left at the store.
func (e *env) nothingLeft() {
	e.Helper()
	if e.h.Leftovers != nil {
		e.eventually("nothing is left at the store", func() bool { return len(e.h.Leftovers(e.T)) == 0 },
			func() string { return strings.Join(e.h.Leftovers(e.T), ", ") })
	}
}

type suite struct {
	h      Harness
	g      driver.Guarantees
	names  atomic.Int64
	ids    atomic.Int64
	failed atomic.Bool // a test has failed
}

func newSuite(t *testing.T, h Harness) *suite {
	t.Helper()
	if h.TTL == 0 {
		h.TTL = 400 * time.Millisecond
	}
	first := h.Open(t, "")
	g, err := first.Guarantees(t.Context())
	if err != nil {
		t.Fatalf("Guarantees: %v", err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatalf("Close: %v", err)
	}
	return &suite{h: h, g: g}
}

// timeout returns the limit of a wait for something that must happen.
func (s *suite) timeout() time.Duration {
	if s.failed.Load() {
		return laterTimeout
	}
	return firstTimeout
}

// env is the environment of one test.
type env struct {
	*suite
	*testing.T
	mu     sync.Mutex
	stores []driver.Store
	other  driver.Store // see observer
	held   []held       // pushed releases them at the end of a try
}

// held is a grant and its client.
type held struct {
	s driver.Store
	g driver.Grant
}

func (e *env) closeAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.other = nil
	for _, s := range e.stores {
		if err := s.Close(context.Background()); err != nil && s.Classify(err) != driver.CodeClosed {
			e.Errorf("Close: %v", err)
		}
	}
	e.stores = nil
}

// open opens a client, which is closed at the end of the test.
func (e *env) open() driver.Store { return e.openIn("") }

func (e *env) openIn(namespace string) driver.Store {
	e.Helper()
	return e.opened(e.h.Open(e.T, namespace))
}

// opened registers a client to be closed at the end of the test.
func (e *env) opened(s driver.Store) driver.Store {
	e.mu.Lock()
	e.stores = append(e.stores, s)
	e.mu.Unlock()
	return s
}

// observer returns a client for observation. It is opened once per test, and used by one
// goroutine at a time.
func (e *env) observer() driver.Store {
	e.Helper()
	if e.other == nil {
		e.other = e.open()
	}
	return e.other
}

// name returns a name that no other test uses.
func (e *env) name() string { return fmt.Sprintf("suite-%d-%d", time.Now().UnixNano(), e.names.Add(1)) }

// requester records what a store reports.
type requester struct {
	id     string
	reason string
	then   string                    // the reason of another owner, which follows when Queued was called
	first  atomic.Pointer[time.Time] // when Queued was called first
	queued chan []driver.Holder
	lost   chan driver.Cause
}

func (r *requester) Owner() driver.Owner {
	o := driver.Owner{ID: r.id, Host: "suite-host", PID: 4711, Instance: "suite", Reason: r.reason}
	if r.then != "" && r.first.Load() != nil {
		o.Reason = r.then
	}
	return o
}

func (r *requester) Queued(h []driver.Holder) {
	now := time.Now()
	r.first.CompareAndSwap(nil, &now)
	select {
	case r.queued <- h:
	default:
	}
}

func (r *requester) Lost(c driver.Cause, _ error) {
	select {
	case r.lost <- c:
	default:
	}
}

// long is a TTL that is longer than a test.
const long = time.Minute

func (e *env) request(name string, limit int, ttl time.Duration) driver.Request {
	id := fmt.Sprintf("t%d-%d", time.Now().UnixNano(), e.ids.Add(1))
	return driver.Request{ID: id, Name: name, Limit: limit, TTL: ttl,
		From: &requester{id: id, reason: "because of " + id, queued: make(chan []driver.Holder, 1), lost: make(chan driver.Cause, 1)}}
}

func from(r driver.Request) *requester { return r.From.(*requester) }

// must acquires without waiting, and fails the test if that fails. On a busy machine a request for a short TTL may have its
// answer too late. So must repeats one that was unavailable after a part of its TTL, but not one that was so at once.
func (e *env) must(s driver.Store, r driver.Request) driver.Grant {
	e.Helper()
	var g driver.Grant
	var err error
	e.eventually("a request is answered in time", func() bool {
		began := time.Now()
		g, err = s.Acquire(e.Context(), r)
		return err == nil || r.TTL > e.h.TTL || s.Classify(err) != driver.CodeUnavailable || time.Since(began) < r.TTL/4
	}, func() string { return fmt.Sprint(err) })
	if err != nil {
		e.Fatalf("%q, limit %d, request %s: %v, want a grant: no holder or waiter excludes it", r.Name, r.Limit, r.ID, err)
	}
	e.checkGrant(r, g)
	return g
}

func (e *env) checkGrant(r driver.Request, g driver.Grant) {
	e.Helper()
	switch {
	case g.ID != r.ID || g.Name != r.Name || g.Limit != r.Limit:
		e.Fatalf("%q, limit %d, request %s: the grant %+v does not answer it: a grant has the ID, name and limit of its request", r.Name, r.Limit, r.ID, g)
	case g.Token == 0 || g.Token >= driver.MaxToken:
		e.Fatalf("%q, limit %d, request %s: token %d is not between 1 and %d", r.Name, r.Limit, r.ID, g.Token, uint64(driver.MaxToken-1))
	case g.TTL != driver.Forever && (g.TTL < r.TTL || g.TTL > r.TTL+e.g.Granularity):
		e.Fatalf("%q, limit %d, request %s: requested a TTL of %s, got %s with a declared granularity of %s", r.Name, r.Limit, r.ID, r.TTL, g.TTL, e.g.Granularity)
	case g.SentAt.IsZero():
		e.Fatalf("%q, limit %d, request %s: the grant has no SentAt", r.Name, r.Limit, r.ID)
	}
}

// busy requires that a request without waiting returns CodeBusy.
func (e *env) busy(s driver.Store, r driver.Request) {
	e.Helper()
	g, err := s.Acquire(e.Context(), r)
	if err == nil {
		e.Fatalf("Acquire(%q, limit %d, request %s) was granted token %d, want busy: %s", r.Name, r.Limit, r.ID, g.Token, limitText)
	}
	if c := s.Classify(err); c != driver.CodeBusy {
		e.Fatalf("Acquire(%q, limit %d, request %s): %v (%v), want busy", r.Name, r.Limit, r.ID, c, err)
	}
}

func (e *env) release(s driver.Store, g driver.Grant) {
	e.Helper()
	if err := s.Release(e.Context(), g, 0); err != nil {
		e.Fatalf("Release(%q, request %s, token %d): %v, want nil: the grant stands", g.Name, g.ID, g.Token, err)
	}
}

// code requires an error of the code want.
func (e *env) code(s driver.Store, err error, want driver.Code, what string) {
	e.Helper()
	if err == nil {
		e.Fatalf("%s: no error, want %v", what, want)
	}
	if got := s.Classify(err); got != want {
		e.Fatalf("%s: %v (%v), want %v", what, got, err, want)
	}
}

// waiting is an Acquire that waits on its own goroutine.
type waiting struct {
	e      *env
	s      driver.Store
	r      driver.Request
	cancel context.CancelFunc
	done   chan struct{}
	g      driver.Grant
	err    error
	at     time.Time // when Acquire last returned
	left   bool      // cancelled by leave, or granted in cancelInTheMiddle
}

// wait starts to wait: inside the store if it notifies its waiters, else by polling, as the
// core does.
func (e *env) wait(s driver.Store, r driver.Request) *waiting {
	ctx, cancel := context.WithCancel(e.Context())
	w := &waiting{e: e, s: s, r: r, cancel: cancel, done: make(chan struct{})}
	w.r.Wait = e.g.Wake == driver.WakePush
	go func() {
		defer close(w.done)
		for {
			w.g, w.err = s.Acquire(ctx, w.r)
			w.at = time.Now()
			if w.r.Wait || w.err == nil || s.Classify(w.err) != driver.CodeBusy {
				return
			}
			from(r).Queued(nil)
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
				w.err = &driver.Error{Code: driver.CodeWithdrawn, Err: ctx.Err()}
				return
			}
		}
	}()
	return w
}

// queue starts to wait, and returns when the store has reported the queue entry.
func (e *env) queue(s driver.Store, r driver.Request) *waiting {
	e.Helper()
	w := e.wait(s, r)
	select {
	case <-from(r).queued:
	case <-w.done:
		e.Fatalf("waiting for %q, limit %d, request %s: ended while the name is held: token %d, %v", r.Name, r.Limit, r.ID, w.g.Token, w.err)
	case <-time.After(e.timeout()):
		e.Fatalf("waiting for %q, limit %d, request %s: the store did not call Queued within %s: it calls it when the name is held and the queue entry exists", r.Name, r.Limit, r.ID, e.timeout())
	}
	return w
}

// await waits for the end of the request. The message, of a request that does not end, contains the timeout.
func (w *waiting) await(message string) {
	w.e.Helper()
	select {
	case <-w.done:
	case <-time.After(w.e.timeout()):
		w.e.Fatalf("waiting for %q, limit %d, request %s: "+message, w.r.Name, w.r.Limit, w.r.ID, w.e.timeout())
	}
}

// granted requires that the wait ends with a grant.
func (w *waiting) granted() driver.Grant {
	w.e.Helper()
	w.await("not granted within %s although nothing stands before it")
	if w.err != nil {
		w.e.Fatalf("waiting for %q, limit %d, request %s: %v, want a grant", w.r.Name, w.r.Limit, w.r.ID, w.err)
	}
	w.e.checkGrant(w.r, w.g)
	return w.g
}

// leave cancels the wait and cleans up like the core.
func (w *waiting) leave() {
	w.e.Helper()
	w.left = true
	w.cancel()
	w.await("Acquire did not return within %s after its context had ended")
	if w.err == nil {
		w.e.release(w.s, w.g)
		return
	}
	if c := w.s.Classify(w.err); c == driver.CodeUnknown {
		w.e.undone(w.s, w.r)
	} else if c != driver.CodeWithdrawn {
		w.e.Fatalf("waiting for %q, limit %d, request %s: code %v after its context had ended (%v), want withdrawn or unknown", w.r.Name, w.r.Limit, w.r.ID, c, w.err)
	}
}

// undone repeats Undo until it returns nil.
func (e *env) undone(s driver.Store, r driver.Request) {
	e.Helper()
	var err error
	e.eventually("undo is confirmed", func() bool {
		ctx, cancel := context.WithTimeout(e.Context(), time.Second)
		defer cancel()
		err = s.Undo(ctx, r)
		return err == nil
	}, func() string { return fmt.Sprint(err) })
}

// pendingStill requires that the wait has not ended. The caller must first make sure that the
// store has had time to end it, because a slow store would pass otherwise.
func (w *waiting) pendingStill() {
	w.e.Helper()
	select {
	case <-w.done:
		w.e.Fatalf("waiting for %q, limit %d, request %s: ended while another request holds the name or is before it in the queue: token %d, %v",
			w.r.Name, w.r.Limit, w.r.ID, w.g.Token, w.err)
	default:
	}
}

// eventually polls until ok returns true. It is for conditions that no event announces.
func (e *env) eventually(what string, ok func() bool, detail func() string) {
	e.Helper()
	for end := time.Now().Add(e.timeout()); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			e.Fatalf("not so within %s: %s (%s)", e.timeout(), what, detail())
		}
	}
}

// free requires that a name has neither holders nor waiters.
func (e *env) free(s driver.Store, name string) {
	e.Helper()
	e.release(s, e.must(s, e.request(name, driver.Exclusive, long)))
	if i, ok := s.(driver.Inspector); ok {
		st, err := i.Inspect(e.Context(), name)
		if err != nil {
			e.Fatalf("Inspect: %v", err)
		}
		if len(st.Holders)+len(st.Waiters) > 0 {
			e.Fatalf("%q: left at the store: %+v: a name that is free has neither holders nor waiters", name, st)
		}
	}
}

// leases skips the test if grants do not expire.
func (e *env) leases() {
	if e.g.MaxTTL == 0 {
		e.Skip("grants of this store do not expire")
	}
}

// takeExpired polls until a grant that is not renewed has expired.
func (e *env) takeExpired(s driver.Store, name string) driver.Grant {
	e.Helper()
	var g driver.Grant
	var err error
	e.eventually("an expired grant makes room", func() bool {
		g, err = e.try(s, e.request(name, driver.Exclusive, long))
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	return g
}

// try makes a request without waiting. If it is not granted it is undone, so that it does not
// block the next one.
func (e *env) try(s driver.Store, r driver.Request) (driver.Grant, error) {
	e.Helper()
	g, err := s.Acquire(e.Context(), r)
	if err != nil && s.Classify(err) == driver.CodeUnknown {
		e.undone(s, r)
	}
	return g, err
}

// longer calls try with a TTL. try reports whether it ended before that TTL had passed. If not,
// longer calls it again with a longer TTL, up to three times.
func (e *env) longer(try func(ttl time.Duration) bool) bool {
	e.Helper()
	ttl := e.h.TTL
	for range 3 {
		if try(ttl) {
			return true
		}
		e.Logf("too late for a TTL of %s", ttl)
		ttl = max(ttl, min(4*ttl, long))
	}
	return false
}

// over reports whether the TTL of a grant has passed.
func over(g driver.Grant) bool {
	elapsed, _ := g.SentAt.Elapsed()
	return elapsed >= g.TTL
}

// kinds returns one limit of each kind.
func (e *env) kinds() []int { return e.declared(3) }

func (e *env) limits() []int { return e.declared(2, 3, 5) }

// declared returns the limits that the store declares: an exclusive one, a shared one, and these numbers of permits.
func (e *env) declared(permits ...int) []int {
	limits := []int{driver.Exclusive}
	if e.g.Shared {
		limits = append(limits, driver.Unlimited)
	}
	if e.g.Semaphore {
		limits = append(limits, permits...)
	}
	return limits
}
