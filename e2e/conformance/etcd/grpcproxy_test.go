package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// TestProxyIsRefused opens a store at `etcd grpc-proxy`. The store refuses locks, and writes no key.
func TestProxyIsRefused(t *testing.T) {
	for version, program := range versions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := start(t, servers.EtcdConfig{Program: program})
			l := locker(t, c.throughProxy(t, program))
			for what, do := range map[string]func(context.Context, string, ...holdfast.LockOption) (*holdfast.Lock, error){"lock": l.Lock, "try": l.TryLock} {
				_, err := do(t.Context(), "n")
				for errors.Is(err, holdfast.ErrUnavailable) { // a busy machine answers late
					_, err = do(t.Context(), "n")
				}
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

// throughProxy opens a store at a new `etcd grpc-proxy` before the first member.
func (c *cluster) throughProxy(t *testing.T, program string) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(t.Context(), "etcd://"+c.proxyAddress(t, program))
	return closing(t, s, err)
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
			Name: "etcd grpc-proxy", Dir: t.TempDir(), Ready: func(ctx context.Context) error { return serves(ctx, "http://"+address+"/health") },
			Command: []string{program, "grpc-proxy", "start", "--endpoints", c.members[0].Client, "--listen-addr", address},
		}); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return address
}

// serves returns nil if a URL is answered with success.
func serves(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}
