package etcd

import (
	"context"
	"crypto/x509"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
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
		check(t, step())
	}
	return c.direct(t, asRoot)
}

func asRoot(cfg *clientv3.Config) { cfg.Username, cfg.Password = "root", "top-secret" }

// permit sets the user's rights below locks/.
func permit(t testing.TB, client *clientv3.Client, p clientv3.PermissionType) error {
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
	locks(t, opened(t, "etcd://app:quite-secret@"+host+"/locks/"))

	_, err := holdfast.Open(t.Context(), "etcd://app:not-the-secret@"+host+"/locks/")
	if !errors.Is(err, holdfast.ErrRefused) || strings.Contains(err.Error(), "secret") {
		t.Errorf("a wrong password: %v", err)
	}
	elsewhere := opened(t, "etcd://app:quite-secret@"+host+"/others/")
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

// locks locks and unlocks a name.
func locks(t *testing.T, l *holdfast.Locker) {
	t.Helper()
	check(t, l.Do(t.Context(), "n", func(context.Context) error { return nil }))
}

// restorable starts a server with users. restore restarts it on a copy that is 1,000 revisions older.
func restorable(t *testing.T) (c *cluster, root *clientv3.Client, restore func()) {
	t.Helper()
	c = start(t, servers.EtcdConfig{})
	root = c.secure(t)
	m, copied := c.members[0], filepath.Join(t.TempDir(), "copy")
	check(t, m.Backup(copied))
	for range 1000 {
		_, err := root.Put(t.Context(), "later", "")
		check(t, err)
	}
	return c, root, func() {
		t.Helper()
		check(t, m.Restore(t.Context(), copied))
	}
}

// TestRestoredServerEndsOldLogins: a server with users is restored from an older copy. A
// call without a deadline still gets an answer. A holder that sends only keepalives is
// notified of its loss, and a waiter gets its lock.
func TestRestoredServerEndsOldLogins(t *testing.T) {
	c, root, restore := restorable(t)
	caller, holder, waiter := opened(t, c.secured()), opened(t, c.secured()), opened(t, c.secured())
	held, err := holder.Lock(t.Context(), "held", holdfast.TTL(time.Hour))
	check(t, err)
	answered, granted := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := requests.Retried(func() (*holdfast.Lock, error) {
			return waiter.Lock(t.Context(), "held", holdfast.TTL(time.Hour))
		})
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
	check(t, receive(t, "the waiter's grant", granted))
	check(t, receive(t, "the answer to a call without a deadline", answered))
}

// TestCloseEndsLogins: a store is closed while the server does not answer its login. No
// goroutine of the login remains.
func TestCloseEndsLogins(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	c.secure(t)
	check(t, c.proxies[0].Silence())
	l, err := holdfast.Open(t.Context(), c.secured())
	check(t, err)
	check(t, l.Close(t.Context()))
	stacks := make([]byte, 1<<20)
	if all := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(all, "etcdstore.(*login)") {
		t.Errorf("a goroutine of a login remains:\n%s", all)
	}
}

// TestOpenWithUserNeedsNoServer: a store with a user is opened while no server can be
// reached. It logs in when there is one, and again when the server has lost its tokens.
func TestOpenWithUserNeedsNoServer(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	c.secure(t)
	c.proxies[0].Cut()
	l := opened(t, c.secured())
	if _, err := l.TryLock(t.Context(), "n"); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("without a server: %v, want unavailable", err)
	}
	check(t, c.proxies[0].Heal())
	locks := func() bool {
		k, err := l.Lock(t.Context(), "n", holdfast.TTL(time.Minute))
		return err == nil && k.Unlock() == nil
	}
	eventually(t, "a lock is granted when there is a server", locks)
	held, err := l.Lock(t.Context(), "held", holdfast.TTL(time.Minute))
	check(t, err)
	check(t, c.members[0].Restart(t.Context()))
	eventually(t, "a lock is granted when the server has lost its tokens", locks)
	if err := held.Context().Err(); err != nil {
		t.Errorf("a lock did not survive the restart: %v", context.Cause(held.Context()))
	}
	// The break shows that the store's watch stands again.
	other := opened(t, c.secured())
	check(t, other.Break(t.Context(), "held", held.Token()))
	receive(t, "the end of the context", held.Context().Done())
}

// TestTLSVerifiesBothSides: the server has a certificate of a private authority, and requires a
// certificate of that authority from the client.
func TestTLSVerifiesBothSides(t *testing.T) {
	files := servertest.NewAuthority(t, "ca").Sign(t, "server", func(c *x509.Certificate) { c.DNSNames = []string{"etcd.test"} })
	ca, cert, key := files.CA, files.Cert, files.Key
	c, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Program: need(t, "etcd"), Dir: t.TempDir(), NoSync: true, TLS: &files})
	check(t, err)
	t.Cleanup(c[0].Kill)
	base := "etcds://" + c[0].Client
	locks(t, opened(t, base+"/?ca="+ca+"&cert="+cert+"&key="+key))
	locks(t, opened(t, base+"/?server_name=etcd.test&ca="+ca+"&cert="+cert+"&key="+key)) // the certificate's other name
	for what, url := range map[string]string{
		"no authority":   base + "/?cert=" + cert + "&key=" + key,
		"no certificate": base + "/?ca=" + ca,
		"another name":   base + "/?ca=" + ca + "&cert=" + cert + "&key=" + key + "&server_name=elsewhere",
		"no TLS":         "etcd://" + c[0].Client,
	} {
		l, err := holdfast.Open(t.Context(), url, holdfast.RequestTimeout(300*time.Millisecond))
		check(t, err)
		if _, err := l.TryLock(t.Context(), "n"); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
		_ = l.Close(t.Context())
	}
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
		_, err := admin.UserAdd(t.Context(), user, "quite-secret")
		check(t, err)
		_, err = admin.RoleAdd(t.Context(), user)
		check(t, err)
		for _, key := range keys {
			_, err := admin.RoleGrantPermission(t.Context(), user, key, clientv3.GetPrefixRangeEnd(key), clientv3.PermissionType(clientv3.PermReadWrite))
			check(t, err)
		}
		_, err = admin.UserGrantRole(t.Context(), user, user)
		check(t, err)
		l := opened(t, "etcd://"+user+":quite-secret@"+c.proxies[0].Address()+"/locks/")
		if _, err := l.TryLock(t.Context(), "n"); !errors.Is(err, holdfast.ErrRefused) || !strings.Contains(err.Error(), `"locks/_holdfast/"`) {
			t.Errorf("without the right to %s: %v", missing, err)
		}
	}
}

// TestEachRightTakenAway: a user has the documented rights, to read and to write below the
// prefix. Each is taken away in turn.
func TestEachRightTakenAway(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	admin := c.secure(t)
	set := func(right clientv3.PermissionType) func(testing.TB) {
		return func(t testing.TB) {
			check(t, permit(t, admin, right))
		}
	}
	back := set(clientv3.PermissionType(clientv3.PermReadWrite))
	open := func(t testing.TB, user string) driver.Store {
		s, err := etcdstore.Open(t.Context(), "etcd://"+user+"@"+c.members[0].Client+"/locks/")
		check(t, err)
		return s
	}
	app := open(t, "app:quite-secret")
	defer app.Close(context.Background())
	drivertest.Refusals(t, drivertest.Harness{TTL: time.Second, Session: true, Open: func(t testing.TB, _ string) driver.Store {
		return open(t, "root:top-secret")
	}}, app, drivertest.Refusal{Name: "read", Begin: set(clientv3.PermissionType(clientv3.PermWrite)), End: back},
		drivertest.Refusal{Name: "write", Begin: set(clientv3.PermissionType(clientv3.PermRead)), End: back})
	left, err := admin.Get(t.Context(), "locks/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	check(t, err)
	for _, kv := range left.Kvs {
		if !strings.HasPrefix(string(kv.Key), "locks/_holdfast/") {
			t.Errorf("left over: %s", kv.Key)
		}
	}
}
