package zookeeper

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestQuotaRefusalLeavesNothing: the server refuses a create because of a quota. The client reports
// the refusal, leaves nothing behind and does not disturb the holder. When the quota has room
// again, the name is granted.
func TestQuotaRefusalLeavesNothing(t *testing.T) {
	z := alone(t, servers.ZooKeeperConfig{Tick: tick, Java: []string{"-Dzookeeper.enforceQuota=true"}})
	a, sa := locker(t, []string{z.Address()})
	b, _ := locker(t, []string{z.Address()})
	name := newName()
	k := lock(t, a, name, lasting)
	must(t, lock(t, b, newName(), lasting).Unlock()) // its session stands
	raw := connect(t, z.Address())
	quota := "/zookeeper/quota/faults/" + name
	create(t, raw, "/zookeeper/quota/faults", nil, 0)
	create(t, raw, quota, nil, 0)
	// The quota of two nodes is used up by the name's node and the holder's.
	create(t, raw, quota+"/zookeeper_limits", []byte("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2"), 0)
	create(t, raw, quota+"/zookeeper_stats", []byte("count=2,bytes=0"), 0)
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
	z := alone(t, servers.ZooKeeperConfig{Tick: time.Second, MaxSession: 20 * time.Second})
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

// TestSlowerTickIsRefused: a server with a slower tick than the option Tick ends sessions later than
// the store declares. The store refuses it, and the error names the URL's parameter.
func TestSlowerTickIsRefused(t *testing.T) {
	z := single(t)
	s := requests.Closing(t, open(t, []string{z.Address()}, zkstore.Tick(tick/2)))
	_, err := s.Guarantees(t.Context())
	if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "give tick=") {
		t.Errorf("%v, want refused with a tick to give", err)
	}
}
