package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/contact"
)

// goredisClient is a Client over go-redis.
type goredisClient struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the client, if it is for a Cluster
	mode    Mode
	where   string
	owned   bool             // Close closes the client
	reached *contact.Contact // nil if a program has made the client
	dial    dialFunc         // of a client of Open: logs in, too
	// sentinels are the addresses of the sentinels, their user and the name of the primary, if Open has made the client.
	sentinels redis.UniversalOptions

	connections *connections
	nodesKnown  atomic.Bool  // the client of a Cluster has read its list of nodes
	evaluations atomic.Int32 // calls of Eval under way

	calls         *calls.Calls
	mu            sync.Mutex
	gathers       map[*redis.Client]*gather // by server
	replicas      map[string]*redis.Client  // by address
	subscriptions map[subscriptionKey]*subscriptions
}

// NewClient returns a Client over a client of go-redis: a *redis.Client or a *redis.ClusterClient.
func NewClient(c redis.UniversalClient) (Client, error) {
	over, err := newGoredis(c)
	if err != nil {
		return nil, err // not over: an interface with a nil pointer is not nil
	}
	return over, nil
}

func newGoredis(c redis.UniversalClient) (*goredisClient, error) {
	a := &goredisClient{
		client: c, connections: newConnections(), calls: calls.New(),
		gathers: map[*redis.Client]*gather{}, replicas: map[string]*redis.Client{},
		subscriptions: map[subscriptionKey]*subscriptions{},
	}
	switch c := c.(type) {
	case *redis.Client:
		if c == nil {
			return nil, ErrNoClient
		}
		a.where = "redis://" + c.Options().Addr
		if c.Options().Addr == "FailoverClient" {
			a.mode, a.where = Sentinel, "redis+sentinel (go-redis)"
		}
		a.connections.client = c
	case *redis.ClusterClient:
		if c == nil {
			return nil, ErrNoClient
		}
		a.cluster, a.mode, a.where = c, Cluster, "redis+cluster://"+strings.Join(c.Options().Addrs, ",")
	case nil:
		return nil, ErrNoClient
	default:
		return nil, driver.Errorf(driver.CodeInvalid,
			"redisstore: a client of type %T: give a *redis.Client or a *redis.ClusterClient", c)
	}
	return a, nil
}

var (
	// ErrNoClient means that the client of a store is nil.
	ErrNoClient     = driver.Errorf(driver.CodeInvalid, "redisstore: the client is nil")
	errClientClosed = &NotSentError{errors.New("the client is closed")}
)

func (c *goredisClient) String() string { return c.where }

func (c *goredisClient) Mode() Mode { return c.mode }

// Close waits for the requests under way. If Open has made the client, Close closes it first, which
// ends these requests.
func (c *goredisClient) Close() {
	c.calls.Stop()
	c.mu.Lock()
	gathers, replicas := c.gathers, c.replicas
	c.gathers, c.replicas = nil, nil
	c.mu.Unlock()
	if c.owned {
		_ = c.client.Close()
	}
	for _, replica := range replicas {
		_ = replica.Close()
	}
	for _, g := range gathers {
		g.close()
	}
	c.calls.Running.Wait()
	c.calls.Tasks.Wait()
}

// Reconnect closes the connections that no request uses, and ends the subscriptions. Connections in
// use by this package are closed after their requests, and that of a lone caller before the next request.
func (c *goredisClient) Reconnect() {
	c.mu.Lock()
	for _, g := range c.gathers {
		if g.lone != nil {
			g.lone.outdated.Store(true)
		}
	}
	c.mu.Unlock()
	c.connections.replace()
}

// once is a command that go-redis sends only once.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func command(ctx context.Context, args ...any) once { return once{redis.NewCmd(ctx, args...)} }

// words returns the words of a command.
func words(all []string) []any {
	to := make([]any, len(all))
	for i, word := range all {
		to[i] = word
	}
	return to
}

// evaluation returns the command evalsha with the SHA of a script, or eval with its text.
func evaluation(ctx context.Context, name, script string, keys, args []string) once {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, name, script, len(keys))
	for _, word := range keys {
		all = append(all, word)
	}
	for _, word := range args {
		all = append(all, word)
	}
	return command(ctx, all...)
}

// evaluate runs a script by its SHA or, if the server does not have it, by its text. The function send
// sends a command, and returns an error if the command has no result.
func evaluate(ctx context.Context, s *Script, keys, args []string, send func(once) error) ([]string, error) {
	cmd := evaluation(ctx, "evalsha", s.SHA, keys, args)
	err := send(cmd)
	if err == nil && cmd.Err() != nil && redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = evaluation(ctx, "eval", s.Source, keys, args)
		err = send(cmd)
	}
	if err != nil {
		return nil, err
	}
	return values(cmd)
}

// processor is a client, or one connection of it.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// by returns a function that sends commands for evaluate.
func by(ctx context.Context, p processor) func(once) error {
	return func(cmd once) error {
		_ = p.Process(ctx, cmd) // the command has the error
		return nil
	}
}

// values returns the values of an answer, or its error.
func values(cmd once) ([]string, error) {
	v, err := cmd.Result()
	if errors.Is(err, redis.Nil) {
		return []string{""}, nil
	}
	if err != nil {
		return nil, convert(err)
	}
	return flatten(make([]string, 0, 4), v), nil
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

// convert converts an error of go-redis to the kinds that Client describes.
func convert(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed) {
		return &NotSentError{err}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return &NotSentError{err}
	}
	if answered, ok := errors.AsType[redis.Error](err); ok {
		return serverError(answered.Error())
	}
	return err
}

// run runs f and returns when f returns or ctx ends. go-redis does not notice that the context of a
// request ends after it was sent. f runs on the caller's goroutine if ctx never ends.
func run[T any](ctx context.Context, c *goredisClient, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, &NotSentError{err}
	}
	if c.calls.Enter() != nil {
		return none, errClientClosed
	}
	call := func() (T, error) {
		defer c.calls.Leave()
		began := c.connections.begin()
		defer c.connections.end(began)
		return f()
	}
	if ctx.Done() == nil {
		return call()
	}
	done := make(chan result, 1)
	go func() {
		v, err := call()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// Eval runs a script.
func (c *goredisClient) Eval(ctx context.Context, s *Script, keys, args []string) ([]string, error) {
	alone := c.evaluations.Add(1) == 1
	defer c.evaluations.Add(-1)
	if c.cluster != nil {
		return evaluate(context.Background(), s, keys, args, func(cmd once) error {
			return c.gatherByKey(ctx, keys[0], cmd, alone)
		})
	}
	server := c.client.(*redis.Client)
	if _, ends := ctx.Deadline(); !ends && ctx.Done() == nil { // a batch, which needs no other goroutine
		return run(ctx, c, func() ([]string, error) { return evaluate(ctx, s, keys, args, by(ctx, server)) })
	}
	return evaluate(context.Background(), s, keys, args, func(cmd once) error { return c.gather(ctx, server, cmd, alone) })
}

// gather sends a command to a server, together with those of other callers. alone means that there are no
// others now.
func (c *goredisClient) gather(ctx context.Context, server *redis.Client, cmd once, alone bool) error {
	c.mu.Lock()
	if c.calls.Stopped() {
		c.mu.Unlock()
		return errClientClosed
	}
	g := c.gathers[server]
	if g == nil {
		g = &gather{client: server, connections: c.connections}
		if c.owned && c.mode != Sentinel {
			g.lone = newLone(*server.Options())
		}
		c.gathers[server] = g
	}
	c.mu.Unlock()
	return g.do(ctx, cmd, alone)
}

// gatherByKey sends a command to the server of a key of a Cluster. If that server does not have the
// key any more, the client of the Cluster sends the command again.
func (c *goredisClient) gatherByKey(ctx context.Context, key string, cmd once, alone bool) error {
	server, err := c.primaryOf(ctx, key)
	if err != nil {
		return err
	}
	if err := c.gather(ctx, server, cmd, alone); err != nil {
		return err
	}
	err = cmd.Err()
	if errors.Is(err, redis.ErrClosed) { // the node has left the Cluster
		c.mu.Lock()
		if g := c.gathers[server]; g != nil && g.lone != nil {
			_ = g.lone.client.Close()
		}
		delete(c.gathers, server)
		c.mu.Unlock()
	}
	for _, refused := range []string{"MOVED ", "ASK ", "READONLY "} {
		if errors.Is(err, redis.ErrClosed) || redis.HasErrorPrefix(err, refused) {
			cmd.SetErr(nil)
			_, err := run(ctx, c, func() (struct{}, error) {
				_ = c.cluster.Process(ctx, cmd) // the command has the error
				return struct{}{}, nil
			})
			return err
		}
	}
	c.reloadNodes(ctx, convert(err))
	return nil
}

// primaryOf returns the client of the server that has a key of a Cluster.
func (c *goredisClient) primaryOf(ctx context.Context, key string) (*redis.Client, error) {
	find := func() (*redis.Client, error) { return c.cluster.MasterForKey(ctx, key) }
	if c.nodesKnown.Load() { // so find does not wait
		server, err := find()
		return server, notSent(err)
	}
	server, err := run(ctx, c, find)
	c.nodesKnown.Store(err == nil)
	return server, notSent(err)
}

// notSent converts an error before a request.
func notSent(err error) error {
	if err == nil {
		return nil
	}
	return &NotSentError{convert(err)}
}

// reloadNodes makes the client of a Cluster read its list of nodes again after an error of the network.
// go-redis itself does that only before it repeats a request.
func (c *goredisClient) reloadNodes(ctx context.Context, err error) {
	if c.cluster == nil || err == nil {
		return
	}
	if _, answered := errors.AsType[ServerError](err); !answered {
		c.cluster.ReloadState(ctx)
	}
}

// EvalAll runs a script several times, in one pipeline.
func (c *goredisClient) EvalAll(ctx context.Context, s *Script, calls []Call) []Answer {
	alone := func(call Call) Answer {
		v, err := c.Eval(ctx, s, call.Keys, call.Args)
		return Answer{v, err}
	}
	if len(calls) == 1 {
		return []Answer{alone(calls[0])}
	}
	return evalPipelined(calls, func(some []Call) []Answer {
		all := make([]once, len(some))
		for i, call := range some {
			all[i] = evaluation(ctx, "evalsha", s.SHA, call.Keys, call.Args)
		}
		return c.pipeline(ctx, all)
	}, alone)
}

// evalPipelined runs a script several times. It first sends all calls by the script's SHA in a
// pipeline. A server that lacks the script refuses them. Then one of the refused calls goes out
// alone, which loads the script at its server, and the others go out in a pipeline again. So
// after a restart of a server the calls need three round trips together, and not one each.
func evalPipelined(calls []Call, pipeline func([]Call) []Answer, alone func(Call) Answer) []Answer {
	answers := pipeline(calls)
	refused := withoutScript(answers, nil)
	for len(refused) > 0 {
		answers[refused[0]] = alone(calls[refused[0]])
		rest := refused[1:]
		some := make([]Call, len(rest))
		for i, at := range rest {
			some[i] = calls[at]
		}
		if len(some) == 0 {
			break
		}
		again := pipeline(some)
		for i, at := range rest {
			answers[at] = again[i]
		}
		refused = withoutScript(again, rest)
	}
	return answers
}

// withoutScript returns the indices of the calls whose server does not have the script. places
// has the index of the call of each answer. If places is nil, each answer has the index of its
// call.
func withoutScript(answers []Answer, places []int) (refused []int) {
	for i := range answers {
		if e, ok := errors.AsType[ServerError](answers[i].Err); ok && strings.HasPrefix(string(e), "NOSCRIPT") {
			if places != nil {
				refused = append(refused, places[i])
			} else {
				refused = append(refused, i)
			}
		}
	}
	return refused
}

// Commands sends commands, in one pipeline.
func (c *goredisClient) Commands(ctx context.Context, commands [][]string) []Answer {
	all := make([]once, len(commands))
	for i, one := range commands {
		all[i] = command(ctx, words(one)...)
		all[i].SetFirstKeyPos(1)
	}
	return c.pipeline(ctx, all)
}

// pipeline sends commands in one pipeline.
func (c *goredisClient) pipeline(ctx context.Context, all []once) []Answer {
	_, err := run(ctx, c, func() (struct{}, error) {
		sendPipeline(ctx, c.client, all)
		return struct{}{}, nil
	})
	if err != nil {
		return slices.Repeat([]Answer{{Err: err}}, len(all))
	}
	answers := make([]Answer, len(all))
	for i := range answers {
		answers[i].Values, answers[i].Err = values(all[i])
		c.reloadNodes(ctx, answers[i].Err)
	}
	return answers
}

// sendPipeline sends commands in one pipeline. Each command gets its answer or its error.
func sendPipeline(ctx context.Context, client redis.UniversalClient, all []once) {
	pipe := client.Pipeline()
	if server, ok := client.(*redis.Client); ok {
		// The client has other connections for pipelines, which closeIdle does not close.
		conn := server.Conn()
		defer func() { _ = conn.Close() }()
		pipe = conn.Pipeline()
	}
	for _, cmd := range all {
		_ = pipe.Process(ctx, cmd) // Exec sends it
	}
	// Each command has its error, except for an error of the login.
	if _, err := pipe.Exec(ctx); err != nil {
		for _, cmd := range all {
			if cmd.Err() == nil && cmd.Val() == nil {
				cmd.SetErr(err)
			}
		}
	}
}

// EvalAcked runs a script and WAIT on one connection. It skips WAIT if the answer does not start
// with the text in only.
func (c *goredisClient) EvalAcked(ctx context.Context, s *Script, keys, args []string, only string,
	replicas int, timeout time.Duration) ([]string, int, error) {
	type acked struct {
		values []string
		n      int
	}
	r, err := run(ctx, c, func() (acked, error) {
		conn, err := c.dedicated(ctx, keys[0])
		if err != nil {
			return acked{}, notSent(err)
		}
		defer func() { _ = conn.Close() }()
		v, err := evaluate(ctx, s, keys, args, by(ctx, conn))
		if c.cluster != nil && err != nil {
			c.cluster.ReloadState(ctx) // also after MOVED, which this connection does not follow
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
func (c *goredisClient) dedicated(ctx context.Context, key string) (*redis.Conn, error) {
	if c.cluster == nil {
		return c.client.(*redis.Client).Conn(), nil
	}
	server, err := c.cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil, err
	}
	return server.Conn(), nil
}

// goredisNode is one server.
type goredisNode struct {
	c      *goredisClient
	server processor
}

// String returns the address of the node.
func (n goredisNode) String() string {
	if server, ok := n.server.(*redis.Client); ok && n.c.mode != Sentinel {
		return server.Options().Addr
	}
	return n.c.where
}

// Command sends one command.
func (n goredisNode) Command(ctx context.Context, args ...string) ([]string, error) {
	return run(ctx, n.c, func() ([]string, error) {
		cmd := command(ctx, words(args)...)
		_ = n.server.Process(ctx, cmd) // the command has the error
		return values(cmd)
	})
}

// EachPrimary calls f for each server that accepts writes.
func (c *goredisClient) EachPrimary(ctx context.Context, f func(Node) error) error {
	if c.cluster == nil {
		return c.reached.Explain(f(goredisNode{c, c.client}))
	}
	var mu sync.Mutex
	var primaries []processor
	_, err := run(ctx, c, func() (struct{}, error) {
		return struct{}{}, c.cluster.ForEachMaster(ctx, func(_ context.Context, server *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			primaries = append(primaries, server)
			return nil
		})
	})
	if err = c.reached.Explain(convert(err)); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	for _, server := range primaries {
		if err := f(goredisNode{c, server}); err != nil {
			_, answered := errors.AsType[ServerError](err)
			if answered || ctx.Err() != nil || driver.CodeOf(err) != driver.CodeUnknown {
				return err
			}
			// The node does not respond. Another node has its slots now, or the cluster is down.
		}
	}
	return nil
}

// Replica connects to a replica, with the client's user, password and TLS.
func (c *goredisClient) Replica(_ context.Context, address string) (Node, error) {
	var o redis.Options
	if c.cluster != nil {
		from := c.cluster.Options()
		o.Username, o.Password = from.Username, from.Password
		o.CredentialsProvider, o.CredentialsProviderContext = from.CredentialsProvider, from.CredentialsProviderContext
		o.TLSConfig, o.Protocol, o.DialTimeout = from.TLSConfig, from.Protocol, from.DialTimeout
	} else {
		from := c.client.(*redis.Client).Options()
		o.Username, o.Password = from.Username, from.Password
		o.CredentialsProvider, o.CredentialsProviderContext = from.CredentialsProvider, from.CredentialsProviderContext
		o.TLSConfig, o.Protocol, o.DialTimeout = from.TLSConfig, from.Protocol, from.DialTimeout
	}
	o.Dialer = c.dial
	return c.node(address, o)
}

// node returns a server, to which the client keeps its connection until Close.
func (c *goredisClient) node(address string, o redis.Options) (Node, error) {
	o.Addr, o.MaxRetries, o.DialerRetries, o.DisableIdentity = address, -1, 1, true
	o.PoolSize = maxIdle // after so many failures go-redis dials once a second, without a request
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls.Stopped() {
		return nil, errClientClosed
	}
	replica := c.replicas[address]
	if replica == nil {
		replica = redis.NewClient(&o)
		c.replicas[address] = replica
	}
	return goredisNode{c, replica}, nil
}
