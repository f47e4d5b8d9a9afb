package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestSilentNodeDoesNotBlockOthers: one node of a Cluster stops answering. The other nodes still grant
// their names, also when the periodic check of all nodes is due.
func TestSilentNodeDoesNotBlockOthers(t *testing.T) {
	c := cluster(t)
	for library, client := range clients(t, "redis+cluster://"+c.Nodes[0].Address(), func() goredis.UniversalClient {
		return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{c.Nodes[0].Address()}})
	}) {
		t.Run(library, func(t *testing.T) {
			if err := c.SetNodeTimeout(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
			s := client()
			silent := c.Nodes[2]
			var names []string
			for i := 0; len(names) < 3; i++ {
				name := fmt.Sprintf("%s-%d", library, i)
				slot, err := c.Slot(t.Context(), redisstore.Key("", name))
				if err != nil {
					t.Fatal(err)
				}
				owner, err := c.Owner(t.Context(), slot)
				if err != nil {
					t.Fatal(err)
				}
				release(t, s, must(t, s, request(name, driver.Exclusive, long))) // now the client is connected to the node
				if owner != silent {
					names = append(names, name)
				}
			}
			if err := silent.Pause(); err != nil {
				t.Fatal(err)
			}
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
		})
	}
}
