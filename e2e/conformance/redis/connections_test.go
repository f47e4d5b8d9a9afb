package redis

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// TestWaitersOfLayoutShareConnection: the waiters of a layout listen to a channel for each name. The
// client uses one connection for all of them.
func TestWaitersOfLayoutShareConnection(t *testing.T) {
	r := start(t)
	url := "redis://" + r.Address()
	other, s := openLayout(t, url, layouts.Redisson), openLayout(t, url, layouts.Redisson)
	var held []driver.Grant
	var waiting []*waiter
	for i := range 20 {
		name := fmt.Sprint("n", i)
		held = append(held, must(t, other, request(name, driver.Exclusive, long)))
		waiting = append(waiting, queue(t, s, request(name, driver.Exclusive, long)))
	}
	list, _ := do(t, r, "CLIENT", "LIST", "TYPE", "pubsub").(string)
	if n := strings.Count(list, "\n"); n != 1 {
		t.Errorf("%d connections for 20 waiters:\n%s", n, list)
	}
	for i, g := range held {
		release(t, other, g)
		release(t, s, waiting[i].Granted())
	}
}

// TestManyCallersOfClusterUseFewConnections: hundreds of goroutines lock names of a Cluster. Their
// requests share the connections to each node.
func TestManyCallersOfClusterUseFewConnections(t *testing.T) {
	c := cluster(t)
	before := connected(t, c.Nodes)
	s := open(t, "redis+cluster://"+c.Nodes[0].Address())
	each(t, 1500, 300, func(i int) error {
		g, err := s.Acquire(t.Context(), request(fmt.Sprint("many", i%300), driver.Exclusive, long))
		if err == nil {
			release(t, s, g)
		}
		return err
	})
	// A pipeline that is slow for long lets others go out beside it.
	const most = 20
	for i, n := range connected(t, c.Nodes) {
		if n -= before[i]; n > most {
			t.Errorf("%d connections to node %d, want at most %d", n, i, most)
		}
	}
}

// connected returns the number of connections to each server.
func connected(t *testing.T, all []*servers.Redis) (numbers []int) {
	t.Helper()
	for _, r := range all {
		info, err := r.Info(t.Context(), "clients")
		check(t, err)
		n, err := strconv.Atoi(info["connected_clients"])
		check(t, err)
		numbers = append(numbers, n)
	}
	return numbers
}
