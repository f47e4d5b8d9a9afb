package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
)

// TestUsers: a wrong password and a missing right are refused, with a reason and
// without the password, and leave nothing.
func TestUsers(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	client := c.direct(t)
	for _, step := range []func() error{
		func() error { _, err := client.UserAdd(t.Context(), "root", "top-secret"); return err },
		func() error { _, err := client.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := client.UserAdd(t.Context(), "app", "quite-secret"); return err },
		func() error { _, err := client.RoleAdd(t.Context(), "locks"); return err },
		func() error {
			_, err := client.RoleGrantPermission(t.Context(), "locks", "locks/", clientv3.GetPrefixRangeEnd("locks/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := client.UserGrantRole(t.Context(), "app", "locks"); return err },
		func() error { _, err := client.AuthEnable(t.Context()); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	host := c.members[0].Client
	l, err := holdfast.Open(t.Context(), "etcd://app:quite-secret@"+host+"/locks/")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	k, err := l.Lock(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Unlock(); err != nil {
		t.Error(err)
	}

	_, err = holdfast.Open(t.Context(), "etcd://app:not-the-secret@"+host+"/locks/")
	if !errors.Is(err, holdfast.ErrRefused) || strings.Contains(err.Error(), "secret") {
		t.Errorf("a wrong password: %v", err)
	}
	elsewhere, err := holdfast.Open(t.Context(), "etcd://app:quite-secret@"+host+"/others/")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close(t.Context())
	for what, lock := range map[string]func() error{
		"TryLock": func() error { _, err := elsewhere.TryLock(t.Context(), "n"); return err },
		"Lock":    func() error { _, err := elsewhere.Lock(t.Context(), "n"); return err },
		"Inspect": func() error { _, err := elsewhere.Inspect(t.Context(), "n"); return err },
	} {
		if err := lock(); !errors.Is(err, holdfast.ErrRefused) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s without the right: %v", what, err)
		}
	}
}

// TestNoSpace: a full server refuses at once.
func TestNoSpace(t *testing.T) {
	c := start(t, servers.EtcdConfig{Args: []string{"--quota-backend-bytes", "65536"}})
	client := c.direct(t)
	l := locker(t, c.open(t))
	if _, err := l.Guarantees(t.Context()); err != nil {
		t.Fatal(err)
	}
	fill(t, client)
	if _, err := l.Lock(t.Context(), "n"); !errors.Is(err, holdfast.ErrRefused) || !strings.Contains(err.Error(), "space") {
		t.Errorf("a full server: %v", err)
	}
}

// TestTLS: a server with a certificate of its own authority, which asks for the
// client's.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca, cert, key := certificates(t, dir)
	c, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Program: need(t, "etcd"), Dir: t.TempDir(), NoSync: true, TLS: &servers.TLS{CA: ca, Cert: cert, Key: key}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c[0].Kill)
	base := "etcds://" + c[0].Client
	l, err := holdfast.Open(t.Context(), base+"/?ca="+ca+"&cert="+cert+"&key="+key)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	k, err := l.Lock(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Unlock(); err != nil {
		t.Error(err)
	}
	named, err := holdfast.Open(t.Context(), base+"/?servername=etcd.test&ca="+ca+"&cert="+cert+"&key="+key)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close(t.Context())
	if k, err := named.TryLock(t.Context(), "n"); err != nil {
		t.Errorf("the certificate's other name: %v", err)
	} else if err := k.Unlock(); err != nil {
		t.Error(err)
	}
	for what, url := range map[string]string{
		"no authority":   base + "/?cert=" + cert + "&key=" + key,
		"no certificate": base + "/?ca=" + ca,
		"another name":   base + "/?ca=" + ca + "&cert=" + cert + "&key=" + key + "&servername=elsewhere",
		"no TLS":         "etcd://" + c[0].Client,
	} {
		l, err := holdfast.Open(t.Context(), url, holdfast.RequestTimeout(300*time.Millisecond))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := l.TryLock(t.Context(), "n"); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
		_ = l.Close(t.Context())
	}
}

// certificates makes an authority and one certificate for server and client.
func certificates(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	make := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			parent, signer = template, private
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made, private
	}
	until := time.Now().Add(time.Hour)
	authority, signer := make(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	leaf, private := make(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"etcd.test"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, authority, signer)
	raw, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return write("ca.pem", "CERTIFICATE", authority.Raw), write("cert.pem", "CERTIFICATE", leaf.Raw), write("key.pem", "EC PRIVATE KEY", raw)
}
