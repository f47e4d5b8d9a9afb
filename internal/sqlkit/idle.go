package sqlkit

import (
	"errors"
	"time"
)

// DefaultMaxIdle is how many idle connections a store keeps at most, unless its option
// MaxIdle changes that.
const DefaultMaxIdle = 64

// ErrTooMany is part of a connection's error when the server has too many clients.
var ErrTooMany = errors.New("the server accepts no more clients")

// Idle limits the idle connections of a pool. The pool keeps Min of them ready. It keeps
// up to Max while all of them were needed within the last surplusFor. It uses connections
// last in, first out, so a connection that was idle for longer was not needed. When the
// server has refused a client, the pool keeps no more than Min for a while, so that other
// processes get connections.
//
// A pool over a user's pool keeps none. EndIdle then ends the idle connections of the user's pool; it is nil
// for other pools.
type Idle struct {
	Min, Max int
	EndIdle  func()
	reduced  time.Time // until when no more than Min are kept
}

const (
	// surplusFor is how long an idle connection beyond Min is kept.
	surplusFor = 5 * time.Second
	// reducedFor is how long the limit stays at Min after the server has refused a
	// client.
	reducedFor = 10 * time.Second
)

// current returns how many connections may be idle now.
func (i *Idle) current() int {
	if !i.reduced.IsZero() && time.Now().Before(i.reduced) {
		return i.Min
	}
	return i.Max
}

// dialled lowers the limit for reducedFor if err means that the server accepts no more
// clients.
func (i *Idle) dialled(err error) {
	if errors.Is(err, ErrTooMany) {
		i.reduced = time.Now().Add(reducedFor)
	}
}
