// Package nats tests natsstore on real servers.
//
// A test is skipped if the program of its server is missing. With HOLDFAST_REQUIRE_SERVERS=1 it
// fails.
package nats

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/natsstore"
)

// cluster is a running cluster of NATS with a proxy before each server.
type cluster struct {
	members []*servers.NATS
	proxies []*servers.Proxy
}

// start starts a cluster with the bucket locks, which has a replica on each server. It waits until each server reaches
// the leader.
func start(t testing.TB, c servers.NATSConfig) *cluster {
	t.Helper()
	cl := startEmpty(t, c)
	s := cl.open(t, "")
	check(t, s.Init(t.Context()))
	stores := []*natsstore.Store{s}
	for _, address := range cl.addresses() {
		s := openAt(t, cl.url([]string{address}), "")
		requests.Eventually(t, "the server reaches the leader", func() bool {
			_, _, err := s.Get(t.Context(), "key")
			return err == nil
		})
		stores = append(stores, s)
	}
	for _, s := range stores { // their goroutines would look like a leak
		check(t, s.Close(t.Context()))
	}
	return cl
}

func startEmpty(t testing.TB, c servers.NATSConfig) *cluster {
	t.Helper()
	c.Dir = t.TempDir()
	members, err := servers.StartNATS(t.Context(), c)
	servertest.Started(t, err)
	cl := &cluster{members: members}
	for _, m := range members {
		t.Cleanup(m.End)
		p, err := servers.NewProxy(m.Client)
		check(t, err)
		t.Cleanup(p.Close)
		cl.proxies = append(cl.proxies, p)
	}
	return cl
}

// addresses returns the servers' addresses through the proxies.
func (c *cluster) addresses() (all []string) {
	for _, p := range c.proxies {
		all = append(all, p.Address())
	}
	return all
}

// url returns the URL of the bucket at some addresses.
func (c *cluster) url(addresses []string) string {
	return "nats://" + strings.Join(addresses, ",") + "?bucket=locks&skew=10ms&replicas=" + string(rune('0'+len(c.members)))
}

func (c *cluster) open(t testing.TB, namespace string) *natsstore.Store {
	t.Helper()
	return openAt(t, c.url(c.addresses()), namespace)
}

// openOne opens a store at one server alone.
func (c *cluster) openOne(t testing.TB, server int) *natsstore.Store {
	t.Helper()
	return openAt(t, c.url([]string{c.proxies[server].Address()}), "")
}

// openAt opens a store and closes it at the end of the test.
func openAt(t testing.TB, url, namespace string) *natsstore.Store {
	t.Helper()
	s, err := natsstore.Open(context.Background(), url, namespace)
	check(t, err)
	return requests.Closing(t, s)
}

var check = servertest.Check
