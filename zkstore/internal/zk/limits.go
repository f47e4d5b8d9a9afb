package zk

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"time"
)

// Limits asks a server which session timeouts it gives: with one session that is
// begun with a huge timeout, continued with a tiny one, and closed. It goes on until
// one answers or ctx ends.
func Limits(ctx context.Context, cfg Config) (least, most time.Duration, err error) {
	at := rand.IntN(len(cfg.Servers))
	var why reason
	for tries := 1; ; tries++ {
		server := cfg.Servers[(at+tries)%len(cfg.Servers)]
		var failed error
		if least, most, failed = limits(ctx, cfg, server); failed == nil {
			return least, most, nil
		}
		err = why.of(err, server, failed)
		if ctx.Err() != nil {
			return 0, 0, err
		}
		if tries%len(cfg.Servers) == 0 {
			pause(ctx, 50*time.Millisecond)
		}
	}
}

func limits(ctx context.Context, cfg Config, server string) (least, most time.Duration, err error) {
	var id int64
	passwd := make([]byte, 16)
	// The connections of one session: the later takes it over from the earlier.
	ask := func(timeout time.Duration, closing bool) (got time.Duration, err error) {
		trying, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		nc, err := cfg.Dial(trying, "tcp", server)
		if err != nil {
			return 0, err
		}
		defer nc.Close()
		stop := context.AfterFunc(trying, func() { nc.Close() })
		defer stop()
		r := bufio.NewReader(nc)
		if _, id, passwd, got, err = handshake(nc, r, id, passwd, 0, timeout); err != nil {
			return 0, explain(trying, err)
		}
		if id == 0 || got <= 0 {
			return 0, ErrExpired
		}
		if closing {
			_, err = goodbye(nc, r)
		}
		return got, explain(trying, err)
	}
	if most, err = ask(1<<30*time.Millisecond, false); err != nil {
		return 0, 0, err
	}
	least, err = ask(time.Millisecond, true)
	return least, most, err
}

// explain prefers the context's end to what it did to the connection.
func explain(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// goodbye ends a session, and returns the number of the transaction that did.
func goodbye(nc net.Conn, r *bufio.Reader) (zxid int64, err error) {
	return exchange(nc, r, opClose, "")
}

// exchange does one request, with a path if it has one, and returns the number of the last
// transaction that the server had done when it answered.
func exchange(nc net.Conn, r *bufio.Reader, op int32, path string) (zxid int64, err error) {
	var e encoder
	e.int32(0) // its length, below
	e.int32(1)
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
	d.int32()
	zxid = d.int64()
	if code := Error(d.int32()); d.bad || code != 0 {
		return 0, errors.Join(d.err(), code)
	}
	return zxid, nil
}

// Accepts reports whether the servers accept a request of that size. A server ends the
// connection of one that is longer than its jute.maxbuffer, as soon as it has read the
// length. It is asked with the beginning of a session that never was, filled up to the
// size: which it refuses by an answer, if it reads it.
func Accepts(ctx context.Context, cfg Config, size int) (bool, error) {
	at := rand.IntN(len(cfg.Servers))
	for tries := 0; ; tries++ {
		server := cfg.Servers[(at+tries)%len(cfg.Servers)]
		err := greet(ctx, cfg, server, size)
		switch {
		case err == nil:
			return true, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case errors.Is(err, errNoWelcome) && greet(ctx, cfg, server, 0) == nil:
			return false, nil
		case (tries+1)%len(cfg.Servers) == 0:
			pause(ctx, 50*time.Millisecond)
		}
	}
}

// noSession is the number of a session that never is: a server's own number is the first
// byte of those that it begins, and 0 is no such number for long.
const noSession = 1

// greet asks a server for a session that never was, in a request of at least that size.
func greet(ctx context.Context, cfg Config, server string, size int) error {
	trying, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	nc, err := cfg.Dial(trying, "tcp", server)
	if err != nil {
		return err
	}
	defer nc.Close()
	stop := context.AfterFunc(trying, func() { nc.Close() })
	defer stop()
	b := greeting(noSession, make([]byte, 16), 0, time.Second, size)
	if _, err = nc.Write(b); err == nil {
		_, err = readFrame(bufio.NewReader(nc), nil)
	}
	return noWelcome(err)
}

// latest returns the number of a transaction that a majority has just committed: the end of
// a session that is begun for it.
func latest(ctx context.Context, cfg Config, server string) (int64, error) {
	nc, err := cfg.Dial(ctx, "tcp", server)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	r := bufio.NewReader(nc)
	_, id, _, _, err := handshake(nc, r, 0, make([]byte, 16), 0, cfg.Timeout)
	if err != nil {
		return 0, err
	}
	if id == 0 {
		return 0, ErrExpired
	}
	// Where sessions are a server's own affair until they need more, its end is no
	// transaction: the sync brings even a server that lags behind up to the leader.
	if _, err := exchange(nc, r, opSync, "/"); err != nil {
		return 0, err
	}
	return goodbye(nc, r)
}
