package zookeeper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestDocumentedRightsSuffice: the rights of docs/zookeeper.md suffice for all requests.
// If a right is missing, the client reports the refusal, leaves nothing behind and disturbs
// no other client's lock. With the right again, all requests succeed.
func TestDocumentedRightsSuffice(t *testing.T) {
	z := alone(t)
	const root, name = "/rights", "name"
	set := func(path string, rights int32) {
		t.Helper()
		must(t, z.SetACL(t.Context(), path, servers.DigestUser("me", "secret", rights)))
	}
	const onRoot = servers.RightCreate | servers.RightRead
	must(t, z.CreateNode(t.Context(), root, servers.DigestUser("me", "secret", onRoot)))
	o := []zkstore.Option{zkstore.Root(root), zkstore.Digest("me", "secret"), zkstore.CreatorOnly()}
	a, sa := locker(t, []string{z.Address()}, o...)
	b, sb := locker(t, []string{z.Address()}, o...)

	// With all rights, test a lock with a waiter, a break, and an inspection of everything.
	k := lock(t, a, name, lasting)
	got := waiting(t, b, sa, name, lasting)
	must(t, sb.Break(t.Context(), name, k.Token()))
	_ = k.Unlock()
	next := <-got
	if next == nil {
		t.FailNow()
	}
	for st, err := range sa.List(t.Context(), "") {
		must(t, err)
		if st.Name != name || len(st.Holders) != 1 {
			t.Errorf("%+v", st)
		}
	}
	must(t, next.Unlock())

	for _, c := range []struct {
		what, path   string // what is the missing right
		all, without int32  // the usual rights on path, and the one that is missing
		lock, unlock bool   // the result is a refusal
	}{
		{"to create on the root", root, onRoot, servers.RightCreate, false, false}, // the name's node exists
		{"to read the root", root, onRoot, servers.RightRead, false, false},        // only List needs it
		{"to create on the name", root + "/" + name, servers.RightAll, servers.RightCreate, true, false},
		{"to read the name", root + "/" + name, servers.RightAll, servers.RightRead, true, false},
		{"to delete on the name", root + "/" + name, servers.RightAll, servers.RightDelete, false, true},
		{"to write on the name", root + "/" + name, servers.RightAll, servers.RightWrite, false, false},
		{"to read the guards' node", root + "/@", servers.RightAll, servers.RightRead, true, false},
		{"to create on the guards' node", root + "/@", servers.RightAll, servers.RightCreate, false, false},
		{"to delete on the guards' node", root + "/@", servers.RightAll, servers.RightDelete, false, false},
		{"to write on the guards' node", root + "/@", servers.RightAll, servers.RightWrite, false, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			set(c.path, c.all&^c.without)
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			k, err := a.Lock(ctx, name, lasting, holdfast.Wait(10*time.Second))
			switch {
			case c.lock && !errors.Is(err, holdfast.ErrRefused):
				t.Errorf("Lock: %v, want refused", err)
			case !c.lock && err != nil:
				t.Errorf("Lock: %v", err)
			}
			if k != nil {
				if err := k.Unlock(); c.unlock != errors.Is(err, holdfast.ErrRefused) || !c.unlock && err != nil {
					t.Errorf("Unlock: %v; want refused: %t", err, c.unlock)
				}
			}
			set(c.path, c.all)
			empty(t, sb, name)
			k = lock(t, b, name, lasting)
			if st := state(t, sb, name); len(st.Holders) != 1 || len(st.Waiters) != 0 {
				t.Errorf("%+v, want one holder", st)
			}
			must(t, k.Unlock())
		})
	}

	// A waiter loses a right while it waits. It gets the lock or the refusal, and leaves nothing
	// behind.
	k = lock(t, a, name, lasting)
	waited := make(chan error, 1)
	go func() {
		k, err := b.Lock(t.Context(), name, lasting)
		if err == nil {
			err = k.Unlock()
		}
		waited <- err
	}()
	await(t, sa, name, "there is a waiter",
		func(st driver.State) bool { return len(st.Waiters) == 1 })
	set(root+"/"+name, servers.RightAll&^servers.RightRead)
	must(t, k.Unlock())
	if err := <-waited; err != nil && !errors.Is(err, holdfast.ErrRefused) {
		t.Errorf("the waiter: %v", err)
	}
	set(root+"/"+name, servers.RightAll)
	empty(t, sb, name)
}
