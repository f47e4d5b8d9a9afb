package etcd

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// TestAddressMovesToAProxy: while a store is open, the address of its member moves to `etcd
// grpc-proxy`. The store does not renew the grant through the proxy.
func TestAddressMovesToAProxy(t *testing.T) {
	for version, program := range versions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := start(t, servers.EtcdConfig{Program: program})
			address, err := servers.NewProxy(c.members[0].Client)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(address.Close)
			s, err := etcdstore.Open(t.Context(), "etcd://"+address.Address())
			s = closing(t, s, err)
			g := must(t, s, request("holder", "n", 1, 10*time.Second))
			if err := address.Redirect(c.proxyAddress(t, program)); err != nil {
				t.Fatal(err)
			}
			redirected, refused := time.Now(), 0
			for end := redirected.Add(20 * time.Second); refused < 3 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				r := s.Renew(t.Context(), []driver.Grant{g})[0]
				if r.Err == nil && r.SentAt.Time().After(redirected) {
					t.Fatalf("renewed through the proxy: %+v", r)
				}
				if driver.CodeOf(r.Err) == driver.CodeRefused {
					refused++
				}
			}
			if refused == 0 {
				t.Error("no renewal was refused")
			}
		})
	}
}
