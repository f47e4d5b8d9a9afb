package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestSilentNodeDoesNotBlockOthers: one node of a Cluster stops answering. The other nodes still grant
// their names, also when the periodic check of all nodes is due.
func TestSilentNodeDoesNotBlockOthers(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, false)
	check(t, c.SetNodeTimeout(t.Context(), time.Hour))
	s := open(t, "redis+cluster://"+c.Nodes[0].Address())
	silent := c.Nodes[2]
	var names []string
	for i := 0; len(names) < 3; i++ {
		name := fmt.Sprint("x-", i)
		slot, err := c.Slot(t.Context(), redisstore.Key("", name))
		check(t, err)
		owner, err := c.Owner(t.Context(), slot)
		check(t, err)
		release(t, s, must(t, s, request(name, driver.Exclusive, long))) // now the client is connected to the node
		if owner != silent {
			names = append(names, name)
		}
	}
	check(t, silent.Pause())
	defer func() {
		if err := silent.Cont(); err != nil {
			t.Error(err)
		}
	}()
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		for _, name := range names {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			g, err := s.Acquire(ctx, request(name, driver.Exclusive, long))
			cancel()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			release(t, s, g)
		}
	}
}
