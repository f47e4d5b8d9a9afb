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

// gather sends what many goroutines ask at a time in one pipeline: go-redis would
// else write and read each request by itself, on a connection of its own, which
// costs client and server several times what the request does. Nothing waits in
// order to be gathered: while at most two pipelines are on their way, what comes
// meanwhile makes up the next. It also answers each caller when its context ends,
// which go-redis itself does not once it has sent something.
type gather struct {
	client redis.UniversalClient

	mu      sync.Mutex
	waiting []*gathered
	senders map[*sender]struct{}
	relief  *time.Timer // runs while something waits for senders that are all busy
	closed  bool
	all     sync.WaitGroup
}

// sender is a goroutine that has a pipeline on its way, since a time.
type sender struct{ since time.Time }

const (
	// pipelines is how many may be on their way, and most how many requests are in
	// one.
	pipelines = 2
	most      = 128
	// A pipeline that has been on its way for stuckAfter, on a connection that has died
	// unnoticed perhaps, does not keep others from being sent; mostSenders bounds them.
	stuckAfter  = 250 * time.Millisecond
	mostSenders = 16
)

// gathered is one request.
type gathered struct {
	cmd   once
	state atomic.Int32
	done  chan struct{}
}

// The states of a request: whoever takes it from waiting decides whether it is sent.
const (
	waiting int32 = iota
	taken
	abandoned
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
	g.hire()
	g.mu.Unlock()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		if r.state.CompareAndSwap(waiting, abandoned) {
			return &redisstore.NotSentError{Err: ctx.Err()}
		}
		return ctx.Err()
	}
}

// hire starts a sender if there are too few that are not stuck, or looks again later;
// mu is held.
func (g *gather) hire() {
	busy := 0
	for s := range g.senders {
		if time.Since(s.since) < stuckAfter {
			busy++
		}
	}
	switch {
	case busy < pipelines && len(g.senders) < mostSenders:
		s := &sender{time.Now()}
		if g.senders == nil {
			g.senders = map[*sender]struct{}{}
		}
		g.senders[s] = struct{}{}
		g.all.Go(func() { g.send(s) })
	case g.relief == nil:
		g.relief = time.AfterFunc(stuckAfter, g.relieve)
	}
}

func (g *gather) relieve() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.relief = nil
	if len(g.waiting) > 0 && !g.closed {
		g.hire()
	}
}

// send sends until nothing waits.
func (g *gather) send(s *sender) {
	// The requests have callers of their own, who need not wait for this.
	ctx := context.Background()
	for {
		g.mu.Lock()
		n := min(len(g.waiting), most)
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
			if r.state.CompareAndSwap(waiting, taken) {
				sent = append(sent, r)
			}
		}
		switch len(sent) {
		case 0:
		case 1:
			_ = g.client.Process(ctx, sent[0].cmd) // the command has the error
		default:
			pipe := g.client.Pipeline()
			for _, r := range sent {
				_ = pipe.Process(ctx, r.cmd) // it is queued
			}
			// Each command has its error, but for that of the connection's greeting.
			if _, err := pipe.Exec(ctx); err != nil {
				for _, r := range sent {
					if r.cmd.Err() == nil && r.cmd.Val() == nil {
						r.cmd.SetErr(err)
					}
				}
			}
		}
		for _, r := range sent {
			close(r.done)
		}
	}
}

// close waits for what is on its way.
func (g *gather) close() {
	g.mu.Lock()
	g.closed = true
	if g.relief != nil {
		g.relief.Stop()
	}
	g.mu.Unlock()
	g.all.Wait()
}

// eval runs a script, by its text if the server does not know its SHA.
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
