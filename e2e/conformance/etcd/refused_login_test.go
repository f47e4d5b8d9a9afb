package etcd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// TestRefusedLoginIsReportedAndRarelyRepeated: the password of the store's user changes while the store holds a lock.
// The loss has the refusal of the login as its cause, and so has the error of the next request. The store logs in at
// most once in ten seconds, and goes on by itself when the file of its password has the new one.
func TestRefusedLoginIsReportedAndRarelyRepeated(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	admin := c.secure(t)
	file := filepath.Join(t.TempDir(), "password")
	check(t, os.WriteFile(file, []byte("quite-secret"), 0o600))
	l := opened(t, strings.Replace(c.secured(), ":quite-secret", "", 1)+"?password_file="+file)
	held, err := l.Lock(t.Context(), "held", holdfast.TTL(6*time.Second))
	check(t, err)

	began, before := time.Now(), c.calls(t, "Authenticate")
	_, err = admin.UserChangePassword(t.Context(), "app", "another-secret")
	check(t, err)
	receive(t, "the loss", held.Context().Done())
	lost, ok := errors.AsType[*holdfast.LostError](context.Cause(held.Context()))
	if !ok || lost.Err == nil || !errors.Is(rpctypes.Error(lost.Err), rpctypes.ErrAuthFailed) {
		t.Errorf("the loss is %v; want the refused login as its cause", context.Cause(held.Context()))
	}
	if _, err := l.TryLock(t.Context(), "next"); !errors.Is(err, holdfast.ErrRefused) {
		t.Errorf("the next request: %v; want refused", err)
	}
	most := 2 + int(time.Since(began)/(10*time.Second)) // the administrator's client logs in, too
	if n := c.calls(t, "Authenticate") - before; n > most {
		t.Errorf("%d logins since the password has changed, want at most %d", n, most)
	}

	check(t, os.WriteFile(file, []byte("another-secret\n"), 0o600))
	_ = held.Unlock()
	eventually(t, "a lock is granted with the accepted password", func() bool {
		k, err := l.TryLock(t.Context(), "next")
		return err == nil && k.Unlock() == nil
	})
}

// TestWaiterReportsRefusedLogin: the password of the user changes while a client waits, and holds nothing. The server
// keeps the client's streams. The waiter never reads by itself here, so the store's own request has to show the refusal.
func TestWaiterReportsRefusedLogin(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	admin := c.secure(t)
	open := func(user string) *etcdstore.Store {
		s, err := etcdstore.Open(t.Context(), "etcd://"+user+"@"+c.proxies[0].Address()+"/locks/")
		return closing(t, s, err)
	}
	holder := open("root:top-secret")
	must(t, holder, request("n", driver.Exclusive, requests.Long))
	l, err := holdfast.New(wakeup.WithoutFallback(open("app:quite-secret")))
	check(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := l.Lock(t.Context(), "n")
		waited <- err
	}()
	eventually(t, "a client waits", func() bool {
		st, err := holder.Inspect(t.Context(), "n")
		check(t, err)
		return len(st.Waiters) == 1
	})
	_, err = admin.UserChangePassword(t.Context(), "app", "another-secret")
	check(t, err)
	if err := receive(t, "the end of the wait", waited); !errors.Is(err, holdfast.ErrRefused) || !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) {
		t.Errorf("the wait ended with %v, want a refused login", err)
	}
	// The queue entry cannot be deleted: Close would wait for the next login.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = l.Close(ctx)
}
