// Package driver is the contract between holdfast's core and a store.
//
// A store implements one recipe on one kind of server and has no policy. The core decides
// when to renew, how long to wait, which goroutine is next, and what to do about a lost
// answer. A store does three things. It makes one atomic step at the server for each call.
// It reports when the request that set the server's deadline was sent. And it reports the
// outcome of each request, or that the outcome is unknown.
//
// # One rule for every mode
//
// A [Request] has a limit, and the only rule is: a grant of limit n never stands beside more
// than n-1 others. [Exclusive] is 1, a semaphore of n permits is n, shared is [Unlimited].
// A request that cannot be granted yet becomes a queue entry behind the earlier ones. It
// never overtakes an earlier entry, whatever the limits, so readers cannot starve a writer.
// A store without a queue declares that in its [Guarantees].
//
// # What an error means
//
// A store returns its errors unchanged, and the core calls [Store.Classify] for their codes.
// One distinction is essential for safety: [CodeUnknown] means that the request may have
// been applied or may still be applied. The core then calls Undo in the background until it
// returns nil. Every other code of a failed Acquire means that nothing of the request
// stands or can appear later. In doubt, return CodeUnknown.
//
// Package record implements the contract over any storage that can replace a record if its
// version is unchanged. Package drivertest is the conformance suite: a store is finished when it
// passes. docs/adding-a-store.md describes the way to it.
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
	// MaxToken limits fencing tokens: a token is at least 1 and below MaxToken, so that it
	// fits the signed 64-bit integers of SQL, Java and JSON tools.
	MaxToken = 1 << 63
	// Forever is the TTL of a grant that ends with its holder's process or connection and
	// not after a time.
	Forever = time.Duration(math.MaxInt64)
	// NoSlot is the slot of a grant without one.
	NoSlot = -1
)

// Store is one client of one store. All methods are safe for concurrent use. Every method that
// does I/O returns soon after its context ends, even if the server does not respond.
type Store interface {
	// String returns where the locks are, for errors and logs. It never contains a password.
	String() string

	// Guarantees returns what this store guarantees. It may read facts from the server. The
	// core calls it before the first request and keeps an answer without error.
	Guarantees(context.Context) (Guarantees, error)

	// Acquire requests a grant.
	//
	// Without r.Wait it returns at once: a grant, or an error of code CodeBusy (preferably
	// a *BusyError with the holders), after which nothing of the request is at the store.
	//
	// With r.Wait it makes a queue entry and calls r.From.Queued. It returns when the entry is
	// granted, when its context ends, or when it can no longer keep the entry. The core sets
	// Wait only if Guarantees.Wake is push. Whatever keeps the entry alive
	// (heartbeats, refreshes, reconnection) happens inside this call. After the end of its
	// context a wait returns CodeWithdrawn if it has removed its entry, else CodeUnknown.
	// If it can no longer keep its entry it returns CodeUnavailable if it has removed the
	// entry, else CodeUnknown.
	//
	// After CodeUnknown the core calls Undo. After any other code it does not, because nothing
	// of the request is at the store.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Undo removes a queue entry or a grant of r.ID. It returns nil when nothing of that ID
	// stands or can still appear. So it takes effect after every request of that ID that is
	// still on its way. The core calls it after Acquire has returned, and repeats it until it
	// returns nil. The core stops earlier when a leftover must have expired
	// (Guarantees.LeftoversExpire). Undo is safe for a request that never arrived. Only r.ID
	// and r.Name are needed.
	Undo(ctx context.Context, r Request) error

	// Renew renews grants for their TTL, in as few round trips as the store allows, and
	// returns one answer per index. It never revives a grant that has ended: that is an
	// error of code CodeNotHeld. A grant has also ended when its deadline at the store has
	// passed and no other request has claimed the name: its holder may have given it up, and
	// a renewal that arrives late would keep the name from all other clients. If the request
	// as a whole fails, every answer has its error. It is not called for grants whose TTL is
	// Forever.
	Renew(ctx context.Context, grants []Grant) []Renewal

	// Release ends a grant, and proves in the same atomic step that it still stands.
	// Otherwise it changes nothing and returns CodeNotHeld, also for a second release. A
	// positive keep leaves the grant standing for that time without renewal; it is passed
	// only if Guarantees.Linger is set.
	Release(ctx context.Context, g Grant, keep time.Duration) error

	// Classify returns the code of an error of this store. CodeUnknown is the safe answer.
	Classify(err error) Code

	// Close closes what the store has opened itself, never a client that was passed in.
	// Grants that depend on those connections end with them; others stand until their TTL.
	// Calls after Close return errors of code CodeClosed, and present waits end.
	Close(context.Context) error
}

// Request is a request for one grant of one name.
type Request struct {
	// ID is unique per request and never used again: letters, digits and '-', at
	// most 40 bytes.
	ID string
	// Name is the locked name: valid UTF-8, 1 to MaxName bytes, no NUL. Names are flat and
	// compare byte by byte.
	Name string
	// Limit is Exclusive, 2 to MaxLimit, or Unlimited.
	Limit int
	// TTL is how long the store shall keep a grant that is not renewed. A store may round it
	// up, and returns the result in Grant.TTL.
	TTL time.Duration
	// Tokens is how many tokens an exclusive grant should reserve; 0 means 1. It is more
	// than 1 only if Guarantees.Reserves is set. The store may reserve fewer, and returns
	// the number in Grant.Tokens.
	Tokens int
	// Wait makes Acquire queue until it is granted or the context ends.
	Wait bool
	// Provisional allows, with Wait, a grant whose deadline is provisional; see Grant.
	Provisional bool
	// First announces, without Wait, that a request with Wait follows after CodeBusy. Then
	// the error needs no holders.
	First bool
	// Waited is how long the core has repeated the request, without Wait, after CodeBusy; 0 in the first one. A store
	// of OrderLongest records the request that has waited longest, and keeps the name for it. The core calls Undo when
	// it gives the request up.
	Waited time.Duration
	// From is the requester. It is never nil, and may be called from any goroutine.
	From Requester
}

// Requester is the core's side of a request.
type Requester interface {
	// Owner returns the requester, for people. A store calls it when it records the grant,
	// because another goroutine may have become the head of the core's local queue.
	Owner() Owner
	// Queued reports that the name is held and that the request has a queue entry. holders are
	// the holders that the store's answer names, possibly none. A store may call it again when
	// they change. It does not block.
	Queued(holders []Holder)
	// Lost reports that the grant has ended without a release, or that an operator has
	// notified the holder that it must end. Only the first call counts. A store may call it
	// before Acquire has returned. It does not block.
	Lost(cause Cause, err error)
}

// Grant is a store's answer to a successful request.
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
	// SentAt is taken just before the send of the request that set, or confirmed, the
	// store's deadline. After a blocking wait, that is a request sent after the wait.
	SentAt Instant
	// TTL is what the store has granted: at least the requested TTL, or Forever if the grant
	// ends with the process or connection.
	TTL time.Duration
	// Provisional means that the store granted to a queue entry and the client has not confirmed
	// that yet, which only Request.Provisional allows. SentAt is the send of an earlier request
	// about the entry, and TTL may be below the requested TTL. The first Renew confirms the grant,
	// for the requested TTL. A grant that is released before needs no confirmation.
	Provisional bool
	// Slot is the permit's number, 0 to Limit-1, or NoSlot.
	Slot int
	// Handle belongs to the store, which gets it back with the grant.
	Handle any
}

// Last returns the last token of the grant.
func (g *Grant) Last() uint64 { return LastToken(g.Token, g.Tokens) }

// LastToken returns the last of n tokens that begin with first.
func LastToken(first uint64, n int) uint64 { return first + uint64(max(n, 1)) - 1 }

// HasToken reports whether token is one of n tokens that begin with first.
func HasToken(first uint64, n int, token uint64) bool {
	return first <= token && token <= LastToken(first, n)
}

// Renewal is the answer for one grant of a batch: SentAt and TTL as in a Grant, or Err.
type Renewal struct {
	SentAt Instant
	TTL    time.Duration
	// Cause refines an error of code CodeNotHeld.
	Cause Cause
	Err   error
}

// Cause is why a grant ended without its holder's release.
type Cause string

// The causes of a loss.
const (
	// CauseExpired: the lease could not be renewed in time.
	CauseExpired Cause = "expired"
	// CauseTaken: an operator broke the lock, or notified its holder that it must end.
	CauseTaken Cause = "taken"
	// CauseSessionEnded: the session or connection of the grant has ended.
	CauseSessionEnded Cause = "session ended"
	// CauseGone: the store no longer has the grant.
	CauseGone Cause = "gone"
	// CauseSlept: the machine was suspended for longer than the lease.
	CauseSlept Cause = "machine slept"
	// CauseClosed: the Locker was closed while the lock was held.
	CauseClosed Cause = "closed"
)

// Owner describes a requester or holder, for people. No decision depends on it.
type Owner struct {
	// ID is the request's.
	ID string
	// Host and PID name the process. Instance, if set, is the application's own name for
	// it.
	Host     string
	PID      int
	Instance string
	// Reason is text of the caller.
	Reason string
	// Since is when the grant or queue entry was made, by the store's clock if it has one.
	Since time.Time
}

// Client returns a name of the client for people, such as "pid 7 on web-1 (blue)" with an
// instance. A client library of another project that has recorded neither its process nor its
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

// NoteKept is the Note of a Holder that is Kept.
const NoteKept = "released, kept for a while"

// Holder is a grant as an inspection shows it.
type Holder struct {
	Owner
	// Token is the first token of the grant. Tokens is the number of tokens that the grant has
	// reserved; 0 means 1.
	Token  uint64
	Tokens int
	Limit  int
	Slot   int
	// TTL is how long the store keeps the grant without renewal, or Forever. 0 means
	// that it is unknown, as of a client library of another project.
	TTL time.Duration
	// Kept: the client has released the grant, and it stands for its minimum hold.
	Kept bool
	// Note is a remark for operators: NoteKept, "stopped", "end requested", "pid of another PID namespace".
	Note string
}

// Waiter is a queue entry as an inspection shows it.
type Waiter struct {
	Owner
	Limit int
	// Note is a remark for operators, as that of a Holder.
	Note string
}

// State is a name's holders, by rising token, and its waiters, in the order in which the store
// serves them if it has one.
type State struct {
	// Name is empty if Err is set and the broken record does not name its lock.
	Name    string
	Holders []Holder
	Waiters []Waiter
	// Err reports that the record of the name is broken, as in Broken. Holders and Waiters may
	// then be incomplete. Only List sets Err.
	Err error
}
