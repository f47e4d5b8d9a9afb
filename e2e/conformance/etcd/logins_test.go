package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
)

// metric returns the sum of the server's metrics that begin with name and contain part.
func (c *cluster) metric(t *testing.T, name, part string) (n int) {
	t.Helper()
	resp, err := http.Get("http://" + c.members[0].Client + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	found := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, name) || !strings.Contains(line, part) {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v); err != nil {
			t.Fatal(err)
		}
		n, found = n+int(v), true
	}
	if !found {
		t.Fatalf("the server has no metric %s with %s", name, part)
	}
	return n
}

// calls returns how often a method was called. For a streaming method that is the number of streams.
func (c *cluster) calls(t *testing.T, method string) int {
	t.Helper()
	return c.metric(t, "grpc_server_started_total{", `grpc_method="`+method+`"`)
}

// TestStoreSharesLoginAndStreams: each of forty clients, with a user, holds a lock with a TTL of 3 s.
// For several TTLs it also waits for another lock. The server sees one login, one keepalive stream and one watch
// stream for each store. No lock is lost.
func TestStoreSharesLoginAndStreams(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	c.secure(t)
	const clients, ttl = 40, 3 * time.Second
	logins, beats, watches := c.calls(t, "Authenticate"), c.calls(t, "LeaseKeepAlive"), c.calls(t, "Watch")
	var lockers []*holdfast.Locker
	for range clients {
		l, err := holdfast.Open(t.Context(), c.secured())
		for end := time.Now().Add(testTimeout); errors.Is(err, holdfast.ErrUnavailable) && time.Now().Before(end); { // a busy machine
			l, err = holdfast.Open(t.Context(), c.secured())
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		lockers = append(lockers, l)
	}
	shared, err := lockers[0].Lock(t.Context(), "shared", holdfast.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	held := []*holdfast.Lock{shared}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i, l := range lockers {
		k, err := l.Lock(t.Context(), fmt.Sprint("own-", i), holdfast.TTL(ttl))
		for end := time.Now().Add(testTimeout); errors.Is(err, holdfast.ErrUnavailable) && time.Now().Before(end); { // a busy machine
			k, err = l.Lock(t.Context(), fmt.Sprint("own-", i), holdfast.TTL(ttl))
		}
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, k)
		waiting.Go(func() {
			for ctx.Err() == nil { // each wait ends without a grant, and the next begins
				if k, err := l.Lock(ctx, "shared", holdfast.TTL(ttl), holdfast.Wait(ttl/3)); err == nil {
					_ = k.Unlock()
				}
			}
		})
	}
	time.Sleep(4 * ttl)
	for i, k := range held {
		if err := k.Context().Err(); err != nil {
			t.Errorf("client %d lost its lock: %v", i, context.Cause(k.Context()))
		}
	}
	// A client replaces the stream of a member that is too busy to answer. One stream for
	// each keepalive would be twelve for each client.
	for _, n := range []struct {
		what      string
		got, want int
	}{
		{"logins", c.calls(t, "Authenticate") - logins, clients},
		{"streams of keepalives", c.calls(t, "LeaseKeepAlive") - beats, clients},
		{"streams of watches", c.calls(t, "Watch") - watches, clients},
	} {
		t.Logf("%d %s", n.got, n.what)
		if n.got > 2*n.want {
			t.Errorf("%d %s of %d clients, want about %d", n.got, n.what, clients, n.want)
		}
	}
}

// TestLoginsKeepContendedThroughput: three clients compete for one name. With authentication they get
// about as many grants as without.
func TestLoginsKeepContendedThroughput(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	grants := func(url string) (n int64) {
		var count atomic.Int64
		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 3 {
			l, err := holdfast.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close(context.Background())
			k, err := l.Lock(t.Context(), "warm") // the client has a connection after this
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Unlock(); err != nil {
				t.Fatal(err)
			}
			running.Go(func() {
				for ctx.Err() == nil {
					k, err := l.Lock(ctx, "n")
					if err != nil {
						continue
					}
					count.Add(1)
					_ = k.Unlock()
				}
			})
		}
		time.Sleep(5 * time.Second)
		n = count.Load()
		cancel()
		running.Wait()
		return n
	}
	without := grants(c.url("/locks/"))
	c.secure(t)
	with := grants(c.secured())
	t.Logf("%d grants in 5 s without users, %d with", without, with)
	if with < without/3 {
		t.Errorf("%d grants with users, want at least a third of the %d without", with, without)
	}
}
