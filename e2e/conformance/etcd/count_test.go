package etcd

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// keyOf returns the key of the youngest entry of a name.
func keyOf(t *testing.T, client *clientv3.Client, name string) string {
	t.Helper()
	return string(youngest(t, client, name).Key)
}

// TestEntryCountsTheDeletionsBeforeIt: an entry is granted when the last of three entries before it
// was deleted, in whatever order, and not before. Its client sends no request for that. (The
// session reads its entries once a second. It reads them again after an interruption of a watch,
// which takes a second.)
func TestEntryCountsTheDeletionsBeforeIt(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, n := c.counted(t)
	client := c.direct(t)
	other := c.open(t)
	began := time.Now()
	var used int64
	const rounds = 20
	for i := range rounds {
		name := fmt.Sprint("n", i)
		must(t, other, request(name, 1, time.Hour))
		before := []string{keyOf(t, client, name)}
		for j := range 2 {
			submit(t, other, request(name, 1, time.Hour))
			for len(before) == j+1 {
				if key := keyOf(t, client, name); key != before[j] {
					before = append(before, key)
				}
			}
		}
		queued := n.Load()
		last := queue(t, s, request(name, 1, time.Hour))
		eventually(t, "the entry and the read after the creation of its watch", func() bool { return n.Load() >= queued+2 })
		queued = n.Load()
		for _, at := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}}[i%3] {
			last.Pending()
			remove(t, client, before[at])
		}
		g := last.Granted()
		used += n.Load() - queued
		release(t, s, g)
	}
	if most := 2 * checksSince(began); used > most {
		t.Errorf("%d grants took %d requests, want %d at most", rounds, used, most)
	}
}
