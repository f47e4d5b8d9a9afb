package zookeeper

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestDigestUserExcludesOthers: with CreatorOnly, another user cannot change a user's nodes. Errors
// and String do not show the password.
func TestDigestUserExcludesOthers(t *testing.T) {
	z := single(t)
	root := zkstore.Root("/digest")
	a, sa := locker(t, []string{z.Address()}, root, zkstore.Digest("me", "secret"), zkstore.CreatorOnly())
	k := lock(t, a, "n")
	b, _ := locker(t, []string{z.Address()}, root)
	_, err := b.TryLock(t.Context(), "n")
	if err == nil || !strings.Contains(err.Error(), "no permission") {
		t.Errorf("without a user: %v", err)
	}
	u, err := url.Parse("zk://me:secret@" + z.Address() + "/digest?acl=creator&tick=" + tick.String())
	must(t, err)
	c, err := holdfast.Open(t.Context(), u.String())
	must(t, err)
	if _, err := c.TryLock(t.Context(), "n"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the same user: %v", err)
	}
	must(t, k.Unlock())
	must(t, lock(t, c, "n").Unlock())
	must(t, c.Close(t.Context()))
	if strings.Contains(sa.String(), "secret") {
		t.Error("String shows the password")
	}
}

// encrypted starts a TLS proxy in front of a server, like a service mesh or a load balancer.
func encrypted(t *testing.T, upstream string) (address string, certificate []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	must(t, err)
	address = serve(t, l, func(c net.Conn) {
		if c.(*tls.Conn).Handshake() == nil {
			passOn(c, upstream, func(to io.Writer, from io.Reader) { _, _ = io.Copy(to, from) })
		}
	})
	return address, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestTLSVerifiesServer: locks work over TLS, and the client does not connect to a server
// that it cannot verify.
func TestTLSVerifiesServer(t *testing.T) {
	address, pem := encrypted(t, single(t).Address())
	dir := t.TempDir()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	l, _ := locker(t, []string{address}, zkstore.TLS(&tls.Config{RootCAs: roots}))
	must(t, lock(t, l, "over-tls").Unlock())

	ca := filepath.Join(dir, "ca.pem")
	must(t, os.WriteFile(ca, pem, 0o600))
	byURL, err := holdfast.Open(t.Context(), fmt.Sprintf("zk://%s/faults?tls=true&ca=%s&tick=%s", address, ca, tick))
	must(t, err)
	must(t, lock(t, byURL, "over-tls").Unlock())
	must(t, byURL.Close(t.Context()))

	withoutCA := open(t, []string{address}, zkstore.TLS(&tls.Config{}))
	defer withoutCA.Close(t.Context())
	if _, err := withoutCA.Guarantees(t.Context()); err == nil || driver.CodeOf(err) != driver.CodeUnavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: %v", err)
	}
}
