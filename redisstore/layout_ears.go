package redisstore

import (
	"context"
	"sync"
	"time"
)

// ShardedSubscriber is implemented by clients that can listen to sharded messages, which
// Redisson uses in a Cluster. Without it waiters of such a layout look once a second.
type ShardedSubscriber interface {
	// SubscribeSharded is Subscribe, with SSUBSCRIBE at the node of the channel.
	SubscribeSharded(ctx context.Context, channel string, ready func(), got func(message string)) error
}

// earLingers is for how long a channel is listened to that no waiter needs any more: a name
// that is contended is waited for again soon.
const earLingers = time.Second

// ears are the channels that waiters listen to, each once.
type ears struct {
	s       *Store
	sharded bool
	mu      sync.Mutex
	all     map[string]*ear
}

// ear is one channel.
type ear struct {
	listeners map[*listener]struct{}
	ready     bool
	cancel    context.CancelFunc
	timer     *time.Timer
}

// listener is one waiter.
type listener struct {
	e       *ears
	channel string
	wake    chan struct{} // a message has come, or may have been missed
	stands  chan struct{} // closed when messages arrive
	once    sync.Once
}

// listen has a waiter woken by the messages of a channel.
func (e *ears) listen(channel string) *listener {
	l := &listener{e: e, channel: channel, wake: make(chan struct{}, 1), stands: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	one := e.all[channel]
	if one == nil {
		one = &ear{listeners: map[*listener]struct{}{}}
		e.all[channel] = one
		ctx := one.begin(e.s.ctx)
		e.s.tasks.Go(func() { e.run(ctx, one, channel) })
	}
	if one.timer != nil {
		one.timer.Stop()
		one.timer = nil
	}
	one.listeners[l] = struct{}{}
	if one.ready {
		l.once.Do(func() { close(l.stands) })
	}
	return l
}

// hears waits until messages arrive, and reports whether they do.
func (l *listener) hears(ctx context.Context) bool {
	select {
	case <-l.stands:
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
	l := s.peers.ears.listen(s.peers.channel(s.peers.key(name)))
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

func (l *listener) leave() {
	e := l.e
	e.mu.Lock()
	defer e.mu.Unlock()
	one := e.all[l.channel]
	if one == nil { // the store is closed
		return
	}
	delete(one.listeners, l)
	if len(one.listeners) > 0 || one.timer != nil {
		return
	}
	one.timer = time.AfterFunc(earLingers, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if one.timer = nil; len(one.listeners) == 0 {
			one.ready = false
			one.cancel()
		}
	})
}

func (one *ear) begin(ctx context.Context) context.Context {
	ctx, one.cancel = context.WithCancel(ctx)
	return ctx
}

// run keeps a subscription while there are listeners. The next one begins when the last has
// wholly ended, or the end of the one would end the other.
func (e *ears) run(ctx context.Context, one *ear, channel string) {
	for {
		e.subscribe(ctx, one, channel)
		e.mu.Lock()
		one.cancel()
		if len(one.listeners) == 0 || e.s.ctx.Err() != nil {
			delete(e.all, channel)
			e.mu.Unlock()
			return
		}
		ctx = one.begin(e.s.ctx)
		e.mu.Unlock()
	}
}

func (e *ears) subscribe(ctx context.Context, one *ear, channel string) {
	subscribe := e.s.client.Subscribe
	if c, ok := e.s.client.(ShardedSubscriber); ok && e.sharded {
		subscribe = c.SubscribeSharded
	}
	wake := func(ready bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		one.ready = one.ready || ready
		for l := range one.listeners {
			poke(l.wake)
			if ready {
				l.once.Do(func() { close(l.stands) })
			}
		}
	}
	for failures := 0; ctx.Err() == nil; failures++ {
		_ = subscribe(ctx, channel, func() {
			failures = 0
			wake(true)
		}, func(string) { wake(false) })
		e.mu.Lock()
		one.ready = false
		e.mu.Unlock()
		t := time.NewTimer(min(time.Second, 5*time.Millisecond<<min(failures, 8)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}
