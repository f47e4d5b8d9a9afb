package layouts

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// unsubscribeDelay is how long a subscription stays after its last waiter has left. A name
// under contention usually gets another waiter soon.
const unsubscribeDelay = time.Second

// channels are the channels to which waiters listen, with one subscription for each. In a Cluster a channel has
// a sharded subscription, too. A release of Redisson sends a sharded message, or a plain one: before version 3.22,
// or if sharded subscriptions are off.
type channels struct {
	srv   *server.Server
	kinds []server.Subscribe
	mu    sync.Mutex
	all   map[string]*subscription
}

// subscription is the subscription to one channel.
type subscription struct {
	waiters map[chan struct{}]struct{}
	ready   int // the number of kinds by which messages arrive
	ctx     context.Context
	cancel  context.CancelFunc
	timer   *time.Timer // ends the subscription after unsubscribeDelay
}

func newChannels(s *server.Server) *channels {
	c := &channels{srv: s, kinds: []server.Subscribe{s.Client.Subscribe}, all: map[string]*subscription{}}
	if c.sharded() {
		c.kinds = append(c.kinds, s.Client.SubscribeSharded)
	}
	return c
}

// sharded reports whether a release sends a sharded message, too.
func (c *channels) sharded() bool { return c.srv.Client.Mode() == server.Cluster }

// listen returns a channel that wakes a waiter: at once if messages arrive, when they begin to arrive, and
// when one comes. The waiter calls leave when it ends.
func (c *channels) listen(channel string) (wake chan struct{}, leave func()) {
	wake = make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	sub := c.all[channel]
	if sub == nil {
		sub = &subscription{waiters: map[chan struct{}]struct{}{}}
		c.all[channel] = sub
		sub.begin(c.srv.Ctx)
		c.srv.Go(func() { c.run(sub, channel) })
	}
	if sub.timer != nil {
		sub.timer.Stop()
		sub.timer = nil
	}
	sub.waiters[wake] = struct{}{}
	if sub.ready == len(c.kinds) {
		wakeup.Send(wake)
	}
	return wake, func() { c.leave(sub, wake) }
}

// leave ends a waiter. After the last one the subscription stays for unsubscribeDelay.
func (c *channels) leave(sub *subscription, wake chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(sub.waiters, wake)
	if len(sub.waiters) > 0 || sub.timer != nil {
		return
	}
	sub.timer = time.AfterFunc(unsubscribeDelay, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if sub.timer = nil; len(sub.waiters) == 0 {
			sub.cancel()
		}
	})
}

// subscribed reports whether this client receives the messages of a channel.
func (c *channels) subscribed(channel string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	sub := c.all[channel]
	return sub != nil && sub.ready > 0
}

// begin makes the context of a subscription, which sub.cancel ends.
func (sub *subscription) begin(ctx context.Context) { sub.ctx, sub.cancel = context.WithCancel(ctx) }

// wake wakes all waiters.
func (sub *subscription) wake() {
	for wake := range sub.waiters {
		wakeup.Send(wake)
	}
}

// run keeps a subscription while there are waiters. A new subscription starts only after the
// previous one has ended completely: the UNSUBSCRIBE of the previous one would end the new one.
func (c *channels) run(sub *subscription, channel string) {
	for {
		c.mu.Lock()
		ctx := sub.ctx
		c.mu.Unlock()
		var kinds sync.WaitGroup
		for _, subscribe := range c.kinds {
			kinds.Go(func() { c.keep(ctx, subscribe, sub, channel) })
		}
		kinds.Wait()
		c.mu.Lock()
		if len(sub.waiters) == 0 || c.srv.Ctx.Err() != nil {
			delete(c.all, channel)
			c.mu.Unlock()
			return
		}
		sub.begin(c.srv.Ctx)
		c.mu.Unlock()
	}
}

// keep keeps a subscription of one kind until ctx ends.
func (c *channels) keep(ctx context.Context, subscribe server.Subscribe, sub *subscription, channel string) {
	ready := 0 // the part of this kind in sub.ready
	set := func(to int) {
		sub.ready += to - ready
		ready = to
	}
	server.KeepSubscribed(ctx, subscribe, channel, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		set(1)
		sub.wake()
	}, func(string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		sub.wake()
	}, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		set(0)
	})
}
