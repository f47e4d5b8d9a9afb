package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Recipe adapts the engine [Sessions] to one kind of database lock.
type Recipe interface {
	Faults

	// Begin prepares the session of a new link: no earlier setting may end a lock or a
	// wait. It returns the identity of the session at the server.
	Begin(ctx context.Context, l Link) (Identity, error)
	// Check returns the TTL that the server can keep, or an error for a request that the
	// recipe cannot serve. The engine calls it before any I/O.
	Check(r *driver.Request) (time.Duration, error)
	// Lock requests a grant, and waits for it if a.Wait. ErrBusy means that the lock is
	// held and that the session is as before. After ErrWaitAgain the engine calls Lock again. After any other error the
	// engine closes the session, and waits for its end at the server if the request waits and its context has ended.
	Lock(ctx context.Context, s *Session, a *LockRequest) (Got, error)
	// Pass replaces the session's exclusive grant old by a grant of next, which has the same name and TTL,
	// unless another session waits for the lock: waiters announce themselves; see [Sessions]. Pass does not wait. After an
	// error the engine closes the session.
	Pass(ctx context.Context, s *Session, old, next *LockRequest) (Got, PassOutcome, error)
	// Unlock ends the session's grant. It returns false if the session has none.
	Unlock(ctx context.Context, s *Session, a *LockRequest) (bool, error)
	// Ping proves that the session still has the grant and that the server may still
	// grant, and sets the server's timer to a.Left. If a.Record is set it also records the
	// holder, and then sets a.Recorded. An error ends the session.
	Ping(ctx context.Context, s *Session, a *LockRequest) (bool, error)
	// Cause returns why the link of a session with a grant has ended. It is called after
	// that end, and may take a moment.
	Cause(s *Session, a *LockRequest, side *Pool) (driver.Cause, error)

	// Ended reports whether an error of a statement proves that the server had ended the
	// session before.
	Ended(err error) bool

	// Runs reports whether a session runs a statement. It uses another link.
	Runs(ctx context.Context, side Link, id Identity) (bool, error)
	// End ends a session, unless it is gone, and reports whether it is gone.
	End(ctx context.Context, side Link, id Identity) (gone bool, err error)
	// Survey returns grants and waiters: of one name, or of all that begin with the key. It
	// returns a grant without a token until a Ping has recorded it. A [Prober] may omit it until
	// then, and every recipe in a survey of all. missing is an error if sessions could not record their grants, so that seen is not complete.
	Survey(ctx context.Context, side Link, key []byte, all bool) (seen []Sight, missing, err error)
	// Evict ends the session of a grant that was seen, if it still has that grant.
	Evict(ctx context.Context, side Link, seen Sight) error
}

// Prober is a [Recipe] whose Survey omits grants that are not recorded.
type Prober interface {
	// Locked reports whether a session has the lock of a key.
	Locked(ctx context.Context, side Link, key []byte) (bool, error)
}

// ErrBusy is a Recipe's error for a lock that is held.
var ErrBusy = &driver.BusyError{}

// ErrWaitAgain is a Recipe's error for a statement that has waited for as long as a statement may wait.
var ErrWaitAgain = driver.Errorf(driver.CodeUnavailable, "the lock is held")

// ErrReadOnly is the error of a server that accepts no writes, such as a demoted primary. A
// connection to it is useless: a new one may lead to its successor.
var ErrReadOnly = driver.Errorf(driver.CodeRefused, "the server is read-only, a replica or a demoted primary: give the address of the primary")

// Identity identifies a session at the server: its number, and what distinguishes it from
// another session with the same number.
type Identity struct {
	Conn  int64
	Since string
	// Server is the server that has the session. The recipe sets it if the server may be
	// demoted without ending a connection. The engine then pings one session of each server
	// with grants every half second.
	Server string
}

// Session is a database session of this client.
type Session struct {
	Link
	ID Identity
	// TTL is the present value of the server's session timeout. The recipe sets it.
	TTL time.Duration

	lease   *lease // the request that uses the session
	limited bool   // it is one of the sessions that the engine limits
	alarm   alarm  // calls tend
}

// LockRequest is a request for a lock, as a recipe gets it.
type LockRequest struct {
	driver.Request
	// Key is the namespace, a NUL and the name. Tokens of the Request is at least 1.
	Key []byte
	// TTL is the result of Check.
	TTL time.Duration
	// Owner and Label describe the requester.
	Owner driver.Owner
	Label Label
	// Waiting is a function that the recipe calls when the lock is held and the recipe
	// polls for it. It is set with Wait only.
	Waiting func()
	// The recipe sets Recorded when it has recorded the holder. The engine sets Record when
	// the grant has stood for recordAfter: a record of a short lock costs more than it is
	// worth.
	Recorded, Record bool
	// Durable reports that a counter reserves the tokens, and commits them; see DurableToken.
	Durable bool
	// Left is the rest of the TTL when a ping is sent: all of it in a renewal.
	Left time.Duration
	// Token, Reserved and Slot are those of the grant, once there is one: its first token,
	// how many it has, and its slot.
	Token    uint64
	Reserved int
	Slot     int
	// Lockname is the name of the database lock. The recipe sets it.
	Lockname string
}

// Got is a grant of a recipe: its first token, how many it has (0 means 1), and its slot.
type Got struct {
	Token  uint64
	Tokens int
	Slot   int
}

// Clocked returns an exclusive grant, with tokens from two readings of the server's clock in
// microseconds. The session had the lock during both. The tokens are the microseconds before the
// second reading.
func (a *LockRequest) Clocked(first, second int64) Got {
	return Got{Token: uint64(first), Tokens: int(min(max(second-first, 1), int64(a.Tokens))), Slot: driver.NoSlot}
}

// Sight is a grant or a waiter as the server shows it.
type Sight struct {
	Identity
	Label
	Granted bool
	Token   uint64 // 0 if the grant is not recorded
	Slot    int
	Since   time.Time
	// Left is the rest of its TTL.
	Left time.Duration
	// Note is text for people. A lock of another program has one.
	Note string
	// Hidden reports that the server does not show this user whose lock it is.
	Hidden bool
	// Broken is the error of a record that no client has written. Only the label's key is valid then.
	Broken error
}
