package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// ShardedSubscriber is implemented by clients that can subscribe to sharded messages, which
// Redisson uses in a Cluster. Without it, waiters of such a layout poll once a second.
type ShardedSubscriber interface {
	// SubscribeSharded is Subscribe, with SSUBSCRIBE at the node of the channel.
	SubscribeSharded(ctx context.Context, channel string, ready func(), got func(message string)) error
}

// unsubscribeDelay is how long a subscription stays after its last listener has left. A name
// under contention usually gets another waiter soon.
const unsubscribeDelay = time.Second

// channels are the channels to which waiters listen, with one subscription for each.
type channels struct {
	s       *Store
	sharded bool
	mu      sync.Mutex
	all     map[string]*channelSub
}

// channelSub is the subscription to one channel.
type channelSub struct {
	listeners map[*listener]struct{}
	ready     bool // messages arrive
	cancel    context.CancelFunc
	timer     *time.Timer // ends the subscription after unsubscribeDelay
}

// listener is one waiter.
type listener struct {
	c          *channels
	channel    string
	wake       chan struct{} // a message has come, or may have been missed
	subscribed chan struct{} // closed when messages arrive
	once       sync.Once
}

// listen returns a listener that the messages of a channel wake.
func (c *channels) listen(channel string) *listener {
	l := &listener{c: c, channel: channel, wake: make(chan struct{}, 1), subscribed: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	sub := c.all[channel]
	if sub == nil {
		sub = &channelSub{listeners: map[*listener]struct{}{}}
		c.all[channel] = sub
		ctx := sub.begin(c.s.ctx)
		c.s.tasks.Go(func() { c.run(ctx, sub, channel) })
	}
	if sub.timer != nil {
		sub.timer.Stop()
		sub.timer = nil
	}
	sub.listeners[l] = struct{}{}
	if sub.ready {
		l.once.Do(func() { close(l.subscribed) })
	}
	return l
}

// awaitSubscribed waits until messages arrive, and reports whether they do before ctx ends.
func (l *listener) awaitSubscribed(ctx context.Context) bool {
	select {
	case <-l.subscribed:
		return true
	case <-ctx.Done():
		return false
	}
}

// Notify calls free when a holder of the name may have released it, in a layout whose
// waiters poll. See [driver.Notifier].
func (s *Store) Notify(ctx context.Context, name string, free func()) {
	if s.peers == nil || s.peers.rules.channel == "" || s.enter() != nil {
		return
	}
	defer s.ops.Done()
	l := s.peers.channels.listen(s.peers.channel(s.peers.key(name)))
	s.tasks.Go(func() {
		defer l.leave()
		for {
			select {
			case <-l.wake:
				free()
			case <-ctx.Done():
				return
			case <-s.ctx.Done():
				return
			}
		}
	})
}

// leave ends a listener. After the last one the subscription stays for unsubscribeDelay.
func (l *listener) leave() {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	sub := c.all[l.channel]
	if sub == nil { // the store is closed
		return
	}
	delete(sub.listeners, l)
	if len(sub.listeners) > 0 || sub.timer != nil {
		return
	}
	sub.timer = time.AfterFunc(unsubscribeDelay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if sub.timer = nil; len(sub.listeners) == 0 {
			sub.ready = false
			sub.cancel()
		}
	})
}

// begin returns the context of a subscription, which sub.cancel ends.
func (sub *channelSub) begin(ctx context.Context) context.Context {
	ctx, sub.cancel = context.WithCancel(ctx)
	return ctx
}

// run keeps a subscription while there are listeners. A new subscription starts only after the
// previous one has ended completely: the UNSUBSCRIBE of the previous one would end the new one.
func (c *channels) run(ctx context.Context, sub *channelSub, channel string) {
	for {
		c.subscribe(ctx, sub, channel)
		c.mu.Lock()
		sub.cancel()
		if len(sub.listeners) == 0 || c.s.ctx.Err() != nil {
			delete(c.all, channel)
			c.mu.Unlock()
			return
		}
		ctx = sub.begin(c.s.ctx)
		c.mu.Unlock()
	}
}

// subscribe subscribes, and subscribes again after an error, until ctx ends.
func (c *channels) subscribe(ctx context.Context, sub *channelSub, channel string) {
	subscribe := c.s.client.Subscribe
	if client, ok := c.s.client.(ShardedSubscriber); ok && c.sharded {
		subscribe = client.SubscribeSharded
	}
	wake := func(ready bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		sub.ready = sub.ready || ready
		for l := range sub.listeners {
			wakeup.Send(l.wake)
			if ready {
				l.once.Do(func() { close(l.subscribed) })
			}
		}
	}
	for failures := 0; ctx.Err() == nil; failures++ {
		_ = subscribe(ctx, channel, func() {
			failures = 0
			wake(true)
		}, func(string) { wake(false) })
		c.mu.Lock()
		sub.ready = false
		c.mu.Unlock()
		_ = backoff.Sleep(ctx, min(time.Second, 5*time.Millisecond<<min(failures, 8)))
	}
}
