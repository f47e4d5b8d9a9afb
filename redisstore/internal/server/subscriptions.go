package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pingInterval is how long a connection with subscriptions may be silent before the client sends a PING.
const pingInterval = 2 * time.Second

// subscriptions are subscriptions to channels that share a connection.
type subscriptions struct {
	c     *goredisClient
	key   subscriptionKey
	began context.Context // ends when the connection is outdated

	mu     sync.Mutex
	pubsub *redis.PubSub
	all    map[string]*subscriber
	err    error // why the connection has ended, or will not be used again
}

// subscriber has the functions of one Subscribe.
type subscriber struct {
	ready func()
	got   func(string)
	ended chan error // gets the reason if the subscription ends
}

// subscriptionKey is the connection for subscriptions: of the client or, for sharded channels, of one
// server.
type subscriptionKey struct {
	server  redis.UniversalClient
	sharded bool
}

// Subscribe listens on a connection that all channels share.
func (c *goredisClient) Subscribe(ctx context.Context, channel string, ready func(), got func(string)) error {
	return c.subscribe(ctx, subscriptionKey{c.client, false}, channel, ready, got)
}

// SubscribeSharded listens on a connection to the node that the channel belongs to.
func (c *goredisClient) SubscribeSharded(ctx context.Context, channel string, ready func(), got func(string)) error {
	server, err := c.primaryOf(ctx, channel)
	if err != nil {
		return err
	}
	err = c.subscribe(ctx, subscriptionKey{server, true}, channel, ready, got)
	if ctx.Err() == nil {
		c.cluster.ReloadState(ctx) // the channel may belong to another node
	}
	return err
}

func (c *goredisClient) subscribe(ctx context.Context, key subscriptionKey, channel string,
	ready func(), got func(string)) error {
	c.mu.Lock()
	if c.calls.Stopped() {
		c.mu.Unlock()
		return errClientClosed
	}
	s := c.subscriptions[key]
	if s == nil || s.began.Err() != nil {
		s = &subscriptions{c: c, key: key, began: c.connections.begin(), all: map[string]*subscriber{}}
		c.subscriptions[key] = s
	}
	c.mu.Unlock()
	return s.listen(ctx, channel, &subscriber{ready, got, make(chan error, 1)})
}

var (
	errUnsubscribed = errors.New("the connection for subscriptions has been closed, because nothing used it")
	errChannelMoved = errors.New("the channel belongs to another server")
)

// listen subscribes to a channel until ctx or the subscription ends, and returns the reason.
func (s *subscriptions) listen(ctx context.Context, channel string, to *subscriber) error {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return s.err
	}
	first := s.pubsub == nil
	if first {
		s.pubsub = s.key.server.Subscribe(ctx)
	}
	s.all[channel] = to
	s.mu.Unlock()
	subscribe, unsubscribe := s.pubsub.Subscribe, s.pubsub.Unsubscribe
	if s.key.sharded {
		subscribe, unsubscribe = s.pubsub.SSubscribe, s.pubsub.SUnsubscribe
	}
	err := subscribe(ctx, channel)
	if err == nil && first && !s.c.calls.Go(s.receive) {
		err = errClientClosed
	}
	if err != nil {
		s.end(convert(err))
	}
	select {
	case err = <-to.ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	delete(s.all, channel)
	last := len(s.all) == 0
	if last && s.err == nil {
		s.err = errUnsubscribed
	}
	s.mu.Unlock()
	if last {
		s.end(errUnsubscribed)
	} else {
		_ = unsubscribe(context.WithoutCancel(ctx), channel)
	}
	return err
}

// end closes the connection, and ends all subscriptions.
func (s *subscriptions) end(err error) {
	s.c.mu.Lock()
	if s.c.subscriptions[s.key] == s {
		delete(s.c.subscriptions, s.key)
	}
	s.c.mu.Unlock()
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	all := s.all
	s.all = nil
	s.mu.Unlock()
	for _, to := range all {
		to.ended <- err
	}
	_ = s.pubsub.Close()
}

// receive passes the events of the connection to the subscribers, until the connection ends or is
// outdated.
func (s *subscriptions) receive() {
	stop := context.AfterFunc(s.began, func() { _ = s.pubsub.Close() })
	defer stop()
	pinged := false
	for {
		m, err := s.pubsub.ReceiveTimeout(s.began, pingInterval)
		if timeout, ok := errors.AsType[net.Error](err); err != nil && ok && timeout.Timeout() && !pinged {
			if err = s.pubsub.Ping(s.began); err == nil {
				pinged = true
				continue
			}
		}
		if err != nil {
			s.end(convert(err))
			return
		}
		pinged = false
		switch m := m.(type) {
		case *redis.Subscription:
			to := s.subscriber(m.Channel, m.Kind == "sunsubscribe")
			switch {
			case to == nil:
			case m.Kind == "sunsubscribe": // by the server
				to.ended <- errChannelMoved
			case m.Kind != "unsubscribe":
				to.ready()
			}
		case *redis.Message:
			if to := s.subscriber(m.Channel, false); to != nil {
				to.got(m.Payload)
			}
		}
	}
}

// subscriber returns the subscriber to a channel, or nil. If remove is set, it removes the subscriber.
func (s *subscriptions) subscriber(channel string, remove bool) *subscriber {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.all[channel]
	if remove {
		delete(s.all, channel)
	}
	return to
}
