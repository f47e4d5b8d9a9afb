//go:build linux || darwin

package servers_test

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

func needRedis(t *testing.T) {
	t.Helper()
	if _, err := servers.RedisInstalled(); err != nil {
		if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func TestRedisServesAndRestartsEmpty(t *testing.T) {
	needRedis(t)
	ctx := t.Context()
	r, err := servers.StartRedis(ctx, t.TempDir(), "--requirepass", "secret")
	must.Succeed(t, err)
	defer r.Kill()
	if _, err := r.Do(ctx, "SET", "a", "b"); err != nil {
		t.Fatal(err)
	}
	if v, err := r.Do(ctx, "MGET", "a", "c"); err != nil || len(v.([]any)) != 2 || v.([]any)[0] != "b" || v.([]any)[1] != nil {
		t.Errorf("%v, %v", v, err)
	}
	stranger := servers.Redis{Port: r.Port}
	if _, err := stranger.Do(ctx, "GET", "a"); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without a password: %v", err)
	}
	must.Succeed(t, r.RestartEmpty(ctx))
	if v, err := r.Do(ctx, "GET", "a"); err != nil || v != nil {
		t.Errorf("%v, %v", v, err)
	}
}

// TestRedisReplicas requires that each replica of a started group has acknowledged an
// offset.
func TestRedisReplicas(t *testing.T) {
	needRedis(t)
	ctx := t.Context()
	g, err := servers.StartRedisReplicas(ctx, t.TempDir(), 2)
	must.Succeed(t, err)
	defer g.Kill()
	info, err := g.Primary.Info(ctx, "replication")
	must.Succeed(t, err)
	for _, name := range []string{"slave0", "slave1"} {
		if state := info[name]; state == "" || strings.Contains(state, "offset=0,") {
			t.Errorf("%s is %q: it has acknowledged nothing", name, state)
		}
	}
}

func TestSentinelsPromoteReplica(t *testing.T) {
	needRedis(t)
	ctx := t.Context()
	s, err := servers.StartRedisSentinel(ctx, t.TempDir(), 1)
	must.Succeed(t, err)
	defer s.Kill()
	old, err := s.Current(ctx)
	if err != nil || old != s.Primary {
		t.Fatal(old, err)
	}
	old.Kill()
	if now, err := s.FailedOver(ctx, old); err != nil || now != s.Replicas[0] {
		t.Error(now, err)
	}
}

func TestRedisCluster(t *testing.T) {
	needRedis(t)
	ctx := t.Context()
	c, err := servers.StartRedisCluster(ctx, t.TempDir(), true)
	must.Succeed(t, err)
	defer c.Kill()
	slot, err := c.Slot(ctx, "x")
	must.Succeed(t, err)
	from, err := c.Owner(ctx, slot)
	must.Succeed(t, err)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	if _, err := from.Do(ctx, "SET", "x", "y"); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, c.BeginMove(ctx, slot, from, to))
	must.Succeed(t, c.EndMove(ctx, slot, from, to))
	if v, err := to.Do(ctx, "GET", "x"); err != nil || v != "y" {
		t.Errorf("%v, %v", v, err)
	}
}
