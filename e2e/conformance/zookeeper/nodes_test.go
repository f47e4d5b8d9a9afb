package zookeeper

import (
	"path/filepath"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/e2e/servertest"
)

// TestTokensRiseAfterParentWasReaped: the server removes the node of an unused name, also between a
// read and a create. The name's tokens still rise.
func TestTokensRiseAfterParentWasReaped(t *testing.T) {
	servertest.Started(t, servers.ZooKeeperInstalled())
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
		exists, _, err := raw.Exists("/faults/reaped")
		must(t, err)
		if !exists {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the server does not remove the node of the unused name")
		}
	}
	empty(t, sa, "reaped")
	must(t, lock(t, a, "reaped").Unlock())
}

// TestForeignChildrenAreIgnored: the store ignores child nodes of other programs, even if their names
// resemble those of a queue entry.
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
