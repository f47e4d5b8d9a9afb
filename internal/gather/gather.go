// Package gather sends requests of several goroutines together, and many requests of one at the same time.
package gather

import (
	"context"
	"slices"
	"sync"
)

// Group gathers the keys of calls while an earlier request runs, and sends them in one request.
type Group[T any] struct {
	sendKeys func(keys []string) (T, error)
	most     int

	turn    chan struct{} // has an element while a request runs
	running sync.WaitGroup
	mu      sync.Mutex
	next    *request[T]
}

type request[T any] struct {
	keys   []string
	done   chan struct{} // closed when answer and err are set
	answer T
	err    error
}

// New returns a group that sends requests by send, one at a time. The keys of a request are sorted and differ. They are
// at most most, except that the keys of one call stay together.
func New[T any](most int, send func(keys []string) (T, error)) *Group[T] {
	return &Group[T]{sendKeys: send, most: most, turn: make(chan struct{}, 1)}
}

// Do returns the answer to a request with the keys, which was sent after the call. If ctx ends first, it returns
// the context's error.
func (g *Group[T]) Do(ctx context.Context, keys ...string) (answer T, err error) {
	g.mu.Lock()
	r := g.next
	if r == nil || len(r.keys)+len(keys) > g.most {
		r = &request[T]{done: make(chan struct{})}
		g.next = r
		g.running.Go(func() { g.send(r) })
	}
	r.keys = append(r.keys, keys...)
	g.mu.Unlock()
	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

func (g *Group[T]) send(r *request[T]) {
	defer close(r.done)
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	g.mu.Lock()
	if g.next == r {
		g.next = nil
	}
	g.mu.Unlock()
	slices.Sort(r.keys)
	r.answer, r.err = g.sendKeys(slices.Compact(r.keys))
}

// Wait returns when no request runs. No call of Do may follow.
func (g *Group[T]) Wait() { g.running.Wait() }

// Each calls f for each number below n, at most lanes of them at the same time, and waits until all calls have returned.
func Each(n, lanes int, f func(i int)) {
	slots := make(chan struct{}, lanes)
	var running sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	running.Wait()
}
