package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestProxyIsRefused opens a store at `etcd grpc-proxy`. The store refuses locks, and writes no key.
func TestProxyIsRefused(t *testing.T) {
	for version, program := range versions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := start(t, servers.EtcdConfig{Program: program})
			s, err := etcdstore.Open(t.Context(), "etcd://"+c.proxyAddress(t, program))
			l := locker(t, closing(t, s, err))
			for what, do := range map[string]func(context.Context, string, ...holdfast.LockOption) (*holdfast.Lock, error){"lock": l.Lock, "try": l.TryLock} {
				_, err := requests.Retried(func() (*holdfast.Lock, error) { return do(t.Context(), "n") })
				if !errors.Is(err, holdfast.ErrRefused) || !strings.Contains(err.Error(), "grpc-proxy") {
					t.Errorf("%s: %v, want that the proxy is refused", what, err)
				}
			}
			if left := c.leftovers(t, c.direct(t)); len(left) != 0 {
				t.Errorf("keys are left: %q", left)
			}
		})
	}
}

// TestAddressMovesToAProxy: while a store is open, the address of its member moves to `etcd
// grpc-proxy`. The store does not renew the grant through the proxy.
func TestAddressMovesToAProxy(t *testing.T) {
	for version, program := range versions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := start(t, servers.EtcdConfig{Program: program})
			address, err := servers.NewProxy(c.members[0].Client)
			check(t, err)
			t.Cleanup(address.Close)
			s, err := etcdstore.Open(t.Context(), "etcd://"+address.Address())
			s = closing(t, s, err)
			g := must(t, s, request("n", 1, 10*time.Second))
			check(t, address.Redirect(c.proxyAddress(t, program)))
			redirected, refused := time.Now(), 0
			eventually(t, "renewals are refused", func() bool {
				r := s.Renew(t.Context(), []driver.Grant{g})[0]
				if r.Err == nil && r.SentAt.Time().After(redirected) {
					t.Fatalf("renewed through the proxy: %+v", r)
				}
				if driver.CodeOf(r.Err) == driver.CodeRefused {
					refused++
				}
				return refused == 3 || refused > 0 && driver.CodeOf(r.Err) == driver.CodeNotHeld
			})
		})
	}
}

// proxyAddress starts an `etcd grpc-proxy` before the first member, and returns its address.
func (c *cluster) proxyAddress(t *testing.T, program string) string {
	t.Helper()
	var address string
	var p *servers.Server
	var err error
	for range 3 { // another process may take the port meanwhile
		var port int
		if port, err = servers.FreePort(); err != nil {
			t.Fatal(err)
		}
		address = fmt.Sprintf("127.0.0.1:%d", port)
		if p, err = servers.Start(t.Context(), servers.Config{
			Name: "etcd grpc-proxy", Dir: t.TempDir(),
			Ready:   servers.Serves(http.MethodGet, "http://"+address+"/health", http.StatusOK),
			Command: []string{program, "grpc-proxy", "start", "--endpoints", c.members[0].Client, "--listen-addr", address},
		}); err == nil {
			break
		}
	}
	check(t, err)
	t.Cleanup(p.Kill)
	return address
}
