// Package driver is the contract between holdfast's core and a store.
//
// A store speaks one recipe to one kind of server and has no policy: when to
// renew, how long to wait, whom to let go first among goroutines, what to do
// about an answer that never came, are the core's business. A store does three
// things well. It makes one atomic step at the server for each call, it tells
// when the request that set the server's deadline was sent, and it says
// truthfully what became of a request, including that it does not know.
//
// # One rule for every mode
//
// A [Request] has a limit, and the only admission rule is: a grant of limit n
// never stands beside more than n-1 others. [Exclusive] is 1, a semaphore of n
// permits is n, shared is [Unlimited]. A request that may not be granted yet
// takes a place behind those that came before it; a request never overtakes a
// place that stands before it, whatever the limits, so readers cannot starve a
// writer. Stores that cannot queue say so in their [Guarantees].
//
// # What an error means
//
// Errors come back raw. The core asks [Store.Classify] what they mean, and one
// distinction carries the safety of the whole library: [CodeUnknown] says that the
// request may have been applied or may still be, so the core undoes it in the
// background until Undo answers nil. Every other code of a failed Acquire says
// that nothing of the request stands or can appear later. When in doubt, say
// CodeUnknown.
//
// Package drivertest holds the conformance suite: a store is finished when it
// passes. docs/adding-a-store.md leads from an empty directory to there.
package driver

import (
	"context"
	"math"
	"strconv"
	"time"
)

// Limits of the contract. The core checks them before a store sees a request.
const (
	// Exclusive is the limit of a grant that stands alone.
	Exclusive = 1
	// MaxLimit is the largest number of permits of a semaphore.
	MaxLimit = 4096
	// Unlimited is the limit of a shared grant: any number of shared grants
	// stand together, and never beside an exclusive one.
	Unlimited = math.MaxInt32
	// MaxName is the length of the longest name, in bytes.
	MaxName = 512
	// MaxToken bounds fencing tokens: every token is at least 1 and below it, so
	// that it fits the signed 64-bit integers of SQL, Java and JSON tools.
	MaxToken = 1 << 63
	// Forever is the TTL of a grant that ends with its holder's process or
	// connection and not by a clock.
	Forever = time.Duration(math.MaxInt64)
	// NoSlot is the slot of a grant that has none.
	NoSlot = -1
)

// Store is one client of one store. All methods may be called from many
// goroutines at once. Every method that does I/O returns soon after its context
// ends, whatever the network does.
type Store interface {
	// String says where the locks live, for errors and logs. It never contains a
	// password.
	String() string

	// Guarantees says what this store promises. It may probe the server. The core
	// calls it before the first request and remembers an answer without error.
	Guarantees(context.Context) (Guarantees, error)

	// Acquire asks for a grant.
	//
	// Without r.Wait it answers at once: a grant, or an error of code CodeBusy
	// (preferably a *BusyError that tells the holders) after which nothing of the
	// request is left at the store.
	//
	// With r.Wait it takes a place, reports it with r.From.Queued, and returns
	// when it is granted, when its context ends, or when it can no longer keep
	// the place. It is asked to wait only where Guarantees say that it wakes by
	// push. Whatever keeps the place alive (heartbeats, refreshes, reconnection)
	// happens inside this call. A wait whose context ends returns CodeWithdrawn once it
	// has taken its place back, or CodeUnknown. One that can no longer keep its place
	// returns CodeUnavailable in the same case, or CodeUnknown.
	//
	// CodeUnknown makes the core call Undo. Every other code says that nothing of the
	// request is left, and it does not.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Undo removes whatever r left behind: a place or a grant, under r.ID. A nil
	// error means that nothing of that ID stands or can still appear, so it takes
	// effect after whatever of the request is still on its way. The core calls it
	// after Acquire has returned, again and again until it answers nil or what was left
	// must have lapsed (Guarantees.Lapses). It is safe to call for a request that never
	// arrived. Of r the ID and the name are enough.
	Undo(ctx context.Context, r Request) error

	// Renew prolongs grants by their TTL, in as few round trips as the store
	// allows, and answers by index. It never revives a grant that has ended: that
	// is an error of code CodeNotHeld. Where the request as a whole fails, every answer
	// has its error. It is not called for grants whose TTL is Forever.
	Renew(ctx context.Context, grants []Grant) []Renewal

	// Release ends a grant, proving in the same atomic step that it still
	// stands; otherwise it changes nothing and answers CodeNotHeld. Releasing twice is
	// harmless and answers CodeNotHeld the second time. A positive keep leaves the
	// grant standing that much longer without anyone to renew it; it is passed
	// only where Guarantees.Linger says that the store can.
	Release(ctx context.Context, g Grant, keep time.Duration) error

	// Classify tells what an error of this store means for the request that got
	// it. CodeUnknown is the safe answer.
	Classify(err error) Code

	// Close gives back what the store opened itself: never a client that was
	// handed to it. Grants that depend on those connections end with them; others
	// stand until their TTL. Calls after Close answer errors of code CodeClosed, and
	// waits that are under way end.
	Close(context.Context) error
}

// Request asks for one grant of one name.
type Request struct {
	// ID is unique per request and never used again: letters, digits and '-', at
	// most 40 bytes.
	ID string
	// Name is what is locked: valid UTF-8, 1 to MaxName bytes, no NUL. Names are
	// flat and compare byte by byte.
	Name string
	// Limit is Exclusive, 2 to MaxLimit, or Unlimited.
	Limit int
	// TTL is how long the store should keep a grant that nobody renews. A store
	// may round it up to what it can do and says so in Grant.TTL.
	TTL time.Duration
	// Tokens is how many tokens an exclusive grant should reserve; 0 means 1. It is more
	// than 1 only where Guarantees.Reserves says that the store can reserve tokens. The
	// store may reserve fewer, and says so in Grant.Tokens.
	Tokens int
	// Wait asks to queue until the context ends.
	Wait bool
	// First says of a request without Wait that one with it follows if the answer is
	// CodeBusy, so that the answer need not tell the holders.
	First bool
	// From is who asks. It is never nil and may be called from any goroutine.
	From Requester
}

// Requester is the core's end of a request.
type Requester interface {
	// Owner says who asks, for people to read. A store calls it when it writes
	// the grant down: the goroutine at the head of the core's own queue may have
	// changed while the request waited.
	Owner() Owner
	// Queued tells that the store has answered: the name is held and the request
	// has a place. Holders are those the answer happened to tell, possibly none.
	// It may be called again when they change. It does not block.
	Queued(holders []Holder)
	// Lost tells that the grant has ended, or is asked to end, without a release.
	// Only the first call counts; it may come before Acquire has returned. It does
	// not block.
	Lost(cause Cause, err error)
}

// Grant is the store's yes.
type Grant struct {
	ID    string
	Name  string
	Limit int
	// Token is larger than every token of every earlier grant of the name.
	Token uint64
	// Tokens is how many tokens the grant has: Token, Token+1 and so on. All of them are
	// smaller than those of every later grant. 0 means 1, and only an exclusive grant has
	// more. Calls about the grant name it by Token; Break takes any of its tokens.
	Tokens int
	// SentAt is taken just before the request that itself set, or confirmed, the
	// store's deadline was sent. After a blocking wait that is a request sent
	// after the wait.
	SentAt Instant
	// TTL is what the store gave: at least what was asked, or Forever where the
	// grant ends with the process or connection.
	TTL time.Duration
	// Slot is the permit's number, 0 to Limit-1, or NoSlot.
	Slot int
	// Handle is the store's own: it comes back with the grant.
	Handle any
}

// Last returns the last token of the grant.
func (g *Grant) Last() uint64 { return LastToken(g.Token, g.Tokens) }

// LastToken returns the last of n tokens that begin with first.
func LastToken(first uint64, n int) uint64 { return first + uint64(max(n, 1)) - 1 }

// Renewal is the answer for one grant of a batch: SentAt and TTL, which mean what
// they mean in a Grant, or Err.
type Renewal struct {
	SentAt Instant
	TTL    time.Duration
	// Cause refines an error of code CodeNotHeld.
	Cause Cause
	Err   error
}

// Cause says why a grant ended without its holder's release.
type Cause string

// The causes of a loss.
const (
	// CauseExpired: trust in the lease ran out before it could be renewed.
	CauseExpired Cause = "expired"
	// CauseTaken: an operator broke the lock, or asked the holder to end.
	CauseTaken Cause = "taken"
	// CauseSessionEnded: the session or connection that carried the grant is gone.
	CauseSessionEnded Cause = "session ended"
	// CauseGone: the store no longer knows the grant.
	CauseGone Cause = "gone"
	// CauseSlept: the machine was suspended for longer than the lease.
	CauseSlept Cause = "machine slept"
	// CauseClosed: the Locker was closed while the lock was held.
	CauseClosed Cause = "closed"
)

// Owner is who asks or holds, for people to read; nothing is decided by it.
type Owner struct {
	// ID is the request's: Requester.Owner answers with it.
	ID string
	// Host and PID name the process; Instance, where set, is what the
	// application calls itself.
	Host     string
	PID      int
	Instance string
	// Reason is the caller's own words.
	Reason string
	// Since is when the grant or place was made, by the store's clock where it
	// has one.
	Since time.Time
}

// Client names the client for people, such as "pid 7 on web-1 (blue)" with an instance.
// A client library of another project that has written down neither its process nor its
// host is "another client".
func (o Owner) Client() string {
	s := "another client"
	if o.PID != 0 {
		s = "pid " + strconv.Itoa(o.PID)
	}
	if o.Host != "" {
		s += " on " + o.Host
	}
	if o.Instance != "" {
		s += " (" + o.Instance + ")"
	}
	return s
}

// Holder is a grant as an inspection shows it.
type Holder struct {
	Owner
	// Token is the first token of the grant, Tokens how many it has reserved; 0 means 1.
	Token  uint64
	Tokens int
	Limit  int
	Slot   int
	// TTL is how long the store keeps the grant if nobody renews it, or Forever.
	TTL time.Duration
	// Note says what an operator should know: "stopped", "asked to end".
	Note string
}

// Waiter is a place as an inspection shows it.
type Waiter struct {
	Owner
	Limit int
}

// State is a name's holders, by rising token, and its waiters, in the order in
// which they will be served where the store has one.
type State struct {
	Name    string
	Holders []Holder
	Waiters []Waiter
}
