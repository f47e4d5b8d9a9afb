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

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestDigestUserExcludesOthers: another user cannot change a user's own nodes, and no
// password is shown.
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
		t.Error("a password is shown")
	}
}

// encrypted puts a TLS proxy before a server, like a mesh or a load balancer.
func encrypted(t *testing.T, upstream string) (address string, certificate []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	like := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, like, like, &key.PublicKey, key)
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

	stranger := open(t, []string{address}, zkstore.TLS(&tls.Config{}))
	defer stranger.Close(t.Context())
	if _, err := stranger.Guarantees(t.Context()); err == nil || driver.CodeOf(err) != driver.CodeUnavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate: %v", err)
	}
}

// TestTokensRiseAfterParentWasReaped: the server removes the node of an unused name, also between a
// read and a create. The name's tokens still rise.
func TestTokensRiseAfterParentWasReaped(t *testing.T) {
	installed(t, servers.ZooKeeperInstalled())
	z, err := servers.StartZooKeeper(t.Context(), filepath.Join(t.TempDir(), "zookeeper"), servers.ZooKeeperConfig{
		Tick: tick, Java: []string{"-Dznode.container.checkIntervalMs=5", "-Dznode.container.maxPerMinute=1000000"},
	})
	must(t, err)
	t.Cleanup(z.Kill)
	a, sa := locker(t, []string{z.Address()})
	b, _ := locker(t, []string{z.Address()})
	var last uint64
	for i := range 200 {
		l := a
		if i%2 == 1 {
			l = b
		}
		k, err := l.Lock(t.Context(), "reaped")
		must(t, err)
		if k.Token() <= last {
			t.Fatalf("token %d after %d", k.Token(), last)
		}
		last = k.Token()
		must(t, k.Unlock())
		if i%20 == 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	raw := connect(t, z.Address())
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		there, _, err := raw.Exists("/faults/reaped")
		must(t, err)
		if !there {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the name's node stays")
		}
	}
	empty(t, sa, "reaped")
	must(t, lock(t, a, "reaped").Unlock())
}

// TestForeignChildrenAreIgnored: the store ignores child nodes of other programs, whatever their
// names.
func TestForeignChildrenAreIgnored(t *testing.T) {
	z := single(t)
	l, s := locker(t, []string{z.Address()})
	name := newName()
	k := lock(t, l, name)
	raw := connect(t, z.Address())
	for _, child := range []string{"_c_", "0", "readme", "lock-0000000000", "a4af9f9d38fa4ad5ba5bb1b6d6d1c7b7__lock__0000000000", "x-__WRIT__", "x-__READ__00000000000"} {
		_, err := raw.Create("/faults/"+name+"/"+child, nil, 0, zookeeper.WorldACL(zookeeper.PermAll))
		must(t, err)
	}
	st, err := s.Inspect(t.Context(), name)
	must(t, err)
	if len(st.Holders) != 1 || len(st.Waiters) != 0 {
		t.Errorf("%+v", st)
	}
	must(t, k.Unlock())
	must(t, lock(t, l, name).Unlock())
}
