// Package s3 tests s3store on a real server, and on servers of the tests that lack what locks need.
//
// A test is skipped if the program of its server is missing. With HOLDFAST_REQUIRE_SERVERS=1 it fails.
package s3

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/s3store"
)

// gateway is a running server, and a proxy before it.
type gateway struct {
	*servers.S3
	proxy *servers.Proxy
}

func start(t testing.TB) *gateway {
	t.Helper()
	s, err := servers.StartS3(t.Context(), t.TempDir())
	servertest.Started(t, err)
	t.Cleanup(s.Kill)
	p, err := servers.NewProxy(s.Address)
	servertest.Check(t, err)
	t.Cleanup(p.Close)
	return &gateway{s, p}
}

func (g *gateway) open(t testing.TB, namespace string) *s3store.Store {
	t.Helper()
	return openAt(t, servers.S3URL(g.proxy.Address()), namespace)
}

// openAt opens a store and closes it at the end of the test.
func openAt(t testing.TB, url, namespace string) *s3store.Store {
	t.Helper()
	s, err := s3store.Open(context.Background(), url, namespace)
	servertest.Check(t, err)
	return requests.Closing(t, s)
}

func TestConformance(t *testing.T) {
	g := start(t)
	at := func(t testing.TB, address, namespace string) driver.Store {
		s, err := s3store.Open(context.Background(), servers.S3URL(address), namespace)
		servertest.Check(t, err)
		return s
	}
	h := drivertest.Harness{
		Open:   func(t testing.TB, namespace string) driver.Store { return at(t, g.proxy.Address(), namespace) },
		Bubble: true,
		Outside: func(t testing.TB, namespace string) driver.Store {
			s, err := s3store.Open(context.Background(), strings.Replace(servers.S3URL(g.proxy.Address()), "?", "/other?", 1), namespace)
			servertest.Check(t, err)
			return s
		},
		Corrupt: func(t testing.TB, namespace, name string) (remove func()) {
			path := filepath.Join(g.Root, strings.Join([]string{"lock", namespace, name}, "_00"))
			servertest.Check(t, os.WriteFile(path, []byte("abcdefghijklmnopqrstuvwxyz{}"), 0o600))
			return func() { servertest.Check(t, os.Remove(path)) }
		},
	}
	if g.Root == "" {
		h.Corrupt = nil
	}
	servertest.Disturb(&h, func(t testing.TB, addresses []string) driver.Store { return at(t, addresses[0], "") }, g.proxy)
	drivertest.Run(t, h)
}

func TestValues(t *testing.T) {
	g := start(t)
	drivertest.RunValues(t, func(t testing.TB, namespace string) *record.Store { return g.open(t, namespace).Store })
}
