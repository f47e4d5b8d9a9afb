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
	// flushDelay is for how long commands are gathered before they are sent, while
	// others are under way: see docs/benchmarks.md.
	flushDelay = 20 * time.Microsecond
	// dialBound bounds connecting and greeting, and silentBound how long a server
	// may be silent before its connection is given up.
	dialBound   = 2 * time.Second
	silentBound = 4 * time.Second
	askIdle     = 5 * time.Second
)

// rueidisClient is a Client over rueidis. It connects when it is first asked.
type rueidisClient struct {
	option rueidis.ClientOption
	mode   Mode
	where  string

	alone *alone // nil where it is not used
	ready atomic.Pointer[rueidis.Client]

	mu         sync.Mutex
	client     rueidis.Client
	connecting chan struct{} // closed when the attempt has ended
	err        error         // of the last attempt
	closed     bool
	calls      sync.WaitGroup
	replicas   map[string]rueidis.Client // by address

	room *room
}

// watched tells of its end.
type watched struct {
	net.Conn
	c      *rueidisClient
	socket *socket
}

func (w *watched) Close() error {
	w.c.room.shake()
	return w.Conn.Close()
}

func newRueidis(o rueidis.ClientOption, mode Mode, where string) *rueidisClient {
	c := &rueidisClient{mode: mode, where: where, room: newRoom()}
	o.MaxFlushDelay = flushDelay
	// A request is sent once. What is sent again without our knowing might be
	// applied twice, or after it was undone.
	o.DisableRetry = true
	o.DisableCache = true
	o.ForceSingleClient = mode == Standalone
	o.Dialer.Timeout = dialBound
	o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		// A connection is shared: it does not fail because whoever happened to ask
		// for it first had little time.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialBound)
		defer cancel()
		conn, err := dial(ctx, address, d, t)
		if err != nil {
			c.room.shake()
			return nil, err
		}
		return &watched{conn, c, socketOf(conn)}, nil
	}
	o.ConnWriteTimeout = silentBound
	o.Sentinel.Dialer.Timeout = dialBound
	o.Sentinel.TopologyRefreshInterval = time.Second
	o.ClusterOption.ShardsRefreshInterval = 2 * time.Second
	// An idle connection is asked whether it lives; a busy one tells.
	o.Dialer.KeepAlive = askIdle
	// One connection to a server: what many ask at a time is then written and read
	// in the largest pieces.
	o.PipelineMultiplex = -1
	// Requests and answers are some hundred bytes, and a program may have many
	// Lockers.
	o.RingScaleEachConn = ringScale
	o.ReadBufferEachConn, o.WriteBufferEachConn = 16<<10, 16<<10
	o.ClientSetInfo = rueidis.DisableClientSetInfo
	o.BlockingPoolCleanup = time.Minute
	c.option = o
	if mode == Standalone && canTellQuiet {
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

// connected is the client, once there is one. One attempt at a time is made, on
// nobody's context: whoever asks waits for it no longer than his own.
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

// Close closes the client. Whoever still asks gets an error.
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

// convert tells what became of a request.
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

// flatten makes strings of an answer.
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
	first, ok := c.room.enter()
	if !ok {
		return apart(ctx, c, func(ctx context.Context) ([]string, error) { return evaluate(ctx, client, s, keys, args) })
	}
	if _, dated := ctx.Deadline(); first && dated && c.alone != nil {
		if v, done, err := c.alone.eval(ctx, s, keys, args); done {
			c.room.leave(false)
			return v, err
		}
	}
	v, err := evaluate(undated{ctx}, client, s, keys, args)
	c.room.leave(err != nil && ctx.Err() != nil)
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
		if err = own(ctx, err); try < 3 && errors.Is(err, errOthers) {
			continue
		}
		return v, err
	}
}

// errOthers: the greeting of a shared connection was cut short by the context of
// whoever had asked for it first.
var errOthers = errors.New("another request's context ended the connection's greeting")

// own tells an end of one's own context from other failures.
func own(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if u, ok := ctx.(undated); ok {
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
		// With our own context alive nothing else is cancelled.
		return &NotSentError{errOthers}
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
	multi := make([]rueidis.Completed, len(calls))
	for i, call := range calls {
		multi[i] = bySHA(client.B(), s, call.Keys, call.Args)
	}
	answers := c.pipeline(ctx, client, multi)
	for i := range answers {
		if e, ok := errors.AsType[ServerError](answers[i].Err); ok && strings.HasPrefix(string(e), "NOSCRIPT") {
			answers[i].Values, answers[i].Err = c.Eval(ctx, s, calls[i].Keys, calls[i].Args)
		}
	}
	return answers
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
	results, err := promptly(ctx, c, func(ctx context.Context) ([]rueidis.RedisResult, error) { return client.DoMulti(ctx, multi...), nil })
	if err != nil {
		return slices.Repeat([]Answer{{Err: err}}, len(multi))
	}
	answers := make([]Answer, len(results))
	for i, r := range results {
		answers[i].Values, answers[i].Err = values(r)
		answers[i].Err = own(ctx, answers[i].Err)
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
	// A connection for one request alone minds no context but its deadline.
	bounded, cancel := context.WithTimeout(ctx, timeout+silentBound)
	a, err := aside(ctx, c, cancel, func() (acked, error) {
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
		return v, 0, own(ctx, err)
	}
	// WAIT looks at what this connection has written, so it must not be another.
	n, err := d.Do(ctx, d.B().Wait().Numreplicas(int64(replicas)).Timeout(timeout.Milliseconds()).Build()).AsInt64()
	return v, int(n), own(ctx, convert(err))
}

// EachPrimary visits the servers that take writes.
func (c *rueidisClient) EachPrimary(ctx context.Context, f func(Node) error) error {
	client, err := c.connected(ctx)
	if err != nil {
		return err
	}
	if c.mode != Cluster {
		return f(rueidisNode{client, c})
	}
	// All are asked at once: one that is silent holds up none, and is reported at the end.
	bound := dialBound
	if end, dated := ctx.Deadline(); dated {
		bound = min(bound, time.Until(end)/2)
	}
	asking, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	type asked struct {
		node rueidisNode
		role []string
		err  error
	}
	var all []asked
	for _, node := range client.Nodes() {
		all = append(all, asked{node: rueidisNode{node, c}})
	}
	var roles sync.WaitGroup
	for i := range all {
		roles.Go(func() { all[i].role, all[i].err = all[i].node.Command(asking, "ROLE") })
	}
	roles.Wait()
	var silent error
	for _, a := range all {
		if _, answered := errors.AsType[ServerError](a.err); answered {
			return a.err
		}
		// One that is gone has its slots elsewhere, or the cluster is down.
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
		client, err = aside(ctx, c, func() {}, func() (rueidis.Client, error) {
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
	return promptly(ctx, n.c, func(ctx context.Context) ([]string, error) {
		v, err := values(n.client.Do(ctx, n.client.B().Arbitrary(args...).Build()))
		return v, own(ctx, err)
	})
}

// Subscribe listens on a connection that the client shares with other commands,
// or, where the server speaks RESP2 alone, on one of its own.
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
		// The connection goes on without this channel.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialBound)
		defer cancel()
		_ = client.Do(bounded, off).Error()
	}
	return convert(err)
}
