package redlock

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// skew is the tolerance of most fleets in these tests. It is small, so that leases expire
// soon after their TTL. It is large enough for a machine that stands still for a while.
const skew = 250 * time.Millisecond

// fleet is a number of servers, each behind a proxy.
type fleet struct {
	t       testing.TB
	all     []*servers.Redis
	proxies []*servers.Proxy
	options options
}

// options are those of every client of a fleet.
type options []redlock.Option

// start starts n servers and sets them up as a fleet.
func start(t testing.TB, n int, o options, settings ...string) *fleet {
	t.Helper()
	f := startBare(t, n, o, settings...)
	f.setUp()
	return f
}

func startBare(t testing.TB, n int, o options, settings ...string) *fleet {
	t.Helper()
	_, err := servers.RedisInstalled()
	servertest.Started(t, err)
	f := &fleet{t: t, options: append(options{redlock.Skew(skew)}, o...), all: make([]*servers.Redis, n)}
	dir := t.TempDir()
	var starting sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		starting.Go(func() {
			f.all[i], errs[i] = servers.StartRedis(context.WithoutCancel(t.Context()), filepath.Join(dir, fmt.Sprintf("redis-%d", i)), settings...)
		})
	}
	starting.Wait()
	t.Cleanup(func() {
		for _, r := range f.all {
			if r != nil {
				r.Kill()
			}
		}
	})
	for i := range n {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		p, err := servers.NewProxy(f.all[i].Address())
		check(t, err)
		t.Cleanup(p.Close)
		f.proxies = append(f.proxies, p)
	}
	return f
}

// setUp admits the servers of a new fleet.
func (f *fleet) setUp() {
	f.t.Helper()
	s := f.open(f.t, redlock.Fresh())
	if _, err := s.Guarantees(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	if err := s.Close(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	for i := range f.all {
		if !f.votes(i) {
			f.t.Fatalf("server %d of a new fleet was not admitted", i)
		}
	}
}

// fakeClock restarts a server with a clock that can be set.
func (f *fleet) fakeClock(i int) {
	f.t.Helper()
	if err := f.all[i].FakeClock(f.t.Context()); err != nil {
		servertest.Started(f.t, err)
	}
}

// client is a store of a fleet with the stores of its servers. Close closes all of them.
type client struct {
	*redlock.Store
	below []*redisstore.Store
}

func (c *client) Close(ctx context.Context) error {
	err := c.Store.Close(ctx)
	for _, s := range c.below {
		_ = s.Close(ctx)
	}
	return err
}

func (f *fleet) open(t testing.TB, more ...redlock.Option) *client {
	t.Helper()
	out := f.make(t, more...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = out.Close(ctx)
	})
	return out
}

// make opens a client that the caller closes.
func (f *fleet) make(t testing.TB, more ...redlock.Option) *client {
	t.Helper()
	var addresses []string
	for _, p := range f.proxies {
		addresses = append(addresses, p.Address())
	}
	return f.at(t, addresses, more...)
}

// at opens a client through other proxies. The caller closes it.
func (f *fleet) at(t testing.TB, addresses []string, more ...redlock.Option) *client {
	t.Helper()
	out := &client{}
	for _, address := range addresses {
		s, err := redisstore.Open(t.Context(), "redis://"+address)
		check(t, err)
		out.below = append(out.below, s)
	}
	var err error
	if out.Store, err = redlock.New(out.below, append(slices.Clip(f.options), more...)...); err != nil {
		t.Fatal(err)
	}
	return out
}

// do sends a command to a server, without the proxy.
func (f *fleet) do(i int, args ...string) any {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := f.all[i].Do(ctx, args...)
	if err != nil {
		f.t.Fatalf("%v: %v", args, err)
	}
	return answer
}

// state returns the server's record about itself.
func (f *fleet) state(i int) map[string]string {
	fields, _ := f.do(i, "HGETALL", "holdfast:redlock").([]any)
	m := map[string]string{}
	for j := 0; j+1 < len(fields); j += 2 {
		m[fields[j].(string)] = fields[j+1].(string)
	}
	return m
}

// votes reports whether a server is admitted.
func (f *fleet) votes(i int) bool {
	info, _ := f.do(i, "INFO", "replication").(string)
	_, rest, _ := strings.Cut(info, "master_replid:")
	run, _, _ := strings.Cut(rest, "\r")
	return run != "" && f.state(i)["run"] == run
}

// leftovers lists the keys of locks and queues, and the records of locks that are kept. It omits tombstones,
// which expire, and the records of kept locks that have ended: a later release removes them.
func (f *fleet) leftovers(testing.TB) (left []string) {
	for i := range f.all {
		now := strconv.FormatInt(time.Now().UnixMicro(), 10)
		kept, _ := f.do(i, "ZRANGE", "holdfast:redlock:kept", now, "+inf", "BYSCORE").([]any)
		for _, k := range kept {
			left = append(left, fmt.Sprintf("server %d keeps %s", i, k))
		}
		keys, _ := f.do(i, "KEYS", "holdfast:redlock:*").([]any)
		for _, k := range keys {
			if key := k.(string); strings.HasPrefix(key, "holdfast:redlock:v:") || key == "holdfast:redlock:kept" {
				continue
			}
			left = append(left, fmt.Sprintf("server %d: %s", i, k))
		}
	}
	return left
}

var (
	until = requests.Eventually
	undo  = requests.Undone
	check = servertest.Check
)

var names atomic.Int64

// newName returns a name that no test has used.
func newName(prefix string) string { return fmt.Sprint(prefix, "-", names.Add(1)) }

func request(name string, ttl time.Duration) driver.Request {
	return requests.New(name, driver.Exclusive, ttl)
}

// acquire repeats a request until it is granted or the name is busy. While the machine stands still, a
// server may seem silent, and the request fails.
func acquire(t testing.TB, s driver.Store, name string, ttl time.Duration) (driver.Grant, error) {
	t.Helper()
	var g driver.Grant
	var err error
	until(t, "the servers answer a request", func() bool {
		r := request(name, ttl)
		g, err = s.Acquire(t.Context(), r)
		if s.Classify(err) == driver.CodeUnknown && err != nil {
			undo(t, s, r)
		}
		return err == nil || s.Classify(err) == driver.CodeBusy
	})
	return g, err
}

func must(t testing.TB, s driver.Store, name string, ttl time.Duration) driver.Grant {
	t.Helper()
	var g driver.Grant
	until(t, "the request is granted", func() bool {
		var err error
		g, err = acquire(t, s, name, ttl)
		return err == nil
	})
	return g
}

func release(t testing.TB, s driver.Store, g driver.Grant) {
	t.Helper()
	check(t, s.Release(t.Context(), g, 0))
}
