package redisstore

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/internal/deadline"
)

// alone is a connection for a client that has one request at a time. The caller's own goroutine
// writes the request and reads its answer. A shared connection needs two more goroutines. The
// switches to and from them take more than half of the time that the client needs for a lock.
//
// The connection keeps the advantages of a shared one. A request whose context ends does not wait
// for the answer: it closes the connection, which no other request uses. Before each use the client
// checks whether the server has closed the connection. The client opens the connection in the
// background, and only after several requests, so that no request waits for it.
type alone struct {
	option rueidis.ClientOption

	mu       sync.Mutex
	state    aloneState
	requests int // since the state became aloneOff
	needed   int // the number of requests after which the connection is opened
	client   rueidis.Client
	conn     *watched // the latest connection
	tasks    sync.WaitGroup
}

// aloneState is the state of an alone.
type aloneState int

const (
	aloneOff     aloneState = iota // without a connection
	aloneOpening                   // open runs
	aloneReady                     // the connection is open and unused
	aloneBusy                      // a request uses the connection
	aloneClosed
)

// aloneAfter is the number of requests after which the client opens the connection. Each failed
// attempt multiplies it by eight.
const aloneAfter = 4

func newAlone(o rueidis.ClientOption) *alone {
	a := &alone{option: o, needed: aloneAfter}
	// take checks the connection before each use. A keepalive command of rueidis could delay a
	// request while the server does not answer it.
	a.option.Dialer.KeepAlive = -1
	a.option.Dialer.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveIdle}
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

// take returns the client if its connection is open and no other request uses it. The caller then
// calls give.
func (a *alone) take() (rueidis.Client, *watched, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.state {
	case aloneReady:
		if a.conn.socket.quiet() {
			a.state = aloneBusy
			return a.client, a.conn, true
		}
		a.open()
	case aloneOff:
		if a.requests++; a.requests >= a.needed {
			a.open()
		}
	}
	return nil, nil, false
}

// give ends the use of the connection, and opens a new one if it is broken.
func (a *alone) give(broken bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.state != aloneBusy:
	case broken:
		a.open()
	default:
		a.state = aloneReady
	}
}

// open opens the connection in the background. The caller holds the mutex.
func (a *alone) open() {
	if a.conn != nil {
		_ = a.conn.Close()
	}
	a.state = aloneOpening
	a.tasks.Go(func() {
		a.mu.Lock()
		client := a.client
		a.mu.Unlock()
		var err error
		if client == nil {
			client, err = rueidis.NewClient(a.option)
		}
		if err == nil {
			// Rueidis reopens a closed connection at the next command, perhaps after one
			// failure.
			for range 2 {
				ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
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
			a.client = client // also after an error, so that close closes it
		}
		switch {
		case a.state == aloneClosed:
		case err == nil && a.conn != nil && a.conn.socket.quiet():
			a.state = aloneReady
		default:
			a.state, a.requests, a.needed = aloneOff, 0, min(8*a.needed, 1<<20)
		}
	})
}

func (a *alone) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state == aloneClosed
}

// eval runs a script if the connection is open and no other request uses it. done reports whether
// it did.
func (a *alone) eval(ctx context.Context, s *Script, keys, args []string) (v []string, done bool, err error) {
	client, conn, ok := a.take()
	if !ok {
		return nil, false, nil
	}
	// For a request that has the connection alone, rueidis respects the deadline.
	broken := false
	if caller := deadline.Cancellation(ctx); caller.Done() == nil {
		v, err = evaluate(ctx, client, s, keys, args)
	} else {
		stop := context.AfterFunc(caller, func() { _ = conn.Close() })
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
