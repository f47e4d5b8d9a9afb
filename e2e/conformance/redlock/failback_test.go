package redlock

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// TestFailoverAndBack replicates a server that lacks a vote to the server that gave it, as two
// failovers within a TTL do: its process is the same, and it has forgotten the vote.
func TestFailoverAndBack(t *testing.T) {
	f := startBare(t, 1, redlock.Config{})
	g, err := servers.StartRedis(t.Context(), filepath.Join(t.TempDir(), "other"), "--replicaof", "127.0.0.1 "+strconv.Itoa(f.all[0].Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	group := servers.RedisReplicas{Primary: f.all[0], Replicas: []*servers.Redis{g}}
	if err := group.Linked(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.setUp(f.config)
	if _, err := g.Do(t.Context(), "REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	first := must(t, f.open(t), "name", time.Minute)
	f.do(0, "REPLICAOF", "127.0.0.1", strconv.Itoa(g.Port))
	group = servers.RedisReplicas{Primary: g, Replicas: f.all}
	if err := group.Linked(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.do(0, "REPLICAOF", "NO", "ONE")
	if f.do(0, "EXISTS", "holdfast:redlock:l::name") != int64(0) || f.state(0)["run"] == "" {
		t.Fatal("the server has not taken the other's data")
	}
	if second, err := f.open(t).Acquire(t.Context(), request("name", time.Minute)); err == nil {
		t.Fatalf("tokens %d and %d stand", first.Token, second.Token)
	}
}
