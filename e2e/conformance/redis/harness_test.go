package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// stops has the functions that end the shared servers. TestMain calls the last one first.
var stops []func()

func TestMain(m *testing.M) {
	if os.Getenv(lockersEnv) != "" {
		runLockers()
		return
	}
	logging.Disable() // go-redis would log each connection that these tests break
	code := m.Run()
	for i := len(stops) - 1; i >= 0; i-- {
		stops[i]()
	}
	os.Exit(code)
}

func installed(t testing.TB) {
	t.Helper()
	_, err := servers.RedisInstalled()
	servertest.Started(t, err)
}

// start starts a server for one test.
func start(t testing.TB, settings ...string) *servers.Redis {
	t.Helper()
	installed(t)
	r, err := servers.StartRedis(t.Context(), t.TempDir(), settings...)
	check(t, err)
	t.Cleanup(r.Kill)
	return r
}

// replicas starts a primary with one replica.
func replicas(t testing.TB, settings ...string) *servers.RedisReplicas {
	t.Helper()
	installed(t)
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1, settings...)
	check(t, err)
	t.Cleanup(g.Kill)
	return g
}

// shared are servers that all tests use, unless they disturb them. The first one starts them.
type shared[S interface{ Kill() }] struct {
	once sync.Once
	s    S
	err  error
}

func (s *shared[S]) get(t testing.TB, start func(dir string) (S, error)) S {
	t.Helper()
	installed(t)
	s.once.Do(func() {
		var dir string
		if dir, s.err = os.MkdirTemp("", "hf-redis"); s.err != nil {
			return
		}
		stops = append(stops, func() { _ = os.RemoveAll(dir) })
		if s.s, s.err = start(dir); s.err == nil {
			stops = append(stops, s.s.Kill)
		}
	})
	check(t, s.err)
	return s.s
}

var (
	commonServer  shared[*servers.Redis]
	commonCluster shared[*servers.RedisCluster]
)

// common returns a server for all tests. Each test uses names or a namespace of its own.
func common(t testing.TB) *servers.Redis {
	t.Helper()
	return commonServer.get(t, func(dir string) (*servers.Redis, error) {
		return servers.StartRedis(context.Background(), dir)
	})
}

// cluster returns a Cluster for all tests that change nothing but the owners of hash slots.
func cluster(t testing.TB) *servers.RedisCluster {
	t.Helper()
	return commonCluster.get(t, func(dir string) (*servers.RedisCluster, error) {
		return servers.StartRedisCluster(context.Background(), dir, false)
	})
}

// ownCluster starts a Cluster for one test.
func ownCluster(t testing.TB, replicas bool) *servers.RedisCluster {
	t.Helper()
	installed(t)
	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), replicas)
	check(t, err)
	t.Cleanup(c.Kill)
	return c
}

func open(t testing.TB, url string, o ...redisstore.Option) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(t.Context(), url, o...)
	return opened(t, s, err)
}

// opened requires that a store was opened, and closes it when the test ends.
func opened[S driver.Store](t testing.TB, s S, err error) S {
	t.Helper()
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// store is a store of any layout.
type store interface {
	driver.Store
	driver.Inspector
	driver.Breaker
}

// openLayout opens a store in the layout of another client library.
func openLayout(t testing.TB, url string, l layouts.Layout, o ...redisstore.Option) *layouts.Store {
	t.Helper()
	s, err := layouts.Open(t.Context(), url, l, o...)
	return opened(t, s, err)
}

// kept returns a function that opens a store. The store is closed when the test ends.
func kept(t *testing.T, f func(string) (driver.Store, error)) func() driver.Store {
	return func() driver.Store {
		s, err := f("")
		return opened(t, s, err)
	}
}

func do(t testing.TB, r *servers.Redis, args ...string) any {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := r.Do(ctx, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return answer
}

// leftovers lists the keys that contain more than tombstones.
func leftovers(t testing.TB, rs ...*servers.Redis) (left []string) {
	for _, r := range rs {
		keys, _ := do(t, r, "KEYS", "holdfast:{???}:*").([]any)
		for _, k := range keys {
			key := k.(string)
			fields, _ := do(t, r, "HGETALL", key).([]any)
			for i := 0; i+1 < len(fields); i += 2 {
				name := fields[i].(string)
				if name == "s0" && fields[i+1] == "" {
					continue // slot 0 is free
				}
				if strings.HasPrefix(name, "s") || strings.HasPrefix(name, "q") || strings.HasPrefix(name, "i") {
					left = append(left, fmt.Sprintf("%q: %v", key, fields))
					break
				}
			}
		}
	}
	return left
}

const (
	testTimeout = requests.Timeout
	long        = requests.Long
)

type waiter = requests.Waiter

var (
	request    = requests.New
	must       = requests.Must
	submit     = requests.Submit
	queue      = requests.Queue
	code       = requests.Code
	lost       = requests.Lost
	undone     = requests.Undone
	release    = requests.Release
	swapped    = requests.Swapped
	renewed    = requests.Renewed
	rises      = requests.Rises
	eventually = requests.Eventually
	each       = requests.Each
	check      = servertest.Check
)

// stepped is a client that passes each call of a script to step, which returns what the store gets. step calls
// send for each time that the server gets the call.
type stepped struct {
	redisstore.Client
	step func(s *redisstore.Script, args []string, send func() error) error
}

func (c *stepped) Eval(ctx context.Context, s *redisstore.Script, keys, args []string) (v []string, err error) {
	err = c.step(s, args, func() (err error) {
		v, err = c.Client.Eval(context.WithoutCancel(ctx), s, keys, args)
		return err
	})
	return v, err
}

func (c *stepped) EvalAll(ctx context.Context, s *redisstore.Script, calls []redisstore.Call) []redisstore.Answer {
	all := make([]redisstore.Answer, len(calls))
	for i, one := range calls {
		all[i].Values, all[i].Err = c.Eval(ctx, s, one.Keys, one.Args)
	}
	return all
}

// overSteps is a store over a stepped client, and the store whose client that uses.
type overSteps struct {
	store
	below *redisstore.Store
}

func (o overSteps) Close(ctx context.Context) error {
	return errors.Join(o.store.Close(ctx), o.below.Close(ctx))
}

// openSteps opens a store over a stepped client. The caller closes it.
func openSteps(t testing.TB, url string, over func(redisstore.Client) (store, error),
	step func(s *redisstore.Script, args []string, send func() error) error,
) overSteps {
	t.Helper()
	below, err := redisstore.Open(t.Context(), url)
	check(t, err)
	s, err := over(&stepped{below.Client(), step})
	check(t, err)
	return overSteps{s, below}
}

// steps are the scripts of a client of the server.
func steps(r *servers.Redis, over func(redisstore.Client) (store, error)) *drivertest.Steps {
	return &drivertest.Steps{
		Open: func(t testing.TB, step func(func() error) error) driver.Store {
			o := openSteps(t, "redis://"+r.Address(), over, func(_ *redisstore.Script, _ []string, send func() error) error {
				return step(send)
			})
			if s, ok := o.store.(*redisstore.Store); ok {
				return swapping{s, o}
			}
			return o
		},
		Faults: stepFaults,
		Late:   errNoAnswer,
	}
}

// swapping is a store that can swap. Its Close closes both stores.
type swapping struct {
	*redisstore.Store
	all overSteps
}

func (s swapping) Close(ctx context.Context) error { return s.all.Close(ctx) }

func overNative(c redisstore.Client) (store, error) { return redisstore.NewOver(c) }

var errNoAnswer = errors.New("no answer")

// stepFaults are what may happen to a call of a script.
var stepFaults = map[string]func(send func() error) error{
	"the answer is lost":  func(send func() error) error { _ = send(); return errNoAnswer },
	"the request is lost": func(func() error) error { return errNoAnswer },
	"not sent":            func(func() error) error { return &redisstore.NotSentError{Err: errNoAnswer} },
	"busy":                func(func() error) error { return redisstore.ServerError("BUSY Redis is busy running a script") },
	"no memory": func(func() error) error {
		return redisstore.ServerError("OOM command not allowed when used memory > 'maxmemory'")
	},
}

// withoutMemory returns the refusal of a full server. A holder can still renew and release.
func withoutMemory(r *servers.Redis) drivertest.Refusal {
	set := func(most string) func(testing.TB) {
		return func(t testing.TB) { do(t, r, "CONFIG", "SET", "maxmemory", most) } // 1 is less than an empty server uses
	}
	return drivertest.Refusal{Name: "without memory", Begin: set("1"), End: set("0"), Succeed: []string{"renewal", "release"}}
}

// withoutRights returns a refusal for each right of the user app. "A -B" are two rights.
// unnoticed are rights that most calls do without.
var unnoticed = strings.Fields("del hgetall publish subscribe unsubscribe hello ping")

func withoutRights(r *servers.Redis, rights []string) (all []drivertest.Refusal) {
	for _, right := range rights {
		set := func(sign string) func(testing.TB) {
			rules := strings.Fields("ACL SETUSER app " + sign + strings.ReplaceAll(right, "-", sign))
			return func(t testing.TB) { do(t, r, rules...) }
		}
		all = append(all, drivertest.Refusal{Name: "without " + right, Begin: set("-"), End: set("+"), Unnoticed: slices.Contains(unnoticed, right)})
	}
	return all
}
