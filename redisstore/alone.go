package redisstore

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/bound"
)

// alone is a connection for whoever asks while nobody else does. The request is
// written and its answer read on the caller's own goroutine, which saves the
// hand-overs to and from the two goroutines of a connection that is shared: more
// than half of the client's part in the time that one lock takes.
//
// It must not cost what a shared connection gives. A request whose context ends
// does not wait for the answer: the connection is closed, which nobody else minds.
// A connection that the server has closed is noticed before it is used. It is made
// in the background, so nobody waits for that either, and only for a client that
// asks again and again.
type alone struct {
	option rueidis.ClientOption

	mu     sync.Mutex
	state  aloneState
	asked  int // since it was off
	needed int // that many, until it is made
	client rueidis.Client
	conn   *watched // the latest that was dialled
	tasks  sync.WaitGroup
}

type aloneState int

const (
	aloneOff aloneState = iota
	aloneMaking
	aloneReady
	aloneBusy
	aloneClosed
)

// aloneAfter is how often a client has asked alone before it gets the connection.
// After an attempt that failed it has to ask eight times as often.
const aloneAfter = 4

func newAlone(o rueidis.ClientOption) *alone {
	a := &alone{option: o, needed: aloneAfter}
	// Whether the connection stands is seen before each use. The client's own question
	// after an idle time would hold it up where the server does not answer.
	a.option.Dialer.KeepAlive = -1
	a.option.Dialer.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: askIdle, Interval: askIdle}
	dial := o.DialCtxFn
	a.option.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, address, d, t)
		if err == nil {
			a.mu.Lock()
			a.conn = conn.(*watched)
			a.mu.Unlock()
		}
		return conn, err
	}
	return a
}

// take is the client, if its connection stands and nobody uses it. give follows.
func (a *alone) take() (rueidis.Client, *watched, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.state {
	case aloneReady:
		if a.conn.socket.quiet() {
			a.state = aloneBusy
			return a.client, a.conn, true
		}
		a.make()
	case aloneOff:
		if a.asked++; a.asked >= a.needed {
			a.make()
		}
	}
	return nil, nil, false
}

// give ends the use. A connection in doubt is made anew.
func (a *alone) give(broken bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.state != aloneBusy:
	case broken:
		a.make()
	default:
		a.state = aloneReady
	}
}

// make makes the connection in the background. The mutex is held.
func (a *alone) make() {
	if a.conn != nil {
		_ = a.conn.Close()
	}
	a.state = aloneMaking
	a.tasks.Go(func() {
		a.mu.Lock()
		client := a.client
		a.mu.Unlock()
		var err error
		if client == nil {
			client, err = rueidis.NewClient(a.option)
		}
		if err == nil {
			// A connection that was closed is made anew by the first who asks, perhaps
			// after one failure.
			for range 2 {
				ctx, cancel := context.WithTimeout(context.Background(), dialBound)
				err = client.Do(ctx, client.B().Ping().Build()).Error()
				cancel()
				if err == nil || a.isClosed() {
					break
				}
			}
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.client == nil {
			a.client = client // also one that has failed: Close gives it back
		}
		switch {
		case a.state == aloneClosed:
		case err == nil && a.conn != nil && a.conn.socket.quiet():
			a.state = aloneReady
		default:
			a.state, a.asked, a.needed = aloneOff, 0, min(8*a.needed, 1<<20)
		}
	})
}

func (a *alone) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state == aloneClosed
}

// eval runs a script, unless somebody else is at it or there is no connection.
func (a *alone) eval(ctx context.Context, s *Script, keys, args []string) (v []string, done bool, err error) {
	client, conn, ok := a.take()
	if !ok {
		return nil, false, nil
	}
	// The client of one connection keeps the deadline by itself.
	broken := false
	if watched := bound.Cancellation(ctx); watched.Done() == nil {
		v, err = evaluate(ctx, client, s, keys, args)
	} else {
		stop := context.AfterFunc(watched, func() { _ = conn.Close() })
		v, err = evaluate(ctx, client, s, keys, args)
		broken = !stop()
	}
	if err != nil && !broken {
		_, answered := err.(ServerError)
		broken = !answered
	}
	a.give(broken)
	return v, true, err
}

func (a *alone) close() {
	a.mu.Lock()
	a.state = aloneClosed
	if a.conn != nil {
		_ = a.conn.Close()
	}
	a.mu.Unlock()
	a.tasks.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		a.client.Close()
	}
}
