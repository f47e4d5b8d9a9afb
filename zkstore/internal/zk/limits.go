package zk

import (
	"bufio"
	"context"
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
			err = goodbye(nc, r)
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

func goodbye(nc net.Conn, r *bufio.Reader) error {
	var e encoder
	e.int32(8)
	e.int32(1)
	e.int32(opClose)
	if _, err := nc.Write(e.b); err != nil {
		return err
	}
	frame, err := readFrame(r, nil)
	if err != nil {
		return err
	}
	d := decoder{b: frame}
	d.int32()
	d.int64()
	if code := Error(d.int32()); d.bad || code != 0 {
		return errors.Join(d.err(), code)
	}
	return nil
}
