package zookeeper

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestServersOwnTLSAuthenticatesClient: ZooKeeper's own TLS port requires a certificate of
// its clients. The certificate is also the owner of the nodes.
func TestServersOwnTLSAuthenticatesClient(t *testing.T) {
	ca, other := servertest.NewAuthority(t, "ca"), servertest.NewAuthority(t, "other")
	server, store := ca.Sign(t, "server"), filepath.Join(t.TempDir(), "store.pem")
	var both []byte
	for _, file := range []string{server.Key, server.Cert} {
		text, err := os.ReadFile(file)
		must(t, err)
		both = append(both, text...)
	}
	must(t, os.WriteFile(store, both, 0o600))
	z := alone(t, servers.ZooKeeperConfig{Tick: tick, Secure: &servers.ZooKeeperTLS{KeyStore: store, TrustStore: ca.File}})

	config := func(roots *servertest.Authority, client servers.TLS) *tls.Config {
		client.CA = roots.File
		return servertest.ClientTLS(t, client)
	}
	client := ca.Sign(t, "client")
	a, sa := locker(t, []string{z.SecureAddress()}, zkstore.TLS(config(ca, client)), zkstore.CreatorOnly())
	k := lock(t, a, "n")
	// A store that is opened by URL with the same certificate has the same rights.
	url := fmt.Sprintf("zk://%s/faults?tls=true&acl=creator&ca=%s&cert=%s&key=%s&tick=%s", z.SecureAddress(), client.CA, client.Cert, client.Key, tick)
	b, err := holdfast.Open(t.Context(), url)
	must(t, err)
	defer b.Close(t.Context())
	got := waiting(t, b, sa, "n")
	must(t, k.Unlock())
	must(t, granted(t, got).Unlock())
	c, _ := locker(t, []string{z.SecureAddress()}, zkstore.TLS(config(ca, ca.Sign(t, "another-client"))))
	if _, err := c.TryLock(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "no permission") {
		t.Errorf("with another user's certificate: %v", err)
	}

	for _, wrong := range []struct {
		what    string
		address string
		tls     *tls.Config
		says    string
	}{
		{"a server of an unknown authority", z.SecureAddress(), config(other, client), "certificate signed by unknown authority"},
		// The server's last answer may be lost with the connection that it ends.
		{"no certificate", z.SecureAddress(), config(ca, servers.TLS{}), "certificate|reset by peer|broken pipe"},
		{"a certificate of another authority", z.SecureAddress(), config(ca, other.Sign(t, "stranger")), "certificate|reset by peer|broken pipe"},
		{"the port without TLS", z.Address(), config(ca, client), "TLS"},
		{"no TLS", z.SecureAddress(), nil, "TLS"},
	} {
		t.Run(wrong.what, func(t *testing.T) {
			t.Parallel() // each of them retries for some seconds
			var o []zkstore.Option
			if wrong.tls != nil {
				o = append(o, zkstore.TLS(wrong.tls))
			}
			s := open(t, []string{wrong.address}, o...)
			defer s.Close(t.Context())
			_, err := s.Guarantees(t.Context())
			if err == nil || driver.CodeOf(err) != driver.CodeUnavailable || !regexp.MustCompile(wrong.says).MatchString(err.Error()) {
				t.Errorf("%v (%v), want unavailable and %q", err, driver.CodeOf(err), wrong.says)
			}
		})
	}
}
