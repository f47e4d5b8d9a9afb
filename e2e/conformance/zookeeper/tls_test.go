package zookeeper

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/zkstore"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its own certificate
	dir  string
}

func newAuthority(t *testing.T, dir, name string) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(dir, name+".pem"), dir: dir}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	like := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, like, like, &a.key.PublicKey, a.key)
	must(t, err)
	a.cert, err = x509.ParseCertificate(der)
	must(t, err)
	must(t, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return a
}

// sign makes a certificate for this machine, as files: the certificate, its key, and both in
// one.
func (a *authority) sign(t *testing.T, name string) (cert, key, both string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	like := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, like, a.cert, &k.PublicKey, a.key)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	must(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	cert, key, both = filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key"), filepath.Join(a.dir, name+".both.pem")
	must(t, os.WriteFile(cert, certPEM, 0o600))
	must(t, os.WriteFile(key, keyPEM, 0o600))
	must(t, os.WriteFile(both, append(keyPEM, certPEM...), 0o600))
	return cert, key, both
}

// TestServersOwnTLSAuthenticatesClient: ZooKeeper's own TLS port requires a certificate of
// its clients. The certificate is also the owner of the nodes.
func TestServersOwnTLSAuthenticatesClient(t *testing.T) {
	servertest.Started(t, servers.ZooKeeperInstalled())
	dir := t.TempDir()
	ca, other := newAuthority(t, dir, "ca"), newAuthority(t, dir, "other")
	_, _, store := ca.sign(t, "server")
	z, err := servers.StartZooKeeper(t.Context(), filepath.Join(dir, "zookeeper"), servers.ZooKeeperConfig{
		Tick: tick, Secure: &servers.ZooKeeperTLS{KeyStore: store, TrustStore: ca.file},
	})
	must(t, err)
	t.Cleanup(z.Kill)

	config := func(roots *authority, cert, key string) *tls.Config {
		c := &tls.Config{RootCAs: x509.NewCertPool()}
		c.RootCAs.AddCert(roots.cert)
		if cert != "" {
			pair, err := tls.LoadX509KeyPair(cert, key)
			must(t, err)
			c.Certificates = []tls.Certificate{pair}
		}
		return c
	}
	cert, key, _ := ca.sign(t, "client")
	a, sa := locker(t, []string{z.SecureAddress()}, zkstore.TLS(config(ca, cert, key)), zkstore.CreatorOnly())
	k := lock(t, a, "n")
	// A store that is opened by URL with the same certificate has the same rights.
	url := fmt.Sprintf("zk://%s/faults?tls=true&acl=creator&ca=%s&cert=%s&key=%s&tick=%s", z.SecureAddress(), ca.file, cert, key, tick)
	b, err := holdfast.Open(t.Context(), url)
	must(t, err)
	defer b.Close(t.Context())
	got := waiting(t, b, sa, "n")
	must(t, k.Unlock())
	next := <-got
	if next == nil {
		t.FailNow()
	}
	must(t, next.Unlock())
	cert2, key2, _ := ca.sign(t, "somebody-else")
	c, _ := locker(t, []string{z.SecureAddress()}, zkstore.TLS(config(ca, cert2, key2)))
	if _, err := c.TryLock(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), "no permission") {
		t.Errorf("with another user's certificate: %v", err)
	}

	strange, strangeKey, _ := other.sign(t, "stranger")
	for _, wrong := range []struct {
		what    string
		address string
		tls     *tls.Config
		says    string
	}{
		{"a server of an unknown authority", z.SecureAddress(), config(other, cert, key), "certificate signed by unknown authority"},
		// The server's last answer may be lost with the connection that it ends.
		{"no certificate", z.SecureAddress(), config(ca, "", ""), "certificate|reset by peer|broken pipe"},
		{"a certificate of another authority", z.SecureAddress(), config(ca, strange, strangeKey), "certificate|reset by peer|broken pipe"},
		{"the port without TLS", z.Address(), config(ca, cert, key), "TLS"},
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
