package servertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// Authority is a certificate authority. Its files can be read by servers that run as another user.
type Authority struct {
	File string // its own certificate
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority for the time of a test.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-ca")
	Check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	Check(t, os.Chmod(dir, 0o755))
	a := &Authority{dir: dir}
	own := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.File, a.cert, a.key = a.make(t, name, own)
	return a
}

// SelfSigned makes a server's certificate that no authority has signed.
func SelfSigned(t testing.TB) servers.TLS {
	t.Helper()
	a := NewAuthority(t, "unknown")
	a.cert = nil
	return a.Sign(t, "self-signed")
}

// Sign makes a certificate for servers at 127.0.0.1 and for clients. Each change is applied before the authority
// signs it.
func (a *Authority) Sign(t testing.TB, name string, changes ...func(*x509.Certificate)) servers.TLS {
	t.Helper()
	c := &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, change := range changes {
		change(c)
	}
	file, _, key := a.make(t, name, c)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	Check(t, err)
	return servers.TLS{CA: a.File, Cert: file, Key: a.write(t, name+".key", "PRIVATE KEY", pkcs8)}
}

// make makes a certificate that is valid for an hour, unless it has other times. The authority signs it, or the
// certificate's own key if there is no authority yet.
func (a *Authority) make(t testing.TB, name string, c *x509.Certificate) (
	file string, made *x509.Certificate, key *ecdsa.PrivateKey,
) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Check(t, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	if c.NotAfter.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	Check(t, err)
	made, err = x509.ParseCertificate(der)
	Check(t, err)
	return a.write(t, name+".pem", "CERTIFICATE", der), made, key
}

func (a *Authority) write(t testing.TB, name, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(a.dir, name)
	Check(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644))
	return file
}

// ClientTLS returns the configuration of a client that accepts the authority's servers. If the files have a
// certificate, the client shows it.
func ClientTLS(t testing.TB, files servers.TLS) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(files.CA)
	Check(t, err)
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AppendCertsFromPEM(text)
	if files.Cert != "" {
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		Check(t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}
