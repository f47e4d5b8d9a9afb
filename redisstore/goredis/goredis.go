// Package goredis keeps locks over a go-redis client that the program already has:
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	store, err := goredis.New(client)
//	locker, err := holdfast.New(store)
//
// The locks are the same as those of package redisstore, which explains how they work and why they
// are safe. Both packages may be used on one server, and their locks exclude each other. goredis is a
// module of its own, so that programs that use only redisstore do not depend on go-redis.
//
// The retries of the client do not apply to locks: each request is sent once. Waiters share one
// connection beside the client's pool.
package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// New returns a store over a *redis.Client, also one of NewFailoverClient, or over a
// *redis.ClusterClient. The caller closes the client, after the store. New refuses a *redis.Ring,
// because a Ring spreads names over independent servers, and moves names when a server fails.
func New(c redis.UniversalClient, options ...redisstore.Option) (*redisstore.Store, error) {
	a := &adapter{client: c}
	switch c := c.(type) {
	case *redis.Client:
		if c == nil {
			return nil, driver.Errorf(driver.CodeInvalid, "goredis: the client is nil")
		}
		a.where = "redis://" + c.Options().Addr
		if c.Options().Addr == "FailoverClient" {
			a.mode, a.where = redisstore.Sentinel, "redis+sentinel (go-redis)"
		}
		a.gather = &gather{client: c}
	case *redis.ClusterClient:
		if c == nil {
			return nil, driver.Errorf(driver.CodeInvalid, "goredis: the client is nil")
		}
		a.mode, a.where = redisstore.Cluster, "redis+cluster://"+strings.Join(c.Options().Addrs, ",")
	default:
		return nil, driver.Errorf(driver.CodeInvalid, "goredis: a client of type %T: give a *redis.Client or a *redis.ClusterClient", c)
	}
	return redisstore.New(a, options...)
}

// adapter is a redisstore.Client.
type adapter struct {
	client redis.UniversalClient
	mode   redisstore.Mode
	where  string
	gather *gather // nil in a Cluster, where requests go to different servers

	mu       sync.Mutex
	closed   bool
	calls    sync.WaitGroup
	replicas map[string]*redis.Client // by address
}

func (a *adapter) String() string { return a.where }

func (a *adapter) Mode() redisstore.Mode { return a.mode }

// Close waits for the requests under way. The client stays open.
func (a *adapter) Close() {
	a.mu.Lock()
	a.closed = true
	replicas := a.replicas
	a.replicas = nil
	a.mu.Unlock()
	for _, replica := range replicas {
		_ = replica.Close()
	}
	if a.gather != nil {
		a.gather.close()
	}
	a.calls.Wait()
}

// once is a command that go-redis sends only once.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func command(ctx context.Context, args ...any) once { return once{redis.NewCmd(ctx, args...)} }

// run runs f and returns when f returns or ctx ends. By default go-redis ignores the context of a
// request that it has sent.
func run[T any](ctx context.Context, a *adapter, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, &redisstore.NotSentError{Err: err}
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return none, &redisstore.NotSentError{Err: errClosed}
	}
	done := make(chan result, 1)
	a.calls.Go(func() {
		v, err := f()
		done <- result{v, err}
	})
	a.mu.Unlock()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// convert converts an error of go-redis to the kinds that redisstore.Client describes.
func convert(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed) {
		return &redisstore.NotSentError{Err: err}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return &redisstore.NotSentError{Err: err}
	}
	var answered redis.Error
	if errors.As(err, &answered) {
		return redisstore.ServerError(answered.Error())
	}
	return err
}

// flatten appends the values of an answer to a list, as strings.
func flatten(to []string, v any) []string {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			to = flatten(to, x)
		}
		return to
	case map[any]any:
		for k, x := range v {
			to = flatten(flatten(to, k), x)
		}
		return to
	case string:
		return append(to, v)
	case nil:
		return append(to, "")
	}
	return append(to, fmt.Sprint(v))
}

// values returns the values of an answer, or its error.
func values(c *redis.Cmd) ([]string, error) {
	v, err := c.Result()
	if errors.Is(err, redis.Nil) {
		return []string{""}, nil
	}
	if err != nil {
		return nil, convert(err)
	}
	return flatten(make([]string, 0, 4), v), nil
}

// evaluation returns the command evalsha with the SHA of a script, or eval with its text.
func evaluation(ctx context.Context, name, script string, keys, args []string) once {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, name, script, len(keys))
	return command(ctx, appendAll(appendAll(words, keys), args)...)
}

// appendAll appends words to a command.
func appendAll(to []any, words []string) []any {
	to = slices.Grow(to, len(words))
	for _, word := range words {
		to = append(to, word)
	}
	return to
}

// processor is a client, or one connection of it.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// evaluate runs a script by its SHA or, if the server does not have it, by its text.
func evaluate(ctx context.Context, p processor, s *redisstore.Script, keys, args []string) ([]string, error) {
	c := evaluation(ctx, "evalsha", s.SHA, keys, args)
	_ = p.Process(ctx, c) // the command has the error
	if redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
		c = evaluation(ctx, "eval", s.Source, keys, args)
		_ = p.Process(ctx, c)
	}
	return values(c.Cmd)
}

// Eval runs a script.
func (a *adapter) Eval(ctx context.Context, s *redisstore.Script, keys, args []string) ([]string, error) {
	if a.gather != nil {
		return a.gather.eval(ctx, s, keys, args)
	}
	return run(ctx, a, func() ([]string, error) {
		v, err := evaluate(ctx, a.client, s, keys, args)
		a.reloadNodes(ctx, err)
		return v, err
	})
}

// reloadNodes makes the client of a Cluster read its list of nodes again after a network error.
// go-redis itself does that only before it repeats a request.
func (a *adapter) reloadNodes(ctx context.Context, err error) {
	if cluster, ok := a.client.(*redis.ClusterClient); ok && err != nil {
		if _, answered := err.(redisstore.ServerError); !answered {
			cluster.ReloadState(ctx)
		}
	}
}

// EvalAll runs a script several times, in one pipeline.
func (a *adapter) EvalAll(ctx context.Context, s *redisstore.Script, calls []redisstore.Call) []redisstore.Answer {
	alone := func(c redisstore.Call) redisstore.Answer {
		v, err := a.Eval(ctx, s, c.Keys, c.Args)
		return redisstore.Answer{Values: v, Err: err}
	}
	if len(calls) == 1 {
		return []redisstore.Answer{alone(calls[0])}
	}
	return redisstore.EvalPipelined(calls, func(some []redisstore.Call) []redisstore.Answer {
		all := make([]once, len(some))
		for i, c := range some {
			all[i] = evaluation(ctx, "evalsha", s.SHA, c.Keys, c.Args)
		}
		return a.pipeline(ctx, all)
	}, alone)
}

// Commands sends commands, in one pipeline.
func (a *adapter) Commands(ctx context.Context, commands [][]string) []redisstore.Answer {
	all := make([]once, len(commands))
	for i, words := range commands {
		all[i] = command(ctx, appendAll(nil, words)...)
		all[i].SetFirstKeyPos(1)
	}
	return a.pipeline(ctx, all)
}

// pipeline sends commands in one pipeline.
func (a *adapter) pipeline(ctx context.Context, all []once) []redisstore.Answer {
	answers := make([]redisstore.Answer, len(all))
	_, err := run(ctx, a, func() (struct{}, error) {
		pipe := a.client.Pipeline()
		for _, c := range all {
			_ = pipe.Process(ctx, c) // Exec sends it
		}
		_, _ = pipe.Exec(ctx) // each command has its error
		return struct{}{}, nil
	})
	for i := range answers {
		if answers[i].Err = err; err == nil {
			answers[i].Values, answers[i].Err = values(all[i].Cmd)
			a.reloadNodes(ctx, answers[i].Err)
		}
	}
	return answers
}

// EvalAcked runs a script and WAIT on one connection. It skips WAIT if the answer does not start
// with the text in only.
func (a *adapter) EvalAcked(ctx context.Context, s *redisstore.Script, keys, args []string, only string, replicas int, timeout time.Duration) ([]string, int, error) {
	type acked struct {
		values []string
		n      int
	}
	r, err := run(ctx, a, func() (acked, error) {
		conn, err := a.dedicated(ctx, keys[0])
		if err != nil {
			return acked{}, &redisstore.NotSentError{Err: convert(err)}
		}
		defer func() { _ = conn.Close() }()
		v, err := evaluate(ctx, conn, s, keys, args)
		if cluster, ok := a.client.(*redis.ClusterClient); ok && err != nil {
			cluster.ReloadState(ctx) // also after MOVED, which this connection does not follow
		}
		if err != nil || len(v) == 0 || !strings.HasPrefix(v[0], only) {
			return acked{values: v}, err
		}
		// WAIT counts the replicas that have the writes of its own connection.
		n, err := conn.Wait(ctx, replicas, timeout).Result()
		return acked{v, int(n)}, convert(err)
	})
	return r.values, r.n, err
}

// dedicated returns one connection to the server of a key.
func (a *adapter) dedicated(ctx context.Context, key string) (*redis.Conn, error) {
	switch c := a.client.(type) {
	case *redis.ClusterClient:
		node, err := c.MasterForKey(ctx, key)
		if err != nil {
			return nil, err
		}
		return node.Conn(), nil
	case *redis.Client:
		return c.Conn(), nil
	}
	return nil, fmt.Errorf("goredis: cannot open a single connection of a %T", a.client)
}

// node is one server.
type node struct {
	a *adapter
	p processor
}

// Command sends one command.
func (n node) Command(ctx context.Context, args ...string) ([]string, error) {
	return run(ctx, n.a, func() ([]string, error) {
		c := command(ctx, appendAll(nil, args)...)
		_ = n.p.Process(ctx, c)
		return values(c.Cmd)
	})
}

// EachPrimary calls f for each server that accepts writes.
func (a *adapter) EachPrimary(ctx context.Context, f func(redisstore.Node) error) error {
	cluster, ok := a.client.(*redis.ClusterClient)
	if !ok {
		return f(node{a, a.client})
	}
	var mu sync.Mutex
	var primaries []processor
	_, err := run(ctx, a, func() (struct{}, error) {
		return struct{}{}, cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			primaries = append(primaries, c)
			return nil
		})
	})
	if err != nil {
		return convert(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, p := range primaries {
		if err := f(node{a, p}); err != nil {
			if _, answered := errors.AsType[redisstore.ServerError](err); answered || ctx.Err() != nil || driver.CodeOf(err) != driver.CodeUnknown {
				return err
			}
			// The node does not respond. Another node has its slots now, or the cluster is down.
		}
	}
	return nil
}

// Replica connects to a replica, with the client's user, password and TLS.
func (a *adapter) Replica(_ context.Context, address string) (redisstore.Node, error) {
	o := redis.Options{Addr: address, PoolSize: 1, MaxRetries: -1, DisableIdentity: true}
	switch c := a.client.(type) {
	case *redis.Client:
		from := c.Options()
		o.Username, o.Password, o.CredentialsProvider, o.CredentialsProviderContext = from.Username, from.Password, from.CredentialsProvider, from.CredentialsProviderContext
		o.TLSConfig, o.Protocol, o.DialTimeout = from.TLSConfig, from.Protocol, from.DialTimeout
	case *redis.ClusterClient:
		from := c.Options()
		o.Username, o.Password, o.CredentialsProvider, o.CredentialsProviderContext = from.Username, from.Password, from.CredentialsProvider, from.CredentialsProviderContext
		o.TLSConfig, o.Protocol, o.DialTimeout = from.TLSConfig, from.Protocol, from.DialTimeout
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, &redisstore.NotSentError{Err: errClosed}
	}
	replica := a.replicas[address]
	if replica == nil {
		if a.replicas == nil {
			a.replicas = map[string]*redis.Client{}
		}
		replica = redis.NewClient(&o)
		a.replicas[address] = replica
	}
	return node{a, replica}, nil
}

// pingInterval is how long a subscription may be silent before the client sends a PING.
const pingInterval = 2 * time.Second

// Subscribe listens on a connection of its own.
func (a *adapter) Subscribe(ctx context.Context, channel string, ready func(), got func(string)) error {
	return receive(ctx, a.client.Subscribe(ctx, channel), ready, got)
}

// SubscribeSharded listens at the node that the channel belongs to.
func (a *adapter) SubscribeSharded(ctx context.Context, channel string, ready func(), got func(string)) error {
	return receive(ctx, a.client.SSubscribe(ctx, channel), ready, got)
}

// receive passes the events of a subscription to ready and got, until ctx or the connection ends.
func receive(ctx context.Context, sub *redis.PubSub, ready func(), got func(string)) error {
	defer func() { _ = sub.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer stop()
	pinged := false
	for {
		m, err := sub.ReceiveTimeout(ctx, pingInterval)
		if err != nil {
			timeout, ok := errors.AsType[net.Error](err)
			if ctx.Err() != nil || pinged || !ok || !timeout.Timeout() {
				return convert(err)
			}
			if err := sub.Ping(ctx); err != nil {
				return convert(err)
			}
			pinged = true
			continue
		}
		pinged = false
		switch m := m.(type) {
		case *redis.Subscription:
			ready()
		case *redis.Message:
			got(m.Payload)
		}
	}
}
