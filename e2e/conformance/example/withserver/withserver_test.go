// Package withserver is the harness of docs/adding-a-store.md for a store with a server. The
// server is a redis-server, and the store redisstore.
package withserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

func TestMain(m *testing.M) {
	check.MaybeWorker()
	os.Exit(m.Run())
}

// start starts a server, and a proxy before it.
func start(t *testing.T) (*servers.Server, *servers.Proxy, string) {
	program, err := servers.Find("redis-server")
	if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	server, err := servers.Start(t.Context(), servers.Config{
		Command: []string{program, "--port", strconv.Itoa(port), "--appendonly", "yes", "--appendfsync", "always"},
		Dir:     t.TempDir(),
		Ready:   servers.Dial(address), // or another check that your server is ready
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	proxy, err := servers.NewProxy(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	return server, proxy, address
}

// harness lets the suite disturb the server and the link to it.
func harness(server *servers.Server, proxy *servers.Proxy) drivertest.Harness {
	must := func(t testing.TB, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return drivertest.Harness{
		Open: func(t testing.TB, namespace string) driver.Store {
			s, err := redisstore.Open(t.Context(), "redis://"+proxy.Address(), redisstore.Namespace(namespace))
			must(t, err)
			return s
		},
		Stop:       func(t testing.TB) { must(t, server.Pause()) },
		Start:      func(t testing.TB) { must(t, server.Cont()) },
		Delay:      func(t testing.TB, d time.Duration) { must(t, proxy.Delay(d)) },
		LoseAnswer: func(t testing.TB, after int) { must(t, proxy.LoseAnswer(after)) },
		Disconnect: func(t testing.TB) { proxy.Cut(); must(t, proxy.Heal()) },
		EntryTTL:   2500 * time.Millisecond,
	}
}

// faults returns the faults of the check. It injects them one at a time: a killed server cannot be paused.
func faults(server *servers.Server, proxy *servers.Proxy, acl func(ctx context.Context, rule string) error) []check.StoreFault {
	return check.OneAtATime([]check.StoreFault{
		{
			Kind:  "pause-server",
			Begin: func(context.Context, check.Fault) error { return server.Pause() },
			End:   func(context.Context, check.Fault) error { return server.Cont() },
		},
		{
			Kind:  "kill-server",
			Begin: func(context.Context, check.Fault) error { server.Kill(); return nil },
			End:   func(ctx context.Context, _ check.Fault) error { return server.Restart(ctx) },
		},
		{
			Kind:  "delay-server",
			Begin: func(_ context.Context, f check.Fault) error { return proxy.Delay(f.For / 2) },
			End:   func(context.Context, check.Fault) error { return proxy.Delay(0) },
		},
		{
			Kind:   "refuse-command",
			Detail: func(check.Fault) string { return "PUBLISH" },
			Begin:  func(ctx context.Context, _ check.Fault) error { return acl(ctx, "-publish") },
			End:    func(ctx context.Context, _ check.Fault) error { return acl(ctx, "+publish") },
		},
	})
}

// TestClientWorksAfterEachHarnessAction requires that a client works again after each action of the harness.
func TestClientWorksAfterEachHarnessAction(t *testing.T) {
	server, proxy, _ := start(t)
	h := harness(server, proxy)
	s := h.Open(t, "")
	defer s.Close(t.Context())
	works := func(after string) {
		t.Helper()
		var err error
		for n, end := 0, time.Now().Add(time.Minute); time.Now().Before(end); n++ {
			r := driver.Request{ID: fmt.Sprintf("t-%s-%d", after, n), Name: after, Limit: driver.Exclusive, TTL: time.Minute, From: requester{}}
			if _, err = s.Acquire(t.Context(), r); err == nil {
				return
			}
			_ = s.Undo(t.Context(), r)
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("after %s: %v", after, err)
	}
	works("open")
	h.Stop(t)
	h.Start(t)
	works("stop")
	h.Delay(t, 50*time.Millisecond)
	h.Delay(t, 10*time.Millisecond)
	works("delay")
	h.Delay(t, 0)
	h.LoseAnswer(t, 0)
	works("lost-answer")
	h.Disconnect(t)
	works("disconnect")
}

// TestManyOverSlowLink holds 2000 locks over a link with a delay of 20 ms.
func TestManyOverSlowLink(t *testing.T) {
	server, proxy, _ := start(t)
	drivertest.ManyOverSlowLink(t, harness(server, proxy), 2000, 20*time.Millisecond, 6*time.Second)
}

type requester struct{}

func (requester) Owner() driver.Owner      { return driver.Owner{ID: "t"} }
func (requester) Queued([]driver.Holder)   {}
func (requester) Lost(driver.Cause, error) {}

func TestTorture(t *testing.T) {
	server, proxy, address := start(t)
	admin := goredis.NewClient(&goredis.Options{Addr: address})
	defer admin.Close()
	all := faults(server, proxy, func(ctx context.Context, rule string) error {
		return admin.Do(ctx, "ACL", "SETUSER", "default", rule).Err()
	})
	r := checktest.Run(t, check.Config{Duration: 5 * time.Second, Target: &check.Target{URL: "redis://" + proxy.Address(), Faults: all}})
	if s := r.Stats; s.Grants < 40 || s.Writes == 0 {
		t.Errorf("%+v: the check made too few grants or writes", s)
	}
}
