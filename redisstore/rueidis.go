package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

const (
	// flushDelay is how long rueidis collects commands before it sends them, while others are
	// under way: see docs/benchmarks.md.
	flushDelay = 20 * time.Microsecond
	// dialTimeout is the timeout to open a connection and to log in. A connection whose server is
	// silent for silentTimeout is closed.
	dialTimeout   = 2 * time.Second
	silentTimeout = 4 * time.Second
	keepAliveIdle = 5 * time.Second
)

// rueidisClient is a Client over rueidis. It connects at the first request.
type rueidisClient struct {
	option rueidis.ClientOption
	mode   Mode
	where  string

	alone *alone // nil if it is not used
	ready atomic.Pointer[rueidis.Client]

	mu         sync.Mutex
	client     rueidis.Client
	connecting chan struct{} // closed when the attempt has ended
	err        error         // of the last attempt
	closed     bool
	calls      sync.WaitGroup
	replicas   map[string]rueidis.Client // by address

	inflight *inflight
}

// watched is a connection whose end marks the client's connections as unstable.
type watched struct {
	net.Conn
	c      *rueidisClient
	socket *socket
}

func (w *watched) Close() error {
	w.c.inflight.markUnstable()
	return w.Conn.Close()
}

func newRueidis(o rueidis.ClientOption, mode Mode, where string) *rueidisClient {
	c := &rueidisClient{mode: mode, where: where, inflight: newInflight()}
	o.MaxFlushDelay = flushDelay
	// A request is sent once. If rueidis sent it again, the server might apply it twice, or after
	// its undo.
	o.DisableRetry = true
	o.DisableCache = true
	o.ForceSingleClient = mode == Standalone
	o.Dialer.Timeout = dialTimeout
	o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		// A connection is shared: it must not fail because the first request has a short
		// deadline.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
		defer cancel()
		conn, err := dial(ctx, address, d, t)
		if err != nil {
			c.inflight.markUnstable()
			return nil, err
		}
		return &watched{conn, c, socketOf(conn)}, nil
	}
	o.ConnWriteTimeout = silentTimeout
	o.Sentinel.Dialer.Timeout = dialTimeout
	o.Sentinel.TopologyRefreshInterval = time.Second
	o.ClusterOption.ShardsRefreshInterval = refreshInterval
	// Rueidis sends a PING on an idle connection. A busy one needs none.
	o.Dialer.KeepAlive = keepAliveIdle
	// One connection to each server, so that many requests are written and read in one system
	// call.
	o.PipelineMultiplex = -1
	// Small buffers: requests and answers have some hundred bytes, and a program may have many
	// Lockers.
	o.RingScaleEachConn = ringScale
	o.ReadBufferEachConn, o.WriteBufferEachConn = 16<<10, 16<<10
	o.ClientSetInfo = rueidis.DisableClientSetInfo
	o.BlockingPoolCleanup = time.Minute
	c.option = o
	if mode == Standalone && detectsQuiet {
		c.alone = newAlone(o)
	}
	return c
}

func dial(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
	if t != nil {
		return (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", address)
	}
	return d.DialContext(ctx, "tcp", address)
}

func (c *rueidisClient) String() string { return c.where }

func (c *rueidisClient) Mode() Mode { return c.mode }

// connected returns the client, and connects first if necessary. Only one attempt runs at a time,
// independent of the callers' contexts. A caller waits for it until its own context ends.
func (c *rueidisClient) connected(ctx context.Context) (rueidis.Client, error) {
	if client := c.ready.Load(); client != nil {
		return *client, nil
	}
	c.mu.Lock()
	if c.client != nil || c.closed {
		client := c.client
		c.mu.Unlock()
		if client == nil {
			return nil, errClientClosed
		}
		return client, nil
	}
	done := c.connecting
	if done == nil {
		done = make(chan struct{})
		c.connecting = done
		go c.connect(done)
	}
	c.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		return nil, &NotSentError{ctx.Err()}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil {
		return nil, &NotSentError{convert(c.err)}
	}
	return c.client, nil
}

func (c *rueidisClient) connect(done chan struct{}) {
	client, err := rueidis.NewClient(c.option)
	c.mu.Lock()
	if c.closed && err == nil {
		err = errClientClosed
	}
	if err == nil {
		c.client = client
		c.ready.Store(&client)
	}
	c.err, c.connecting = err, nil
	c.mu.Unlock()
	if err != nil && client != nil {
		client.Close()
	}
	close(done)
}

// Close closes the client. Later requests return an error.
func (c *rueidisClient) Close() {
	c.mu.Lock()
	c.closed = true
	done, client, replicas := c.connecting, c.client, c.replicas
	c.client, c.replicas = nil, nil
	c.ready.Store(nil)
	c.mu.Unlock()
	if c.alone != nil {
		c.alone.close()
	}
	if done != nil {
		<-done
	}
	if client != nil {
		client.Close()
	}
	for _, replica := range replicas {
		replica.Close()
	}
	c.calls.Wait()
}

// convert converts an error of rueidis to the kinds that Client describes.
func convert(err error) error {
	if err == nil {
		return nil
	}
	if re, ok := rueidis.IsRedisErr(err); ok {
		return ServerError(re.Error())
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return &NotSentError{err}
	}
	return err
}

func flatten(to []string, m *rueidis.RedisMessage) ([]string, error) {
	switch {
	case m.IsArray():
		all, err := m.ToArray()
		if err != nil {
			return to, err
		}
		for i := range all {
			if to, err = flatten(to, &all[i]); err != nil {
				return to, err
			}
		}
		return to, nil
	case m.IsMap():
		all, err := m.ToMap()
		for k, v := range all {
			if to, err = flatten(append(to, k), &v); err != nil {
				return to, err
			}
		}
		return to, err
	case m.IsNil():
		return append(to, ""), nil
	case m.IsInt64():
		n, err := m.AsInt64()
		return append(to, strconv.FormatInt(n, 10)), err
	}
	text, err := m.ToString()
	return append(to, text), err
}

func values(r rueidis.RedisResult) ([]string, error) {
	m, err := r.ToMessage()
	if err != nil {
		if rueidis.IsRedisNil(err) {
			return []string{""}, nil
		}
		return nil, convert(err)
	}
	if m.IsString() {
		text, err := m.ToString()
		return []string{text}, convert(err)
	}
	v, err := flatten(make([]string, 0, 4), &m)
	return v, convert(err)
}

func bySHA(b rueidis.Builder, s *Script, keys, args []string) rueidis.Completed {
	return b.Evalsha().Sha1(s.SHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func byText(b rueidis.Builder, s *Script, keys, args []string) rueidis.Completed {
	return b.Eval().Script(s.Source).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

func unknownScript(r rueidis.RedisResult) bool {
	re, ok := rueidis.IsRedisErr(r.Error())
	return ok && re.IsNoScript()
}

// Eval runs a script.
func (c *rueidisClient) Eval(ctx context.Context, s *Script, keys, args []string) ([]string, error) {
	client, err := c.connected(ctx)
	if err != nil {
		return nil, err
	}
	first, ok := c.inflight.enter()
	if !ok {
		return runDetached(ctx, c, func(ctx context.Context) ([]string, error) { return evaluate(ctx, client, s, keys, args) })
	}
	if _, hasDeadline := ctx.Deadline(); first && hasDeadline && c.alone != nil {
		if v, done, err := c.alone.eval(ctx, s, keys, args); done {
			c.inflight.leave(false)
			return v, err
		}
	}
	v, err := evaluate(withoutDeadline{ctx}, client, s, keys, args)
	c.inflight.leave(err != nil && ctx.Err() != nil)
	return v, err
}

func evaluate(ctx context.Context, client rueidis.Client, s *Script, keys, args []string) ([]string, error) {
	for try := 1; ; try++ {
		r := client.Do(ctx, bySHA(client.B(), s, keys, args))
		if unknownScript(r) {
			r = client.Do(ctx, byText(client.B(), s, keys, args))
		}
		v, err := values(r)
		if err == nil {
			return v, nil
		}
		if err = contextError(ctx, err); try < 3 && errors.Is(err, errOtherContext) {
			continue
		}
		return v, err
	}
}

// errOtherContext means that the context of another request, which opened the shared connection,
// ended during the login.
var errOtherContext = errors.New("another request's context ended during the login of the connection")

// contextError returns the error of a request, with the error of its context if that has ended.
// A cancellation by another request's context becomes errOtherContext.
func contextError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if u, ok := ctx.(withoutDeadline); ok {
		ctx = u.Context
	}
	if end := ctx.Err(); end != nil {
		if errors.Is(err, end) {
			return err
		}
		return fmt.Errorf("%w: %w", end, err)
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= 0 {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if errors.Is(err, context.Canceled) {
		// The request's own context has not ended, so another one has.
		return &NotSentError{errOtherContext}
	}
	return err
}

// EvalAll runs a script several times.
func (c *rueidisClient) EvalAll(ctx context.Context, s *Script, calls []Call) []Answer {
	client, err := c.connected(ctx)
	if err != nil {
		return slices.Repeat([]Answer{{Err: err}}, len(calls))
	}
	if len(calls) == 1 {
		v, err := c.Eval(ctx, s, calls[0].Keys, calls[0].Args)
		return []Answer{{v, err}}
	}
	return EvalPipelined(calls, func(some []Call) []Answer {
		multi := make([]rueidis.Completed, len(some))
		for i, call := range some {
			multi[i] = bySHA(client.B(), s, call.Keys, call.Args)
		}
		return c.pipeline(ctx, client, multi)
	}, func(call Call) Answer {
		v, err := c.Eval(ctx, s, call.Keys, call.Args)
		return Answer{v, err}
	})
}

// EvalPipelined runs a script several times. It first sends all calls by the script's SHA in a
// pipeline. A server that lacks the script refuses them. Then one of the refused calls goes out
// alone, which loads the script at its server, and the others go out in a pipeline again. So
// after a restart of a server the calls need three round trips together, and not one each.
func EvalPipelined(calls []Call, pipeline func([]Call) []Answer, alone func(Call) Answer) []Answer {
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

// Commands sends commands.
func (c *rueidisClient) Commands(ctx context.Context, commands [][]string) []Answer {
	client, err := c.connected(ctx)
	if err != nil {
		return slices.Repeat([]Answer{{Err: err}}, len(commands))
	}
	multi := make([]rueidis.Completed, len(commands))
	for i, words := range commands {
		multi[i] = client.B().Arbitrary(words[0]).Keys(words[1]).Args(words[2:]...).Build()
	}
	return c.pipeline(ctx, client, multi)
}

func (c *rueidisClient) pipeline(ctx context.Context, client rueidis.Client, multi []rueidis.Completed) []Answer {
	results, err := runDirect(ctx, c, func(ctx context.Context) ([]rueidis.RedisResult, error) { return client.DoMulti(ctx, multi...), nil })
	if err != nil {
		return slices.Repeat([]Answer{{Err: err}}, len(multi))
	}
	answers := make([]Answer, len(results))
	for i, r := range results {
		answers[i].Values, answers[i].Err = values(r)
		answers[i].Err = contextError(ctx, answers[i].Err)
	}
	return answers
}

// EvalAcked runs a script and WAIT on one connection of its own.
func (c *rueidisClient) EvalAcked(ctx context.Context, s *Script, keys, args []string, only string, replicas int, timeout time.Duration) ([]string, int, error) {
	client, err := c.connected(ctx)
	if err != nil {
		return nil, 0, err
	}
	type acked struct {
		values []string
		n      int
	}
	// On a dedicated connection rueidis respects only the deadline of a context.
	bounded, cancel := context.WithTimeout(ctx, timeout+silentTimeout)
	a, err := runInBackground(ctx, c, cancel, func() (acked, error) {
		v, n, err := evaluateAcked(bounded, client, s, keys, args, only, replicas, timeout)
		return acked{v, n}, err
	})
	return a.values, a.n, err
}

func evaluateAcked(ctx context.Context, client rueidis.Client, s *Script, keys, args []string, only string, replicas int, timeout time.Duration) ([]string, int, error) {
	d, release := client.Dedicate()
	defer release()
	r := d.Do(ctx, bySHA(d.B(), s, keys, args))
	if unknownScript(r) {
		r = d.Do(ctx, byText(d.B(), s, keys, args))
	}
	v, err := values(r)
	if err != nil || len(v) == 0 || !strings.HasPrefix(v[0], only) {
		return v, 0, contextError(ctx, err)
	}
	// WAIT is about the writes of this connection, so it needs the same one.
	n, err := d.Do(ctx, d.B().Wait().Numreplicas(int64(replicas)).Timeout(timeout.Milliseconds()).Build()).AsInt64()
	return v, int(n), contextError(ctx, convert(err))
}

// EachPrimary calls f for the servers that accept writes.
func (c *rueidisClient) EachPrimary(ctx context.Context, f func(Node) error) error {
	client, err := c.connected(ctx)
	if err != nil {
		return err
	}
	if c.mode != Cluster {
		return f(rueidisNode{client, c})
	}
	// The requests go to all nodes at once, so that a silent node delays no other. It is
	// reported at the end.
	timeout := dialTimeout
	if end, hasDeadline := ctx.Deadline(); hasDeadline {
		timeout = min(timeout, time.Until(end)/2)
	}
	rolesCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type answer struct {
		node rueidisNode
		role []string
		err  error
	}
	var all []answer
	for _, node := range client.Nodes() {
		all = append(all, answer{node: rueidisNode{node, c}})
	}
	var roles sync.WaitGroup
	for i := range all {
		roles.Go(func() { all[i].role, all[i].err = all[i].node.Command(rolesCtx, "ROLE") })
	}
	roles.Wait()
	var silent error
	for _, a := range all {
		if _, answered := errors.AsType[ServerError](a.err); answered {
			return a.err
		}
		// The slots of a node that is gone are at another node, or the cluster is down.
		if errors.Is(a.err, context.DeadlineExceeded) || errors.Is(a.err, context.Canceled) {
			silent = a.err
		}
		if a.err != nil || len(a.role) == 0 || a.role[0] != "master" {
			continue
		}
		if err := f(a.node); err != nil {
			return err
		}
	}
	return silent
}

// Replica connects to a replica.
func (c *rueidisClient) Replica(ctx context.Context, address string) (Node, error) {
	c.mu.Lock()
	client := c.replicas[address]
	c.mu.Unlock()
	if client == nil {
		var err error
		client, err = runInBackground(ctx, c, func() {}, func() (rueidis.Client, error) {
			o := c.option
			o.InitAddress, o.Sentinel, o.ForceSingleClient = []string{address}, rueidis.SentinelOption{}, true
			client, err := rueidis.NewClient(o)
			if err != nil {
				return nil, convert(err)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if other := c.replicas[address]; other != nil || c.closed {
				client.Close()
				return other, nil
			}
			if c.replicas == nil {
				c.replicas = map[string]rueidis.Client{}
			}
			c.replicas[address] = client
			return client, nil
		})
		if err != nil {
			return nil, err
		}
		if client == nil {
			return nil, errClientClosed
		}
	}
	return rueidisNode{client, c}, nil
}

type rueidisNode struct {
	client rueidis.Client
	c      *rueidisClient
}

func (n rueidisNode) Command(ctx context.Context, args ...string) ([]string, error) {
	return runDirect(ctx, n.c, func(ctx context.Context) ([]string, error) {
		v, err := values(n.client.Do(ctx, n.client.B().Arbitrary(args...).Build()))
		return v, contextError(ctx, err)
	})
}

// Subscribe listens on a connection that the client shares with other commands or, if the server
// has only RESP2, on one of its own.
func (c *rueidisClient) Subscribe(ctx context.Context, channel string, ready func(), got func(string)) error {
	return c.subscribe(ctx, channel, false, ready, got)
}

// SubscribeSharded listens at the node that the channel belongs to.
func (c *rueidisClient) SubscribeSharded(ctx context.Context, channel string, ready func(), got func(string)) error {
	return c.subscribe(ctx, channel, true, ready, got)
}

func (c *rueidisClient) subscribe(ctx context.Context, channel string, sharded bool, ready func(), got func(string)) error {
	client, err := c.connected(ctx)
	if err != nil {
		return err
	}
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" || s.Kind == "ssubscribe" {
			ready()
		}
	})
	on, off := client.B().Subscribe().Channel(channel).Build(), client.B().Unsubscribe().Channel(channel).Build()
	if sharded {
		on, off = client.B().Ssubscribe().Channel(channel).Build(), client.B().Sunsubscribe().Channel(channel).Build()
	}
	err = client.Receive(hooked, on, func(m rueidis.PubSubMessage) { got(m.Message) })
	if ctx.Err() != nil {
		// The connection stays open for other channels.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
		defer cancel()
		_ = client.Do(bounded, off).Error()
	}
	return convert(err)
}
