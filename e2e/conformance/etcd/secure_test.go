package etcd

import (
	"context"
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
	"runtime"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
)

// secure creates a user with the right to read and write below locks/, and switches
// authentication on. It returns a client of the administrator.
func (c *cluster) secure(t *testing.T) *clientv3.Client {
	t.Helper()
	client := c.direct(t)
	for _, step := range []func() error{
		func() error { _, err := client.UserAdd(t.Context(), "root", "top-secret"); return err },
		func() error { _, err := client.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := client.UserAdd(t.Context(), "app", "quite-secret"); return err },
		func() error { _, err := client.RoleAdd(t.Context(), "locks"); return err },
		func() error { return permit(t, client, clientv3.PermissionType(clientv3.PermReadWrite)) },
		func() error { _, err := client.UserGrantRole(t.Context(), "app", "locks"); return err },
		func() error { _, err := client.AuthEnable(t.Context()); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return c.direct(t, func(cfg *clientv3.Config) { cfg.Username, cfg.Password = "root", "top-secret" })
}

// permit sets the user's rights below locks/.
func permit(t *testing.T, client *clientv3.Client, p clientv3.PermissionType) error {
	_, err := client.RoleGrantPermission(t.Context(), "locks", "locks/", clientv3.GetPrefixRangeEnd("locks/"), p)
	return err
}

// secured returns the URL of the user's store.
func (c *cluster) secured() string {
	return "etcd://app:quite-secret@" + c.proxies[0].Address() + "/locks/"
}

// TestMissingRightsAreRefused: a wrong password and a missing right are refused with a
// reason, without the password, and leave nothing.
func TestMissingRightsAreRefused(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	c.secure(t)
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

// restorable starts a server with users. restore restarts it on a copy that is 1,000 revisions older.
func restorable(t *testing.T) (c *cluster, root *clientv3.Client, restore func()) {
	t.Helper()
	c = start(t, servers.EtcdConfig{})
	root = c.secure(t)
	m, copied := c.members[0], filepath.Join(t.TempDir(), "copy")
	if err := m.Backup(copied); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if _, err := root.Put(t.Context(), "later", ""); err != nil {
			t.Fatal(err)
		}
	}
	return c, root, func() {
		t.Helper()
		if err := m.Restore(t.Context(), copied); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRestoredServerTakesNewLogins: a server with users is restored from an older copy. It
// does not answer requests with a client's newer token, and the client logs in again.
func TestRestoredServerTakesNewLogins(t *testing.T) {
	c, _, restore := restorable(t)
	l, err := holdfast.Open(t.Context(), c.secured())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.WithoutCancel(t.Context()))
	lock := func() bool {
		k, err := l.Lock(t.Context(), "n", holdfast.TTL(2*time.Second), holdfast.Wait(testTimeout))
		return err == nil && k.Unlock() == nil
	}
	if !lock() {
		t.Fatal("no lock before the restore")
	}
	restore()
	eventually(t, "a lock after the restore", lock)
}

// TestRestoredServerEndsOldLogins: a server with users is restored from an older copy. A
// call without a deadline still gets an answer. A holder that sends only keepalives is
// notified of its loss, and a waiter gets its lock.
func TestRestoredServerEndsOldLogins(t *testing.T) {
	c, root, restore := restorable(t)
	opened := func() *holdfast.Locker {
		l, err := holdfast.Open(t.Context(), c.secured())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		return l
	}
	caller, holder, waiter := opened(), opened(), opened()
	held, err := holder.Lock(t.Context(), "held", holdfast.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	answered, granted := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := waiter.Lock(t.Context(), "held", holdfast.TTL(time.Hour))
		granted <- err
	}()
	eventually(t, "the waiter's entry", func() bool {
		r, err := root.Get(t.Context(), "locks/held/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && r.Count == 2
	})
	restore()
	go func() {
		_, err := caller.Lock(t.Context(), "other", holdfast.TTL(time.Hour))
		answered <- err
	}()
	receive(t, "the end of the holder's context", held.Context().Done())
	if err := receive(t, "the waiter's grant", granted); err != nil {
		t.Error("the waiter: ", err)
	}
	if err := receive(t, "the answer to a call without a deadline", answered); err != nil {
		t.Error("the caller: ", err)
	}
}

// TestCloseEndsLogins: a store is closed while the server does not answer its login. No
// goroutine of the login remains.
func TestCloseEndsLogins(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	c.secure(t)
	if err := c.proxies[0].Silence(); err != nil {
		t.Fatal(err)
	}
	l, err := holdfast.Open(t.Context(), c.secured())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	stacks := make([]byte, 1<<20)
	if all := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(all, "etcdstore.(*login)") {
		t.Errorf("a goroutine of a login remains:\n%s", all)
	}
}

// TestOpenWithUserNeedsNoServer: a store with a user is opened while no server can be
// reached. It logs in when there is one, and again when the server has lost its tokens.
func TestOpenWithUserNeedsNoServer(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	c.secure(t)
	c.proxies[0].Cut()
	l, err := holdfast.Open(t.Context(), c.secured())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	if _, err := l.TryLock(t.Context(), "n"); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("without a server: %v, want unavailable", err)
	}
	if err := c.proxies[0].Heal(); err != nil {
		t.Fatal(err)
	}
	locks := func() bool {
		k, err := l.Lock(t.Context(), "n", holdfast.TTL(time.Minute))
		return err == nil && k.Unlock() == nil
	}
	eventually(t, "a lock is granted when there is a server", locks)
	held, err := l.Lock(t.Context(), "held", holdfast.TTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.members[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a lock is granted when the server has lost its tokens", locks)
	if err := held.Context().Err(); err != nil {
		t.Errorf("a lock did not survive the restart: %v", context.Cause(held.Context()))
	}
	// The break shows that the store's watch stands again.
	other, err := holdfast.Open(t.Context(), c.secured())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context())
	if err := other.Break(t.Context(), "held", held.Token()); err != nil {
		t.Fatal(err)
	}
	receive(t, "the end of the context", held.Context().Done())
}

// TestFullServerRefuses: a server without space refuses a lock, and the client does not retry.
func TestFullServerRefuses(t *testing.T) {
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

// TestTLSVerifiesBothSides: the server has a certificate of a private authority, and requires a
// certificate of that authority from the client.
func TestTLSVerifiesBothSides(t *testing.T) {
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
	named, err := holdfast.Open(t.Context(), base+"/?server_name=etcd.test&ca="+ca+"&cert="+cert+"&key="+key)
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
		"another name":   base + "/?ca=" + ca + "&cert=" + cert + "&key=" + key + "&server_name=elsewhere",
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

// TestUserWithoutTheStoresOwnKeysIsRefused: a user has the right to one name, but not to a
// part of the keys that the store keeps beside it. The user is refused before a lock is
// granted, and the error names the keys.
func TestUserWithoutTheStoresOwnKeysIsRefused(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	admin := c.secure(t)
	for user, missing := range map[string]string{"leaseless": "lease/", "epochless": "epoch/"} {
		keys := []string{"locks/n/"}
		for _, part := range []string{"lease/", "epoch/"} {
			if part != missing {
				keys = append(keys, "locks/_holdfast/"+part)
			}
		}
		if _, err := admin.UserAdd(t.Context(), user, "quite-secret"); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.RoleAdd(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if _, err := admin.RoleGrantPermission(t.Context(), user, key, clientv3.GetPrefixRangeEnd(key), clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := admin.UserGrantRole(t.Context(), user, user); err != nil {
			t.Fatal(err)
		}
		l, err := holdfast.Open(t.Context(), "etcd://"+user+":quite-secret@"+c.proxies[0].Address()+"/locks/")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(t.Context())
		if _, err := l.TryLock(t.Context(), "n"); !errors.Is(err, holdfast.ErrRefused) || !strings.Contains(err.Error(), `"locks/_holdfast/"`) {
			t.Errorf("without the right to %s: %v", missing, err)
		}
	}
}

// TestEachRightTakenAway: a user has the documented rights, to read and to write below the
// prefix. Each is taken away while a lock is held and awaited. Requests are refused. When
// the right is back, locks are granted again and nothing is left.
func TestEachRightTakenAway(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	admin := c.secure(t)
	for what, left := range map[string]clientv3.PermissionType{
		"read":  clientv3.PermissionType(clientv3.PermWrite),
		"write": clientv3.PermissionType(clientv3.PermRead),
	} {
		t.Run(what, func(t *testing.T) {
			open := func() *holdfast.Locker {
				t.Helper()
				l, err := holdfast.Open(t.Context(), c.secured())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close(context.Background()) })
				return l
			}
			holder, waiter, other := open(), open(), open()
			k, err := holder.Lock(t.Context(), "n", holdfast.TTL(5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			waited := make(chan *holdfast.Lock, 1)
			go func() {
				k, err := waiter.Lock(t.Context(), "n", holdfast.TTL(5*time.Second))
				if err != nil && !errors.Is(err, holdfast.ErrRefused) {
					t.Errorf("the waiter: %v", err)
				}
				waited <- k
			}()
			eventually(t, "the waiter is in the queue", func() bool {
				st, err := other.Inspect(t.Context(), "n")
				return err == nil && len(st.Waiters) == 1
			})
			if err := permit(t, admin, left); err != nil {
				t.Fatal(err)
			}
			for what, lock := range map[string]func() error{
				"TryLock": func() error { _, err := other.TryLock(t.Context(), "m"); return err },
				"Lock":    func() error { _, err := other.Lock(t.Context(), "m"); return err },
			} {
				if err := lock(); !errors.Is(err, holdfast.ErrRefused) || strings.Contains(err.Error(), "secret") {
					t.Errorf("%s without the right: %v", what, err)
				}
			}
			_ = k.Unlock() // the server refuses this
			if err := permit(t, admin, clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
				t.Fatal(err)
			}
			if k := receive(t, "the waiter's answer", waited); k != nil {
				if err := k.Unlock(); err != nil {
					t.Error(err)
				}
			}
			k, err = other.Lock(t.Context(), "n")
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Unlock(); err != nil {
				t.Error(err)
			}
			var keys *clientv3.GetResponse
			eventually(t, "nothing is left over", func() bool {
				keys, err = admin.Get(t.Context(), "locks/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
				if err != nil {
					return false
				}
				for _, kv := range keys.Kvs {
					if !strings.HasPrefix(string(kv.Key), "locks/_holdfast/") {
						return false
					}
				}
				return true
			})
		})
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", testTimeout, what)
		}
	}
}
