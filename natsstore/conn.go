package natsstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/contact"
	"github.com/holdfast-go/holdfast/internal/gather"
)

// timeout limits each request.
const timeout = 4 * time.Second

// bucket implements [record.Storage], [record.Watcher] and [record.Waker].
type bucket struct {
	name     string
	replicas int
	wakes    string // the subject of notifications

	nc    *nats.Conn
	js    jetstream.JetStream
	reads *gather.Group[answer]
	link  atomic.Pointer[link]
	last  atomic.Pointer[error] // of an attempt to connect; the client forgets it before the next attempt
}

// link is the present connection. Its context ends with the connection, and when the server denies a right.
type link struct {
	context.Context
	end     context.CancelCauseFunc
	checked atomic.Bool // the settings of the bucket
}

// unlinked ends the present requests. The next one checks the bucket again.
func (b *bucket) unlinked(err error) {
	next := &link{}
	next.Context, next.end = context.WithCancelCause(context.Background())
	if last := b.link.Swap(next); last != nil {
		last.end(fmt.Errorf("the connection: %w", err))
	}
}

// connect connects to a server, now or later.
func (b *bucket) connect(o nats.Options) (err error) {
	b.reads = gather.New(maxNames, b.read)
	b.unlinked(nil)
	o.Name, o.MaxReconnect, o.ReconnectBufSize = "holdfast", -1, -1
	// A refused login is an asynchronous error. Before the first connection it is only the last error of the client.
	var rejected atomic.Bool // a login since the last pause
	var opened atomic.Pointer[nats.Conn]
	o.CustomReconnectDelayCB = func(pauses int) time.Duration {
		nc := opened.Load()
		refusal := rejected.Swap(false) || nc != nil && refused(nc.LastError())
		if refusal && pauses > 1 { // otherwise it has ended a connection, and the next login may be right
			return backoff.RefusedPause
		}
		return 100*time.Millisecond + rand.N(100*time.Millisecond)
	}
	o.ReconnectedCB = func(*nats.Conn) { rejected.Store(false) }
	o.Timeout, o.FlusherTimeout, o.PingInterval, o.MaxPingsOut = 2*time.Second, 2*time.Second, 2*time.Second, 1
	o.IgnoreDiscoveredServers, o.IgnoreAuthErrorAbort = true, true
	o.DisconnectedErrCB = func(_ *nats.Conn, err error) { b.unlinked(cmp.Or(err, nats.ErrConnectionClosed)) }
	o.ReconnectErrCB = func(_ *nats.Conn, err error) { b.last.Store(&err) }
	o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			b.unlinked(err)
		}
		if refused(err) {
			rejected.Store(true)
		}
	}
	if b.nc, err = o.Connect(); refused(err) {
		return &driver.Error{Code: driver.CodeRefused, Err: err}
	} else if err != nil {
		first := err
		b.last.Store(&first)
		o.RetryOnFailedConnect = true
		if b.nc, err = o.Connect(); err != nil {
			return &driver.Error{Code: driver.CodeInvalid, Err: err}
		}
	}
	opened.Store(b.nc)
	b.js, err = jetstream.New(b.nc)
	return err
}

// limit returns a context that ends with ctx, the connection, or the timeout.
func (b *bucket) limit(ctx context.Context) (context.Context, func()) {
	link := b.link.Load()
	ctx, end := context.WithTimeout(ctx, timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(link, func() { cancel(context.Cause(link)) })
	return ctx, func() { stop(); cancel(nil); end() }
}

// publish publishes a message in the stream, and returns its number. After a lost connection it first waits for the
// next one, for at most a second.
func (b *bucket) publish(ctx context.Context, subject string, data []byte, o ...jetstream.PublishOpt) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, &driver.Error{Code: driver.CodeUnavailable, Err: err}
	}
	soon, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	for !b.nc.IsConnected() && backoff.Sleep(soon, 5*time.Millisecond) == nil {
	}
	ctx, end := b.limit(ctx)
	defer end()
	if err := b.check(ctx); err != nil {
		return 0, err
	}
	o = append(o, jetstream.WithRetryAttempts(0), jetstream.WithExpectStream("KV_"+b.name))
	ack, err := b.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: data}, o...)
	if err != nil {
		return 0, b.coded(ctx, err, driver.CodeUnknown, subject)
	}
	return ack.Sequence, nil
}

// refused reports whether a server has refused the user.
func refused(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// noReplicas is the code of a server without a cluster that is asked for several replicas.
const noReplicas jetstream.ErrorCode = 10074

// coded returns the error of a request with its code: otherwise, unless the error shows that nothing was written.
// If a server denies a right, the error of the connection has a subject that begins with the given one.
func (b *bucket) coded(ctx context.Context, err error, otherwise driver.Code, subject string) error {
	if driver.CodeOf(err) != driver.CodeUnknown {
		return err
	}
	if errors.Is(err, context.Canceled) {
		err = context.Cause(ctx)
	}
	api, code := &jetstream.APIError{}, otherwise
	errors.As(err, &api)
	switch {
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		code, err = driver.CodeUnavailable, b.nc.LastError()
		if last := b.last.Load(); err == nil && last != nil {
			err = *last
		}
		if refused(err) {
			code = driver.CodeRefused
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "read" && op.Timeout() {
			err = contact.Silent(op.Addr.String(), err)
		}
		err = fmt.Errorf("there is no connection: %w", cmp.Or(err, nats.ErrDisconnected))
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		code = driver.CodeUnavailable
	case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence,
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		code = driver.CodeConflict
	case errors.Is(err, nats.ErrMaxPayload), api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum,
		api.ErrorCode == noReplicas,
		errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject):
		code = driver.CodeRefused
	}
	return &driver.Error{Code: code, Err: err}
}
