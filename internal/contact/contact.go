// Package contact explains why the first request of a client has no answer: the client may have connected to a server
// of another kind.
package contact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// Dial opens a connection.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Contact records what servers have done with the connections of a client. The zero Contact has no record.
type Contact struct {
	accepted atomic.Pointer[string] // the server that has accepted the last connection; nil if there was none
	answered atomic.Bool            // a server has answered a request
}

// Through returns a function that calls dial, which may include a handshake of TLS, and records the result.
func (c *Contact) Through(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		op, failed := errors.AsType[*net.OpError](err)
		switch {
		case !failed || op.Op != "dial":
			c.accepted.Store(&address)
		case ctx.Err() == nil && !overdue(ctx):
			c.accepted.Store(nil)
		}
		return conn, err
	}
}

// overdue reports whether the deadline of ctx has passed. A Dialer looks at the clock, so it may see that before the
// timer of ctx has ended it.
func overdue(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ok && !time.Now().Before(end)
}

// Explain adds to the error of a request what the server has done with its connection. After the first request
// without an error, it returns each error as it is. So a server that worked is not suspected. A nil Contact adds nothing.
func (c *Contact) Explain(err error) error {
	if c == nil || c.answered.Load() {
		return err
	}
	if err == nil {
		c.answered.Store(true)
		return nil
	}
	address := c.accepted.Load()
	switch {
	case address == nil:
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Silent(*address, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%s ended the connection without an answer, so %s: %w", *address, Doubt, err)
	}
	return err
}

// Silent returns the error of a server that has accepted a connection, and has not answered a request in time.
func Silent(address string, err error) error {
	return fmt.Errorf("%s accepted the connection and has not answered in time, so it hangs, or %s: %w", address, Doubt, err)
}

// Doubt names what may be wrong with the address of a server.
const Doubt = "it is another kind of server, or only one side uses TLS"
