package zookeeper

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestTokensRiseAfterParentWasReaped: the server removes the node of an unused name, also between a
// read and a create. The name's tokens still rise.
func TestTokensRiseAfterParentWasReaped(t *testing.T) {
	z := alone(t, servers.ZooKeeperConfig{
		Tick: tick, Java: []string{"-Dznode.container.checkIntervalMs=5", "-Dznode.container.maxPerMinute=1000000"},
	})
	a, sa := locker(t, []string{z.Address()})
	b, _ := locker(t, []string{z.Address()})
	var last uint64
	for i := range 200 {
		l := a
		if i%2 == 1 {
			l = b
		}
		k := lock(t, l, "reaped")
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
	requests.Eventually(t, "the server removes the node of the unused name", func() bool {
		exists, _, err := raw.Exists("/faults/reaped")
		must(t, err)
		return !exists
	})
	empty(t, sa, "reaped")
	must(t, lock(t, a, "reaped").Unlock())
}
