package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestRefusedLoginIsReportedAndRarelyRepeated: the password of the store's user changes while the store holds a lock.
// The loss has the refusal of the login as its cause, and so has the error of the next request. The store logs in at
// most once in ten seconds, and goes on by itself when the server accepts its password again.
func TestRefusedLoginIsReportedAndRarelyRepeated(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	admin := c.secure(t)
	l, err := holdfast.Open(t.Context(), c.secured())
	check(t, err)
	defer l.Close(context.Background())
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

	_, err = admin.UserChangePassword(t.Context(), "app", "quite-secret")
	check(t, err)
	_ = held.Unlock()
	eventually(t, "a lock is granted with the accepted password", func() bool {
		k, err := l.TryLock(t.Context(), "next")
		return err == nil && k.Unlock() == nil
	})
}
