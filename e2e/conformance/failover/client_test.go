//go:build !race

package failover

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/redisstore"
)

// command is what a client does with its store.
type command uint8

const (
	acquire command = iota + 1
	renew
	release
	keep // a release that keeps the name
	undo
	swap
	cancel // of the request that waits
)

// input is what a client gets from the world.
type input struct {
	at      int8 // the time of the world, in units
	command command
	ask     int8 // the number of a request of the client, which gets an answer; 0 for none
	answer  int32
	acked   int8
	message string
}

// ask is a request to the server.
type ask struct {
	n      int8 // 1 for the first one of the client
	script *redisstore.Script
	keys   []string
	args   []string
	only   string // WAIT follows if the answer starts with it; "" for no WAIT

	answered chan reply
}

type reply struct {
	values []string
	err    error
	acked  int8
}

// state is what the program of a client has.
type state struct {
	idle       bool // it begins another call
	waits      bool
	gen        int8 // of the last request
	grantGen   int8
	holds      bool
	token      uint64
	last       uint64 // token of the grant
	until      int64  // validity, in microseconds of the world
	renewed    int8
	unreleased bool
	keepUntil  int64
	undo       int8   // the request that may have left something; 0 for none
	kept       int64  // a confirmed release keeps the name until then
	keptToken  uint64 // of that grant
}

var (
	errLost     = errors.New("the answer was lost")
	errReadonly = redisstore.ServerError("READONLY You can't write against a read only replica.")
)

// client runs a store in a bubble. It has a program, and is the store's redisstore.Client.
type client struct {
	name  string
	store *redisstore.Store
	began time.Time
	now   int8 // the time of the world
	state
	commands chan command
	stop     context.CancelFunc // ends the request that waits
	end      chan struct{}      // closed when there is no further input
	asked    int8
	asks     []*ask // that have no answer
	channel  string
	got      func(string)
	secrets  map[string]string // of the tags, by the request's ID
	lates    map[string]string // until when a request may arrive: what the scripts get in its place
}

// mode is what the clients and the servers do.
type mode struct {
	name     string
	replicas int
	// former: a former primary goes on until the end, and clients may still reach it.
	former bool
	swap   bool
}

const (
	unit       = 400 * time.Millisecond
	second     = int64(1e6)
	worldBegan = int64(1.7e15) // of the servers' clock, in microseconds
	ttl        = 6 * time.Second
	minHold    = 4 * time.Second
)

// outcome is what a client does after its inputs.
type outcome struct {
	state
	asks []*ask
	// chance: the client has made other steps than before with the same inputs, because the store has a jitter, or
	// because two channels were ready.
	chance bool
}

// run runs the store of a client with these inputs, and returns what it does then.
func run(t *testing.T, name string, m mode, inputs []input, answers []result, until int8) (o outcome) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(100 * 365 * 24 * time.Hour) // the store counts from the start of the process, which the bubble precedes
		c := &client{
			name: name, commands: make(chan command), end: make(chan struct{}),
			secrets: map[string]string{}, lates: map[string]string{"0": "0"},
		}
		s, err := redisstore.NewOver(c, redisstore.WaitReplicas(m.replicas, 0))
		must.Succeed(t, err)
		c.store = s
		c.useOther(t) // so that the client has a subscription
		time.Sleep(time.Millisecond)
		c.began = time.Now()
		go c.program()
		synctest.Wait()
		for _, in := range inputs {
			c.sleepUntil(t, in.at)
			i := slices.IndexFunc(c.asks, func(a *ask) bool { return a.n == in.ask })
			switch {
			case in.command == cancel:
				c.stop()
			case in.command != 0 && c.idle:
				c.commands <- in.command
			case in.ask != 0 && i >= 0:
				r := answers[in.answer]
				c.asks[i].answered <- reply{r.values, r.err, in.acked}
			case in.message != "":
				c.receive(in.message)
			default:
				o.chance = true
			}
			synctest.Wait()
		}
		c.sleepUntil(t, until)
		synctest.Wait()
		o.state, o.asks = c.state, slices.Clone(c.asks)
		close(c.end)
		_ = s.Close(t.Context())
	})
	return o
}

// sleepUntil lets time pass until a time of the world.
func (c *client) sleepUntil(t *testing.T, at int8) {
	for ; c.now < at; c.now++ {
		time.Sleep(unit)
		synctest.Wait()
		c.useOther(t) // so that the last probe of the servers is never old
	}
}

// useOther takes and releases another lock.
func (c *client) useOther(t *testing.T) {
	r := driver.Request{ID: "other", Name: "other", Limit: 1, TTL: ttl, Wait: true, From: c}
	g, err := c.store.Acquire(t.Context(), r)
	if err == nil {
		err = c.store.Release(t.Context(), g, 0)
	}
	must.Succeed(t, err)
}

// micros returns a time of the world in whole units, which do not depend on the jitter of the store.
func (c *client) micros(t time.Time) int64 { return (t.Sub(c.began) / unit * unit).Microseconds() }

func (c *client) request(gen int8) driver.Request {
	return driver.Request{
		ID: c.name + strconv.Itoa(int(gen)), Name: "n", Limit: 1, TTL: ttl, Wait: true, Provisional: true, From: c,
	}
}

// program does what the world commands.
func (c *client) program() {
	s := c.store
	var g driver.Grant
	take := func(next driver.Grant, err error) {
		switch {
		case err == nil:
			g, c.holds, c.grantGen = next, true, c.gen
			c.token, c.last = g.Token, g.Last()
			c.until = c.micros(g.SentAt.Time()) + g.TTL.Microseconds()
		case s.Classify(err) == driver.CodeUnknown:
			c.undo = c.gen
		}
		c.waits = false
	}
	released := func(err error) {
		c.unreleased = err != nil && s.Classify(err) != driver.CodeNotHeld
		if err == nil && c.keepUntil > 0 {
			c.kept, c.keptToken = c.keepUntil, g.Token
		}
	}
	for {
		c.idle = true
		var next command
		select {
		case next = <-c.commands:
		case <-c.end:
			return
		}
		c.idle = false
		ctx, stop := context.WithCancel(context.Background())
		c.stop = stop
		switch next {
		case acquire, swap:
			c.gen++
			c.waits, c.keepUntil = true, 0
			if next == acquire {
				take(s.Acquire(ctx, c.request(c.gen)))
				break
			}
			c.holds, c.unreleased = false, true
			take(s.Swap(ctx, g, c.request(c.gen), released))
		case renew:
			c.renewed++
			r := s.Renew(ctx, []driver.Grant{g})[0]
			switch {
			case r.Err == nil:
				c.until = c.micros(r.SentAt.Time()) + r.TTL.Microseconds()
			case s.Classify(r.Err) == driver.CodeNotHeld:
				c.holds, c.unreleased = false, true
			}
		case release, keep:
			now := c.micros(time.Now())
			if next == keep {
				c.keepUntil = now + minHold.Microseconds()
			}
			c.holds, c.unreleased = false, true
			released(s.Release(ctx, g, time.Duration(max(c.keepUntil-now, 0))*time.Microsecond))
		case undo:
			if s.Undo(ctx, c.request(c.undo)) == nil {
				c.undo = 0
			}
		}
		stop()
	}
}

// receive gives the store a message.
func (c *client) receive(text string) {
	if at := strings.LastIndexByte(text, ' '); at >= 0 { // the message has a tag
		id, n, _ := strings.Cut(text[at+1:], "-")
		text = text[:at+1] + c.secrets[id] + "-" + n
	}
	c.got(text)
}

// known replaces what is random or has jitter in the arguments of a script.
func (c *client) known(script string, args []string) []string {
	args = slices.Clone(args)
	late := func(i int) {
		if i >= len(args) {
			return
		}
		known, ok := c.lates[args[i]]
		if !ok {
			known = strconv.FormatInt(worldBegan+c.micros(time.Now())+10*second, 10)
			c.lates[args[i]] = known
		}
		args[i] = known
	}
	switch script {
	case "acquire":
		args[0] = strings.Replace(args[0], c.channel, c.name, 1)
		late(3)
		late(12)
		if len(args) > 9 && args[9] != "" {
			secret, n, _ := strings.Cut(args[9], "-")
			id := args[0][strings.LastIndexByte(args[0], ' ')+1:]
			c.secrets[id] = secret
			args[9] = id + "-" + n
		}
	case "release":
		late(3)
	case "undo":
		late(1)
	}
	return args
}

// otherKey is the key of the lock of useOther.
var otherKey = redisstore.Key("", "other")

func (c *client) send(
	ctx context.Context, s *redisstore.Script, keys, args []string, only string,
) ([]string, int, error) {
	if keys[0] == otherKey {
		switch s.Name {
		case "acquire":
			return []string{"G", strconv.FormatInt(worldBegan, 10), "1", "0"}, 1, nil
		case "release":
			return []string{"R"}, 1, nil
		}
	}
	c.asked++
	a := &ask{c.asked, s, keys, c.known(s.Name, args), only, make(chan reply)}
	c.asks = append(c.asks, a)
	defer func() { c.asks = slices.DeleteFunc(c.asks, func(o *ask) bool { return o == a }) }()
	select {
	case r := <-a.answered:
		return r.values, int(r.acked), r.err
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	case <-c.end:
		return nil, 0, errLost
	}
}

func (c *client) Eval(ctx context.Context, s *redisstore.Script, keys, args []string) ([]string, error) {
	values, _, err := c.send(ctx, s, keys, args, "")
	return values, err
}

func (c *client) EvalAcked(
	ctx context.Context, s *redisstore.Script, keys, args []string, only string, _ int, _ time.Duration,
) ([]string, int, error) {
	return c.send(ctx, s, keys, args, only)
}

// EvalAll leaves the checks of grants unanswered.
func (c *client) EvalAll(ctx context.Context, s *redisstore.Script, calls []redisstore.Call) []redisstore.Answer {
	all := make([]redisstore.Answer, len(calls))
	for i, call := range calls {
		switch s.Name {
		case "renew":
			all[i].Values, all[i].Err = c.Eval(ctx, s, call.Keys, call.Args)
		case "check":
			all[i].Err = errLost
		}
	}
	return all
}

func (c *client) Subscribe(ctx context.Context, channel string, ready func(), got func(string)) error {
	c.channel, c.got = channel, got
	ready()
	<-ctx.Done()
	return ctx.Err()
}

func (c *client) SubscribeSharded(ctx context.Context, channel string, ready func(), got func(string)) error {
	return c.Subscribe(ctx, channel, ready, got)
}

// The probes find a server that is safe.
func (c *client) Command(_ context.Context, args ...string) ([]string, error) {
	switch args[0] {
	case "EVAL":
		return []string{"T", strconv.FormatInt(worldBegan, 10)}, nil
	case "TIME":
		return []string{strconv.FormatInt(worldBegan/second, 10), "0"}, nil
	case "INFO":
		return []string{"redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\nconnected_slaves:1\r\n"}, nil
	}
	return []string{"0"}, nil
}

func (c *client) Commands(_ context.Context, commands [][]string) []redisstore.Answer {
	return make([]redisstore.Answer, len(commands))
}

func (c *client) EachPrimary(_ context.Context, each func(redisstore.Node) error) error {
	return each(c)
}
func (c *client) Replica(context.Context, string) (redisstore.Node, error) { return c, nil }
func (c *client) Mode() redisstore.Mode                                    { return redisstore.Standalone }
func (c *client) String() string                                           { return "model" }
func (c *client) Reconnect()                                               {}
func (c *client) Close()                                                   {}
func (c *client) Owner() driver.Owner                                      { return driver.Owner{} }
func (c *client) Queued([]driver.Holder)                                   {}
func (c *client) Lost(driver.Cause, error)                                 {}
