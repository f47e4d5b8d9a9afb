package zk

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Limits returns the shortest and the longest session timeout of the servers. It begins a
// session with a huge timeout, continues it with a tiny one, and closes it. It repeats that
// until a server answers, every server refuses the connection or has a wrong certificate, or ctx ends.
func Limits(ctx context.Context, cfg Config) (least, most time.Duration, err error) {
	servers := cfg.Servers()
	at := rand.IntN(len(servers))
	var why reason
	refused := 0 // connections in a row, by either side
	for tries := 1; ; tries++ {
		server := servers[(at+tries)%len(servers)]
		var failed error
		if least, most, failed = limits(ctx, cfg, server); failed == nil {
			return least, most, nil
		}
		err = why.choose(err, server, failed)
		_, unverified := errors.AsType[*tls.CertificateVerificationError](failed)
		if refused++; !unverified && !errors.Is(failed, syscall.ECONNREFUSED) {
			refused = 0
		}
		if ctx.Err() != nil || refused == len(servers) {
			return 0, 0, err
		}
		if tries%len(servers) == 0 {
			_ = backoff.Sleep(ctx, retryInterval)
		}
	}
}

// limits is Limits for one server, without a retry.
func limits(ctx context.Context, cfg Config, server string) (least, most time.Duration, err error) {
	session, most, err := requestTimeout(ctx, cfg, server, newSession, maxTimeout, false)
	if err == nil {
		// The new connection takes the session over from the earlier one.
		_, least, err = requestTimeout(ctx, cfg, server, session, time.Millisecond, true)
	}
	return least, most, err
}

// requestTimeout begins or continues a session, and returns the timeout that the server grants. If
// closing is set, it closes the session.
func requestTimeout(ctx context.Context, cfg Config, server string, of identity, timeout time.Duration, closing bool) (session identity, granted time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	nc, hangUp, err := dial(ctx, cfg, server)
	if err != nil {
		return identity{}, 0, err
	}
	defer hangUp()
	r := bufio.NewReader(nc)
	session, granted, err = handshake(nc, r, of, 0, timeout)
	if err == nil && closing {
		_, err = closeSession(nc, r)
	}
	return session, granted, explain(ctx, err)
}

// dial connects to a server. The connection ends with ctx, or when the caller calls hangUp.
func dial(ctx context.Context, cfg Config, server string) (nc net.Conn, hangUp func(), err error) {
	if nc, err = cfg.Dial(ctx, "tcp", server); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	return nc, func() { stop(); nc.Close() }, nil
}

// explain returns the context's error instead of its effect on the connection.
func explain(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// closeSession ends a session, and returns the number of that transaction.
func closeSession(nc net.Conn, r *bufio.Reader) (zxid int64, err error) {
	return exchange(nc, r, opClose, "")
}

// exchange sends one request, which contains path if path is not empty. It returns the number of the
// last transaction that the server has applied before its answer.
func exchange(nc net.Conn, r *bufio.Reader, op int32, path string) (zxid int64, err error) {
	var e encoder
	e.int32(0) // the length of the request, set below
	e.int32(1) // its number on the connection
	e.int32(op)
	if path != "" {
		e.string(path)
	}
	binary.BigEndian.PutUint32(e.b, uint32(len(e.b)-4))
	if _, err := nc.Write(e.b); err != nil {
		return 0, err
	}
	frame, err := readFrame(r, nil)
	if err != nil {
		return 0, err
	}
	d := decoder{b: frame}
	d.int32() // the number of the request
	zxid = d.int64()
	switch code := Error(d.int32()); {
	case d.bad:
		return 0, errMalformed
	case code != 0:
		return 0, code
	}
	return zxid, nil
}

// Accepts reports whether the servers accept a request of size bytes. A server ends the
// connection of a request that is longer than its jute.maxbuffer, as soon as it has read
// the length. Accepts sends the handshake of a session that never existed, padded to size
// bytes. A server that accepts this size answers that the session has expired.
func Accepts(ctx context.Context, cfg Config, size int) (bool, error) {
	servers := cfg.Servers()
	at := rand.IntN(len(servers))
	for tries := 0; ; tries++ {
		server := servers[(at+tries)%len(servers)]
		err := requestUnknownSession(ctx, cfg, server, size)
		switch {
		case err == nil:
			return true, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case errors.Is(err, errUnanswered) && requestUnknownSession(ctx, cfg, server, 0) == nil:
			return false, nil
		case (tries+1)%len(servers) == 0:
			_ = backoff.Sleep(ctx, retryInterval)
		}
	}
}

// retryInterval is the delay after all servers have failed.
const retryInterval = 50 * time.Millisecond

// unknownSession has a number that no server assigns. The high bits of an assigned number are the
// server's number and a time, and are never all 0.
var unknownSession = identity{1, make([]byte, 16)}

// requestUnknownSession requests a session that never existed, in a request of at least size bytes.
func requestUnknownSession(ctx context.Context, cfg Config, server string, size int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	nc, hangUp, err := dial(ctx, cfg, server)
	if err != nil {
		return err
	}
	defer hangUp()
	if _, err = nc.Write(connectRequest(unknownSession, 0, time.Second, size)); err == nil {
		_, err = readFrame(bufio.NewReader(nc), nil)
	}
	return handshakeError(err)
}

// latest begins a session and ends it. It returns the number of the transaction that ended the
// session, which a majority has just committed.
func latest(ctx context.Context, cfg Config, server string) (int64, error) {
	nc, hangUp, err := dial(ctx, cfg, server)
	if err != nil {
		return 0, err
	}
	defer hangUp()
	r := bufio.NewReader(nc)
	if _, _, err := handshake(nc, r, newSession, 0, cfg.Timeout); err != nil {
		return 0, err
	}
	// The end of a local session is not a transaction. So the sync first brings a server that is
	// behind up to the leader's state.
	if _, err := exchange(nc, r, opSync, "/"); err != nil {
		return 0, err
	}
	return closeSession(nc, r)
}
