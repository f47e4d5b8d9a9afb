package goredis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/redisstore"
)

// gather sends the requests of many goroutines in one pipeline. Without it go-redis uses a connection
// for each concurrent request, which costs client and server several times as much. gather does not
// delay requests: while two pipelines are under way, later requests form the next one. It returns to
// each caller when the caller's context ends. go-redis does not do that after it has sent the request.
type gather struct {
	client redis.UniversalClient

	mu         sync.Mutex
	waiting    []*gathered
	senders    map[*sender]struct{}
	retryTimer *time.Timer // runs while requests wait and all senders are busy
	closed     bool
	all        sync.WaitGroup
}

// sender is a goroutine that sends pipelines. since is when it took the requests of the present
// one.
type sender struct{ since time.Time }

const (
	// pipelines limits the pipelines under way that are not stuck, and maxBatch the requests in
	// one.
	pipelines = 2
	maxBatch  = 128
	// A pipeline that has been under way for stuckAfter, perhaps on a dead connection, does not
	// block others. maxSenders limits all pipelines.
	stuckAfter = 250 * time.Millisecond
	maxSenders = 16
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

var errClosed = errors.New("the client is closed")

// do sends a request and waits for its answer.
func (g *gather) do(ctx context.Context, cmd once) error {
	if err := ctx.Err(); err != nil {
		return &redisstore.NotSentError{Err: err}
	}
	r := &gathered{cmd: cmd, done: make(chan struct{})}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return &redisstore.NotSentError{Err: errClosed}
	}
	g.waiting = append(g.waiting, r)
	g.startSender()
	g.mu.Unlock()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		if r.state.CompareAndSwap(stateWaiting, stateAbandoned) {
			return &redisstore.NotSentError{Err: ctx.Err()}
		}
		return ctx.Err()
	}
}

// startSender starts a sender if fewer than pipelines senders are busy and not stuck. Otherwise it sets
// a timer to try again. The caller holds mu.
func (g *gather) startSender() {
	busy := 0
	for s := range g.senders {
		if time.Since(s.since) < stuckAfter {
			busy++
		}
	}
	switch {
	case busy < pipelines && len(g.senders) < maxSenders:
		s := &sender{time.Now()}
		if g.senders == nil {
			g.senders = map[*sender]struct{}{}
		}
		g.senders[s] = struct{}{}
		g.all.Go(func() { g.send(s) })
	case g.retryTimer == nil:
		g.retryTimer = time.AfterFunc(stuckAfter, g.retryStart)
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
		g.process(sent)
		for _, r := range sent {
			close(r.done)
		}
	}
}

// process sends requests in one pipeline. Each command gets its answer or its error.
func (g *gather) process(sent []*gathered) {
	ctx := context.Background() // the callers return when their own contexts end
	switch len(sent) {
	case 0:
		return
	case 1:
		_ = g.client.Process(ctx, sent[0].cmd) // the command has the error
		return
	}
	pipe := g.client.Pipeline()
	for _, r := range sent {
		_ = pipe.Process(ctx, r.cmd) // Exec sends it
	}
	// Each command has its error, except for an error of the login.
	if _, err := pipe.Exec(ctx); err != nil {
		for _, r := range sent {
			if r.cmd.Err() == nil && r.cmd.Val() == nil {
				r.cmd.SetErr(err)
			}
		}
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
	g.all.Wait()
}

// eval runs a script by its SHA or, if the server does not have it, by its text.
func (g *gather) eval(ctx context.Context, s *redisstore.Script, keys, args []string) ([]string, error) {
	c := evaluation(context.Background(), "evalsha", s.SHA, keys, args)
	if err := g.do(ctx, c); err != nil {
		return nil, err
	}
	if redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
		c = evaluation(context.Background(), "eval", s.Source, keys, args)
		if err := g.do(ctx, c); err != nil {
			return nil, err
		}
	}
	return values(c.Cmd)
}
