package zookeeper

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestQuotaRefusalLeavesNothing: the server refuses a create because of a quota. The client reports
// the refusal, leaves nothing behind and does not disturb the holder. When the quota has room
// again, the name is granted.
func TestQuotaRefusalLeavesNothing(t *testing.T) {
	z, err := servers.StartZooKeeper(t.Context(), filepath.Join(t.TempDir(), "zookeeper"), servers.ZooKeeperConfig{Tick: tick, Java: []string{"-Dzookeeper.enforceQuota=true"}})
	servertest.Started(t, err)
	t.Cleanup(z.Kill)
	a, sa := locker(t, []string{z.Address()})
	b, _ := locker(t, []string{z.Address()})
	name := newName()
	k := lock(t, a, name, lasting)
	must(t, lock(t, b, newName(), lasting).Unlock()) // its session stands
	raw := connect(t, z.Address())
	quota := "/zookeeper/quota/faults/" + name
	for _, path := range []string{"/zookeeper/quota/faults", quota} {
		_, err := raw.Create(path, nil, 0, zookeeper.WorldACL(zookeeper.PermAll))
		must(t, err)
	}
	// The quota of two nodes is used up by the name's node and the holder's.
	_, err = raw.Create(quota+"/zookeeper_limits", []byte("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2"), 0, zookeeper.WorldACL(zookeeper.PermAll))
	must(t, err)
	_, err = raw.Create(quota+"/zookeeper_stats", []byte("count=2,bytes=0"), 0, zookeeper.WorldACL(zookeeper.PermAll))
	must(t, err)
	if _, err := b.Lock(t.Context(), name, lasting); !errors.Is(err, holdfast.ErrRefused) {
		t.Errorf("Lock: %v, want refused", err)
	}
	if st := state(t, sa, name); len(st.Holders) != 1 || len(st.Waiters) != 0 || k.Context().Err() != nil {
		t.Errorf("%+v, and the holder's context: %v", st, k.Context().Err())
	}
	must(t, k.Unlock())
	must(t, lock(t, b, name, lasting).Unlock())
	empty(t, sa, name)
}

// TestDefaultTTLOnAServerThatAllowsLess: the server's longest session is too short for the
// default TTL of 30 s. A lock without a TTL is granted with a shorter one.
func TestDefaultTTLOnAServerThatAllowsLess(t *testing.T) {
	z, err := servers.StartZooKeeper(t.Context(), filepath.Join(t.TempDir(), "zookeeper"), servers.ZooKeeperConfig{Tick: time.Second, MaxSession: 20 * time.Second})
	servertest.Started(t, err)
	t.Cleanup(z.Kill)
	l, _ := locker(t, []string{z.Address()}, zkstore.Tick(2*time.Second))
	k := lock(t, l, newName())
	if left := k.Remaining(); left > 12*time.Second {
		t.Errorf("valid for %s, and the server carries 12s", left)
	}
	must(t, k.Unlock())
	if _, err := l.Lock(t.Context(), newName(), holdfast.TTL(holdfast.DefaultTTL)); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("with the TTL given: %v, want invalid", err)
	}
}
