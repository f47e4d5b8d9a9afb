package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// keepalives is the stream on which a store renews its leases. With authentication each new
// stream is a login, which is expensive for the server, so the stream exists as long as it
// answers.
type keepalives struct {
	streams calls.Shared[struct{}, *keepaliveStream]
	// silentStreams is how many streams in a row were closed because they did not answer.
	silentStreams atomic.Int32
}

// keepaliveStream matches answers to requests by their order: the server answers the requests
// of one stream one after another.
type keepaliveStream struct {
	etcdserverpb.Lease_LeaseKeepAliveClient
	parent *keepalives
	end    context.CancelFunc

	mu      sync.Mutex // also keeps Sends in the order of pending
	pending []*keepaliveRequest
	err     error // why the stream has ended
	closed  bool  // the stream accepts no more requests
}

type keepaliveRequest struct {
	lease clientv3.LeaseID
	sent  driver.Instant
	// renewed handles an answer that the lease exists, even if the caller has left.
	renewed func(sent driver.Instant)
	// overdue ends the stream if no answer comes; it is nil for the first request. An answer within
	// prompt resets the count of silent streams.
	overdue *time.Timer
	prompt  time.Duration
	sharedCall
}

// openTimeout limits the opening of a stream, including its login.
const openTimeout = 15 * time.Second

var (
	errStreamEnded = errors.New("the stream of keepalives has ended")
	errUnordered   = errors.New("the stream of keepalives is out of order")
	// errProxy is the error of a stream through `etcd grpc-proxy`. The first request of each stream is
	// for a lease that never exists. A server answers it first, with a TTL of 0. The proxy answers it
	// with -1, or answers later requests before it.
	errProxy = &driver.Error{Code: driver.CodeRefused, Err: errors.New("etcdstore: the endpoint is an `etcd grpc-proxy`, which may answer a keepalive with an earlier renewal of the lease: use the addresses of the members")}
)

// keepAlive renews a lease. For each answer it calls renewed with the time at which that request
// was sent. A stream that was open before may be broken, or its login too old. A request that fails
// on such a stream is sent again on a new one.
func (s *store) keepAlive(ctx context.Context, lease clientv3.LeaseID, timeout time.Duration, renewed func(driver.Instant)) error {
	for {
		k, opened, err := s.keepaliveStream(ctx)
		if err != nil {
			return err
		}
		err = k.renew(ctx, lease, timeout, renewed)
		if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) || opened || ctx.Err() != nil {
			return err
		}
	}
}

// keepaliveStream returns the open stream, or a new one, and whether this call has opened it. The
// opening continues when ctx ends, as other calls may wait for it, and an abandoned login has
// cost the server its time anyway.
func (s *store) keepaliveStream(ctx context.Context) (_ *keepaliveStream, opened bool, _ error) {
	for _, k := range s.keepalives.streams.Made() {
		if k.usable() {
			return k, false, nil
		}
	}
	k, err := s.keepalives.streams.Get(ctx, struct{}{})
	return k, true, err
}

func (s *store) openKeepalives(context.Context, struct{}) (*keepaliveStream, error) {
	ctx, end := context.WithCancel(clientv3.WithRequireLeader(s.calls.Ctx))
	tooLong := time.AfterFunc(openTimeout, end)
	stream, err := s.leases.LeaseKeepAlive(ctx)
	if !tooLong.Stop() && err == nil {
		err = errStreamEnded
	}
	if err != nil {
		end()
		return nil, clientv3.ContextError(s.calls.Ctx, err)
	}
	k := &keepaliveStream{Lease_LeaseKeepAliveClient: stream, parent: &s.keepalives, end: end}
	first := &keepaliveRequest{lease: clientv3.NoLease, renewed: func(driver.Instant) {}, sent: driver.Now(), sharedCall: sharedCall{done: make(chan struct{})}}
	k.pending = append(k.pending, first)
	if err := k.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(first.lease)}); err != nil {
		end() // receive reports the reason
	}
	s.calls.Tasks.Go(k.receive) // Tasks already counts this goroutine
	return k, nil
}

func (k *keepaliveStream) usable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.closed
}

// renew sends one keepalive and waits for its answer until ctx ends. A stream that does not answer
// within timeout is closed, even if the caller has left: the member may have stopped. The timeout
// doubles with each stream that was silent before, since more logins do not help an overloaded
// server.
func (k *keepaliveStream) renew(ctx context.Context, lease clientv3.LeaseID, timeout time.Duration, renewed func(driver.Instant)) error {
	r := &keepaliveRequest{lease: lease, renewed: renewed, prompt: timeout / 2, sharedCall: sharedCall{done: make(chan struct{})}}
	timeout <<= min(k.parent.silentStreams.Load(), 2)
	k.mu.Lock()
	if k.closed {
		defer k.mu.Unlock()
		return k.err
	}
	r.overdue = time.AfterFunc(timeout, func() {
		select {
		case <-r.done:
		default:
			k.parent.silentStreams.Add(1)
			k.fail(fmt.Errorf("a keepalive was not answered within %s", timeout))
		}
	})
	k.pending = append(k.pending, r)
	r.sent = driver.Now()
	err := k.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(lease)})
	k.mu.Unlock()
	if err != nil {
		k.end() // receive reports the reason
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fail ends a stream for a reason that the stream itself does not report.
func (k *keepaliveStream) fail(why error) {
	k.end() // makes a Send that holds the mutex return
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = why
	}
	k.closed = true
}

// receive assigns answers to requests until the stream ends.
func (k *keepaliveStream) receive() {
	defer k.end()
	for {
		answer, err := k.Recv()
		k.mu.Lock()
		switch {
		case err != nil:
		case answer.TTL < 0:
			err = errProxy
		case len(k.pending) == 0:
			err = errUnordered
		case k.pending[0].lease == clientv3.NoLease && answer.ID != 0:
			err = errProxy
		case k.pending[0].lease != clientv3.LeaseID(answer.ID):
			err = errUnordered
		}
		if err != nil {
			if k.err == nil {
				k.err = rpctypes.Error(err)
			}
			k.closed = true
			for _, r := range k.pending {
				r.answer(k.err)
			}
			k.pending = nil
			k.mu.Unlock()
			return
		}
		r := k.pending[0]
		k.pending = k.pending[1:]
		k.mu.Unlock()
		if elapsed, _ := r.sent.Elapsed(); elapsed < r.prompt {
			k.parent.silentStreams.Store(0)
		}
		if answer.TTL <= 0 {
			r.answer(rpctypes.ErrLeaseNotFound)
		} else {
			r.renewed(r.sent)
			r.answer(nil)
		}
	}
}

func (r *keepaliveRequest) answer(err error) {
	if r.overdue != nil {
		r.overdue.Stop()
	}
	r.err = err
	close(r.done)
}
