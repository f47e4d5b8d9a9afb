package redis

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/redisstore"
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	return r
}

// shared is a server for all tests that do not disturb it. Each test uses names or a namespace of its own.
var shared struct {
	once sync.Once
	r    *servers.Redis
	err  error
}

func common(t testing.TB) *servers.Redis {
	t.Helper()
	installed(t)
	shared.once.Do(func() {
		var dir string
		if dir, shared.err = os.MkdirTemp("", "hf-redis"); shared.err != nil {
			return
		}
		stops = append(stops, func() { _ = os.RemoveAll(dir) })
		if shared.r, shared.err = servers.StartRedis(context.Background(), dir); shared.err == nil {
			stops = append(stops, shared.r.Kill)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.r
}

func open(t testing.TB, url string, o ...redisstore.Option) *redisstore.Store {
	t.Helper()
	s, err := redisstore.Open(t.Context(), url, o...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// kept returns a function that opens a store. The store is closed when the test ends.
func kept(t *testing.T, f func(string) (driver.Store, error)) func() driver.Store {
	return func() driver.Store {
		s, err := f("")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_ = s.Close(ctx)
		})
		return s
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

var request = requests.New
