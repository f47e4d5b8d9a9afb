package zookeeper

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// backup copies a server's data directory.
func backup(t *testing.T, z *servers.ZooKeeper) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "backup")
	must(t, z.Backup(dir))
	return dir
}

// overtake uses a restored server until it is ahead of all that a client with a token has seen.
func overtake(t *testing.T, l *holdfast.Locker, token uint64) {
	t.Helper()
	for {
		k := lock(t, l, newName())
		must(t, k.Unlock())
		if k.Token() > token+100*tokenRoom {
			return
		}
	}
}

// advance makes a client see some more transactions.
func advance(t *testing.T, l *holdfast.Locker) *holdfast.Lock {
	t.Helper()
	for range 20 {
		must(t, lock(t, l, newName()).Unlock())
	}
	return lock(t, l, newName())
}

// TestServerRestoredFromABackup: a process continues with a server that was restored from an
// older copy. Its holder is notified of the loss within the declared time, its waiter is
// granted, and tokens rise.
func TestServerRestoredFromABackup(t *testing.T) {
	t.Parallel()
	z := alone(t, plain)
	old := backup(t, z)
	a, sa := locker(t, []string{z.Address()})
	k := advance(t, a)
	name := newName()
	held := lock(t, a, name)
	b, _ := locker(t, []string{z.Address()})
	got := waiting(t, b, sa, name, lasting)
	g, err := sa.Guarantees(t.Context())
	must(t, err)
	must(t, z.Restore(t.Context(), old))
	late := time.After(g.Notice)
	for _, lost := range []*holdfast.Lock{k, held} {
		select {
		case <-lost.Context().Done():
		case <-late:
			t.Fatalf("a holder is not notified of the restore within %s", g.Notice)
		}
	}
	_ = held.Unlock()
	next := granted(t, got)
	requests.LocksRise(t, held, next)
	must(t, next.Unlock())
	again := lock(t, a, name)
	requests.LocksRise(t, next, again)
	must(t, again.Unlock())
	empty(t, sa, name)
}

// TestTokensAfterARestoreRiseForEveryClient: one client that has seen the later state makes
// the tokens of all clients rise. Inspection, a break and a later client agree on them.
func TestTokensAfterARestoreRiseForEveryClient(t *testing.T) {
	t.Parallel()
	z := alone(t, plain)
	old := backup(t, z)
	a, sa := locker(t, []string{z.Address()})
	before := advance(t, a).Token()
	must(t, z.Restore(t.Context(), old))
	fresh, sf := locker(t, []string{z.Address()})
	unaware := lock(t, fresh, newName()) // its token may be one that was given before
	aware := lock(t, a, newName())
	if aware.Token() <= before {
		t.Errorf("token %d after %d", aware.Token(), before)
	}
	name := newName()
	k := lock(t, fresh, name)
	if k.Token() <= before {
		t.Errorf("token %d after %d, from a client that was granted before the rise", k.Token(), before)
	}
	for _, s := range []*zkstore.Store{sa, sf} {
		st := state(t, s, name)
		if len(st.Holders) != 1 || st.Holders[0].Token != k.Token() {
			t.Errorf("%+v, want one holder with token %d", st, k.Token())
		}
	}
	must(t, unaware.Unlock())
	must(t, aware.Unlock())
	must(t, sa.Break(t.Context(), name, k.Token()))
	_ = k.Unlock()
	last := k.Token()
	must(t, a.Close(t.Context()))
	must(t, fresh.Close(t.Context()))
	must(t, z.Restart(t.Context()))
	late, _ := locker(t, []string{z.Address()})
	if got := lock(t, late, name).Token(); got <= last {
		t.Errorf("token %d after %d, after every client that had seen it closed", got, last)
	}
}

// TestGrantLostInARestoreThatWentOn: when the client reconnects, the restored server is
// ahead of all that the holder has seen. The holder is still notified of its loss. A lock that was
// released after the copy was made is removed, and one that the client holds stays.
func TestGrantLostInARestoreThatWentOn(t *testing.T) {
	t.Parallel()
	z := alone(t, plain)
	p := behindProxy(t, z)
	a, sa := locker(t, []string{p.Address()})
	name, kept := newName(), newName()
	released := lock(t, a, name, lasting)
	held := lock(t, a, kept, lasting)
	old := backup(t, z)
	must(t, released.Unlock())
	k := lock(t, a, newName(), lasting)
	g, err := sa.Guarantees(t.Context())
	must(t, err)
	p.Cut()
	must(t, z.Restore(t.Context(), old))
	b, sb := locker(t, []string{z.Address()})
	overtake(t, b, k.Token())
	must(t, p.Heal())
	select {
	case <-k.Context().Done():
	case <-time.After(g.Notice):
		t.Fatalf("the holder is not notified of its loss within %s", g.Notice)
	}
	_ = k.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	next, err := b.Lock(ctx, name, lasting)
	if err != nil {
		t.Fatalf("the released lock is not free: %v", err)
	}
	if context.Cause(held.Context()) != nil || len(state(t, sb, kept).Holders) != 1 {
		t.Errorf("the lock that the copy contains, and that was not released, is lost: %v", context.Cause(held.Context()))
	}
	must(t, next.Unlock())
	must(t, held.Unlock())
}

// TestTokensRiseInASessionThatOutlivesARestore: the base of tokens that the session has read
// is gone after the restore. Its tokens still rise.
func TestTokensRiseInASessionThatOutlivesARestore(t *testing.T) {
	t.Parallel()
	z := alone(t, plain)
	p := behindProxy(t, z)
	a, sa := locker(t, []string{p.Address()})
	held := lock(t, a, newName(), lasting) // the session stands, and is in the backup
	old := backup(t, z)
	raw := connect(t, z.Address())
	_, err := raw.Set("/faults/@", []byte(`{"token_base":1099511627776}`), -1)
	must(t, err)
	k := lock(t, a, newName(), lasting)
	const base = 1099511627776
	if k.Token() <= base*tokenRoom {
		t.Fatalf("token %d: the base was not added", k.Token())
	}
	must(t, k.Unlock())
	p.Cut()
	must(t, z.Restore(t.Context(), old))
	b, _ := locker(t, []string{z.Address()})
	overtake(t, b, k.Token()-base*tokenRoom)
	must(t, p.Heal())
	must(t, held.Unlock())  // the session is connected
	state(t, sa, newName()) // the session reads the base, which is not raised yet
	again := lock(t, a, newName(), lasting)
	requests.LocksRise(t, k, again)
	must(t, again.Unlock())
}

// TestTokensRiseAfterTheirBaseWasDeleted: an operator deletes the node with the base, with
// all below it. Tokens rise for every client.
func TestTokensRiseAfterTheirBaseWasDeleted(t *testing.T) {
	z := single(t)
	raw := connect(t, z.Address())
	const root = "/deleted"
	a, _ := locker(t, []string{z.Address()}, zkstore.Root(root))
	b, _ := locker(t, []string{z.Address()}, zkstore.Root(root))
	must(t, lock(t, a, newName(), lasting).Unlock())
	_, err := raw.Set(root+"/@", []byte(`{"token_base":1099511627776}`), -1)
	must(t, err)
	must(t, lock(t, a, newName(), lasting).Unlock())
	must(t, lock(t, b, newName(), lasting).Unlock())
	children, _, err := raw.Children(root + "/@")
	must(t, err)
	for _, c := range children {
		must(t, raw.Delete(root+"/@/"+c, -1))
	}
	must(t, raw.Delete(root+"/@", -1))
	name := newName()
	first := lock(t, a, name, lasting)
	must(t, first.Unlock())
	second := lock(t, b, name, lasting)
	requests.LocksRise(t, first, second)
	must(t, second.Unlock())
}
