package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestSwapIsOneWrite: a swap deletes the old entry and makes the new one in one revision, which
// gives the token of the new grant.
func TestSwapIsOneWrite(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	g := must(t, s, request("n", 1, time.Hour))
	from := int64(g.Token) / tokenRoom
	const n = 20
	tokens := map[int64]bool{}
	for range n {
		g = requests.Swapped(t, s, g, request("n", 1, time.Hour)).Granted()
		tokens[int64(g.Token)/tokenRoom] = true
	}
	deleted := 0
	for changes := client.Watch(t.Context(), "n/", clientv3.WithPrefix(), clientv3.WithRev(from)); deleted < n; {
		for _, e := range receive(t, "the changes", changes).Events {
			if e.Type == clientv3.EventTypeDelete {
				if deleted++; !tokens[e.Kv.ModRevision] {
					t.Errorf("an entry was deleted at revision %d, which made no grant", e.Kv.ModRevision)
				}
			}
		}
	}
	check(t, s.Release(t.Context(), g, 0))
}

// TestPlainTokensAreRevisions: with that option a token is the create revision of the grant's entry, and a grant has
// one token, whatever the request reserves.
func TestPlainTokensAreRevisions(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	client := c.direct(t)
	byURL, err := etcdstore.Open(t.Context(), c.url("/?tokens=revision"))
	for _, s := range []*etcdstore.Store{c.open(t, etcdstore.PlainTokens()), closing(t, byURL, err)} {
		r := request("n", 1, time.Minute)
		r.Tokens = 16
		g := must(t, s, r)
		if entry := youngest(t, client, "n"); uint64(entry.CreateRevision) != g.Token || g.Tokens > 1 {
			t.Errorf("%d tokens from %d on, the entry is %v", g.Tokens, g.Token, entry)
		}
		if declared, err := s.Guarantees(t.Context()); err != nil || declared.Reserves {
			t.Errorf("%+v, %v", declared, err)
		}
		check(t, s.Release(t.Context(), g, 0))
	}
}

// TestSwapReleasesBeforeAKeepalive: the lease needs a keepalive before the next request, and no
// keepalive is answered. The release goes out in any case.
func TestSwapReleasesBeforeAKeepalive(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := over(t, c.direct(t, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(
			func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				if method == "/etcdserverpb.Lease/LeaseKeepAlive" {
					return nil, errBroken
				}
				return streamer(ctx, desc, cc, method, opts...)
			}))
	}))
	const ttl = 3 * time.Second
	for i := range 10 {
		began := time.Now()
		n := fmt.Sprint("n", i)
		old := must(t, s, request(n, 1, ttl))
		time.Sleep(ttl/3 + 10*time.Millisecond) // the age at which a keepalive is due
		released, w := requests.Swap(t, s, old, request(n, 1, ttl))
		_ = w.Ended()
		err, reported := <-released
		if !reported {
			t.Fatalf("the release was not made; the request: %v", w.Err)
		}
		if err == nil {
			return
		}
		// The release failed. The only valid reason is that the process or the server stalled and
		// the grant expired.
		if took := time.Since(began); took < ttl {
			t.Fatalf("the release after %s: %v", took, err)
		}
	}
	t.Error("every grant expired before its release")
}

// TestSwapFindsAKeptGrant: the request of a swap finds a kept grant under its key. The release succeeds at once, and
// the request waits.
func TestSwapFindsAKeptGrant(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, other := c.open(t), c.open(t)
	first := must(t, s, request("taken", driver.Unlimited, time.Hour))
	kept := must(t, s, request("taken", driver.Unlimited, time.Hour))
	check(t, s.Release(t.Context(), kept, time.Hour))
	r := request("taken", driver.Exclusive, time.Hour)
	w := requests.Swapped(t, s, first, r)
	receive(t, "the queue entry", requests.Of(r).Waits)
	st, err := other.Inspect(t.Context(), "taken")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].ID != kept.ID || len(st.Waiters) != 1 {
		t.Errorf("%+v, %v, want the grant that was kept and a waiter", st, err)
	}
	check(t, other.Break(t.Context(), "taken", kept.Token))
	w.Granted()
}
