package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Recipe is a dialect of the engine [Sessions]: what its locks are made of.
type Recipe interface {
	Faults

	// Begin makes a new link's session ready: nothing that was set elsewhere may end
	// a lock or a wait. It answers who the session is at the server.
	Begin(ctx context.Context, l Link) (Identity, error)
	// Check finds what is wrong with a request before any I/O, and answers the TTL
	// that the server can keep.
	Check(r *driver.Request) (time.Duration, error)
	// Lock asks for a grant, and waits for it if a.Wait. ErrBusy is an answered no
	// after which the session is as it was. After any other error it is closed.
	Lock(ctx context.Context, s *Session, a *Ask) (Got, error)
	// Unlock ends the grant that the session has; false if it turns out to have none.
	Unlock(ctx context.Context, s *Session, a *Ask) (bool, error)
	// Clear leaves nothing of a Lock that was cancelled. After an error the session is
	// closed and asked after.
	Clear(ctx context.Context, s *Session) error
	// Ping proves that the session still has the grant and that the server is still one
	// that may grant, and sets the server's timer to a.Left. Once a.Record is set it also
	// writes down who holds the grant, and then sets a.Told. An error ends the session.
	Ping(ctx context.Context, s *Session, a *Ask) (bool, error)
	// Cause tells why the link of a session that held a grant has ended. It is
	// asked once that is certain, and may look for a moment.
	Cause(s *Session, a *Ask, side *Pool) (driver.Cause, error)

	// Ended tells whether an error of a statement says that the server had ended the
	// session before.
	Ended(err error) bool

	// Cancel ends the statement of a session, asked on another link.
	Cancel(ctx context.Context, side Link, id Identity) error
	// End ends a session, unless it is gone, and tells whether it is.
	End(ctx context.Context, side Link, id Identity) (gone bool, err error)
	// Survey finds grants and waiters: of one name, or of all that begin with the
	// key. Untold are sessions that hold something that they have not written down
	// yet, of whatever name. Since tells a session's grant from the one before.
	Survey(ctx context.Context, side Link, key []byte, all bool) (seen []Sight, untold []Identity, err error)
	// Evict ends the session that holds what was seen, if it still does.
	Evict(ctx context.Context, side Link, seen Sight) error
}

// Rester is a [Recipe] whose sessions say at the server that they may hold something
// which is not written down, and go on saying so between locks that follow each other
// closely. Rest ends that on a session that has been idle for a moment.
type Rester interface {
	Rest(ctx context.Context, s *Session) error
}

// Recorder is a [Recipe] whose sessions may be unable to write down what they hold.
type Recorder interface {
	// Unrecorded returns an error if sessions hold something that they could not write
	// down, so that a Survey cannot show it.
	Unrecorded(ctx context.Context, side Link) error
}

// ErrBusy is a Recipe's answered no.
var ErrBusy = &driver.BusyError{}

// ErrReadOnly is the error of a server that takes no writes, such as a primary that was
// demoted. A connection to it is of no further use: a new one may lead to its successor.
var ErrReadOnly = driver.Errorf(driver.CodeRefused, "the server is read-only, a replica or a demoted primary: give the address of the primary")

// Identity is a session at the server: its number, and what distinguishes it from
// another of the same number.
type Identity struct {
	Conn  int64
	Since string
	// Server is the server that has the session. Where it is set, one session of each
	// server that has grants is pinged every half second, for that server may be demoted
	// without ending a connection.
	Server string
}

// Session is a database session of this store's own.
type Session struct {
	Link
	ID Identity
	// TTL is what the server's session timeout is set to: the recipe's to keep.
	TTL time.Duration
	// Untold: the session says at the server that it may hold something which is not
	// written down. The recipe's to keep; see [Rester].
	Untold bool
	// Turn is 0 and 1 in turn for the grants of the session: the recipe's to keep.
	Turn int

	resting time.Time // since when it is idle
	lease   *lease    // the request it has
}

// Ask is a request as a recipe sees it.
type Ask struct {
	driver.Request
	// Key is the namespace, a NUL and the name.
	Key []byte
	// TTL is what Check has answered.
	TTL time.Duration
	// Owner and Label are who asks.
	Owner driver.Owner
	Label Label
	// Waiting tells that the answer was no and that the recipe will ask again by
	// itself; Wait only.
	Waiting func()
	// Told: it is written down who holds. Record: it shall be, since the grant has stood
	// for a while; a lock that is held for a moment is not worth that.
	Told, Record bool
	// Left is how much of the TTL is left when a ping is sent: all of it in a renewal.
	Left time.Duration
	// Token and Slot are the grant's, once there is one.
	Token uint64
	Slot  int
	// Lockname is what the recipe calls the lock at the server, once it has made that
	// up: the recipe's to keep.
	Lockname string
}

// Got is a recipe's yes.
type Got struct {
	Token uint64
	Slot  int
}

// Sight is a grant, if it has a token or is Foreign, or a waiter, as the server
// shows it.
type Sight struct {
	Identity
	Label
	Granted bool
	Token   uint64
	Slot    int
	Since   time.Time
	// Left is how much of its TTL is left.
	Left time.Duration
	// Note is for people; a sight that is not holdfast's has one.
	Note string
}
