package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// gather sends the requests of many goroutines to one server in one pipeline. Without it go-redis uses
// a connection for each concurrent request, which costs client and server several times as much. gather
// does not delay requests: while two pipelines are under way, later requests form the next one. It
// returns to each caller when the caller's context ends. go-redis does not do that after it has sent
// the request.
type gather struct {
	client      *redis.Client
	connections *connections
	lone        *lone // nil if it is not used

	mu         sync.Mutex
	waiting    []*gathered
	senders    map[*sender]struct{}
	retryTimer *time.Timer // runs while requests wait and all senders are busy
	closed     bool
	all        sync.WaitGroup
}

// sender is a goroutine that sends pipelines. since is when it took the requests of the present one.
type sender struct{ since time.Time }

const (
	// A pipeline, or a batch of the native layout, that has had no answer for StuckAfter, perhaps on a
	// dead connection, does not delay others. MaxSenders limits all of them.
	StuckAfter = 250 * time.Millisecond
	MaxSenders = 16
	// pipelines limits the pipelines under way that are not stuck, and maxBatch the requests in
	// one.
	pipelines = 2
	maxBatch  = 128
)

// gathered is one request.
type gathered struct {
	cmd   once
	state atomic.Int32
	done  chan struct{}
}

// The states of a request that waits: a sender takes and sends it, or its caller abandons it.
const (
	stateWaiting int32 = iota
	stateTaken
	stateAbandoned
)

// do sends a request and waits for its answer. alone means that no other request is under way.
func (g *gather) do(ctx context.Context, cmd once, alone bool) error {
	if err := ctx.Err(); err != nil {
		return &NotSentError{err}
	}
	if g.lone != nil {
		if done, err := g.lone.do(ctx, cmd, alone); done {
			return err
		}
	}
	r := &gathered{cmd: cmd, done: make(chan struct{})}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return errClientClosed
	}
	g.waiting = append(g.waiting, r)
	g.startSender()
	g.mu.Unlock()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		if r.state.CompareAndSwap(stateWaiting, stateAbandoned) {
			return &NotSentError{ctx.Err()}
		}
		return ctx.Err()
	}
}

// startSender starts a sender if fewer than pipelines senders are busy and not stuck. Otherwise it sets
// a timer to try again. The caller holds mu.
func (g *gather) startSender() {
	busy := 0
	for s := range g.senders {
		if time.Since(s.since) < StuckAfter {
			busy++
		}
	}
	switch {
	case busy < pipelines && len(g.senders) < MaxSenders:
		s := &sender{time.Now()}
		if g.senders == nil {
			g.senders = map[*sender]struct{}{}
		}
		g.senders[s] = struct{}{}
		g.all.Go(func() { g.send(s) })
	case g.retryTimer == nil:
		g.retryTimer = time.AfterFunc(StuckAfter, g.retryStart)
	}
}

// retryStart starts a sender for the requests that wait, if there are any.
func (g *gather) retryStart() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.retryTimer = nil
	if len(g.waiting) > 0 && !g.closed {
		g.startSender()
	}
}

// send sends one pipeline after another while requests wait.
func (g *gather) send(s *sender) {
	for {
		g.mu.Lock()
		n := min(len(g.waiting), maxBatch)
		if n == 0 {
			delete(g.senders, s)
			g.mu.Unlock()
			return
		}
		s.since = time.Now()
		batch := g.waiting[:n:n]
		if g.waiting = g.waiting[n:]; len(g.waiting) == 0 {
			g.waiting = nil
		}
		g.mu.Unlock()
		sent := batch[:0]
		for _, r := range batch {
			if r.state.CompareAndSwap(stateWaiting, stateTaken) {
				sent = append(sent, r)
			}
		}
		began := g.connections.begin()
		g.process(sent)
		g.connections.end(began)
		for _, r := range sent {
			close(r.done)
		}
	}
}

// process sends requests in one pipeline. Each command gets its answer or its error. The callers return
// when their own contexts end.
func (g *gather) process(sent []*gathered) {
	switch len(sent) {
	case 0:
	case 1:
		_ = g.client.Process(context.Background(), sent[0].cmd) // the command has the error
	default:
		all := make([]once, len(sent))
		for i, r := range sent {
			all[i] = r.cmd
		}
		sendPipeline(context.Background(), g.client, all)
	}
}

// close waits for the pipelines under way.
func (g *gather) close() {
	g.mu.Lock()
	g.closed = true
	if g.retryTimer != nil {
		g.retryTimer.Stop()
	}
	g.mu.Unlock()
	if g.lone != nil {
		_ = g.lone.client.Close()
	}
	g.all.Wait()
}
