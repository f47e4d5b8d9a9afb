package etcd

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// metric returns the sum of the server's metrics that begin with name and contain part.
func (c *cluster) metric(t *testing.T, name, part string) (n int) {
	t.Helper()
	resp, err := http.Get("http://" + c.members[0].Client + "/metrics")
	check(t, err)
	defer resp.Body.Close()
	found := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, name) || !strings.Contains(line, part) {
			continue
		}
		var v float64
		_, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &v)
		check(t, err)
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

// TestStoreSharesLoginAndStreams: each of twenty clients, with a user, holds a lock with a TTL of 3 s.
// For several TTLs it also waits for another lock. The server sees one login, one keepalive stream and one watch
// stream for each store. No lock is lost.
func TestStoreSharesLoginAndStreams(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	c.secure(t)
	const clients, ttl = 20, 3 * time.Second
	logins, beats, watches := c.calls(t, "Authenticate"), c.calls(t, "LeaseKeepAlive"), c.calls(t, "Watch")
	var lockers []*holdfast.Locker
	for range clients {
		l, err := requests.Retried(func() (*holdfast.Locker, error) { return holdfast.Open(t.Context(), c.secured()) })
		check(t, err)
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		lockers = append(lockers, l)
	}
	shared, err := lockers[0].Lock(t.Context(), "shared", holdfast.TTL(time.Minute))
	check(t, err)
	held := []*holdfast.Lock{shared}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i, l := range lockers {
		k, err := requests.Retried(func() (*holdfast.Lock, error) {
			return l.Lock(t.Context(), fmt.Sprint("own-", i), holdfast.TTL(ttl))
		})
		check(t, err)
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
