package redis

import (
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// good are the settings of a server in which no check finds anything, if its version is new.
var good = []string{"--appendonly", "yes", "--appendfsync", "always"}

// TestExamineIsSilentOnGoodServers: a well configured server, a group under Sentinel and a Cluster pass each check.
func TestExamineIsSilentOnGoodServers(t *testing.T) {
	t.Parallel()
	r := start(t, good...)
	a := open(t, "redis://"+r.Address())
	release(t, a, must(t, a, request("free", driver.Exclusive, long)))
	must(t, a, request("held", driver.Exclusive, long))
	requests.Found(t, a, old(t, r)...)

	replicated := append([]string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"}, good...)
	g, err := servers.StartRedisSentinel(t.Context(), t.TempDir(), 1, replicated...)
	check(t, err)
	t.Cleanup(g.Kill)
	url := "redis+sentinel://" + g.Sentinels[0].Address() + "/" + g.Name + "?replicas=1"
	for _, s := range g.Sentinels {
		url += "&addr=" + s.Address()
		do(t, s, "SENTINEL", "SET", g.Name, "down-after-milliseconds", "5000")
	}
	requests.Found(t, open(t, url), old(t, r)...)

	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), true, append([]string{"--cluster-require-full-coverage", "no"}, good...)...)
	check(t, err)
	t.Cleanup(c.Kill)
	requests.Found(t, open(t, "redis+cluster://"+c.Nodes[0].Address()+"?replicas=1"), old(t, r)...)
}

// old returns the check that a server of an old version does not pass.
func old(t testing.TB, r *servers.Redis) []string {
	t.Helper()
	info, err := r.Info(t.Context(), "server")
	check(t, err)
	if v := info["redis_version"]; strings.HasPrefix(v, "7.0.") || strings.HasPrefix(v, "6.") {
		return []string{"version"}
	}
	return nil
}

// TestExamineFindsBadServers examines a server in each bad state.
func TestExamineFindsBadServers(t *testing.T) {
	r := start(t, good...)
	at := "redis://" + r.Address()
	set := func(name, value, back string) func(testing.TB) {
		return func(t testing.TB) {
			do(t, r, "CONFIG", "SET", name, value)
			t.Cleanup(func() { do(t, r, "CONFIG", "SET", name, back) })
		}
	}
	for name, c := range map[string]struct {
		url   string
		begin func(testing.TB)
		want  string
	}{
		"eviction":      {at + "?insist=true", set("maxmemory-policy", "allkeys-lru", "noeviction"), "maxmemory_policy is allkeys-lru"},
		"memory":        {at, set("maxmemory", "1", "0"), "of 1"},
		"pubsub-buffer": {at, set("client-output-buffer-limit", "pubsub 1000 500 60", "pubsub 33554432 8388608 60"), "pubsub 1000 500 60"},
		"persistence":   {at, set("appendonly", "no", "yes"), "no snapshot"},
		"fsync":         {at, set("appendfsync", "everysec", "always"), "everysec"},
		"clients": {at, func(t testing.TB) {
			for range 46 {
				c, err := net.Dial("tcp", r.Address())
				check(t, err)
				t.Cleanup(func() { _ = c.Close() })
			}
			set("maxclients", "50", "10000")(t)
		}, "of 50"},
		"too-few-replicas": {at + "?replicas=1", func(testing.TB) {}, "connected_slaves is 0, and replicas is 1"},
		"unread": {"redis://few:secret@" + r.Address(), func(t testing.TB) {
			do(t, r, "ACL", "SETUSER", "few", "on", ">secret", "~holdfast:*", "&holdfast:*", "+@all", "-@admin", "-info")
		}, "INFO; CONFIG GET; keys outside"},
		"rights": {"redis://lesser:secret@" + r.Address(), func(t testing.TB) {
			do(t, r, "ACL", "SETUSER", "lesser", "on", ">secret", "~holdfast:*", "&holdfast:*", "+@all", "-hkeys", "-subscribe")
		}, "may not use hkeys, subscribe"},
		"rival": {at, func(t testing.TB) { do(t, r, "SET", "orders", "of another library") }, `"orders" and a string`},
	} {
		t.Run(name, func(t *testing.T) {
			c.begin(t)
			s := open(t, c.url)
			if name == "rival" || name == "unread" {
				holder := open(t, at)
				g := must(t, holder, request("orders", driver.Exclusive, long))
				defer release(t, holder, g)
			}
			requests.Finds(t, s, name, c.want)
		})
	}
}

// TestExamineFindsDiskAndProxy: a server that cannot write its snapshot refuses each write, and behind a proxy that
// spreads keys each lock is a call of its own.
func TestExamineFindsDiskAndProxy(t *testing.T) {
	r := start(t)
	answer := do(t, r, "CONFIG", "GET", "dir")
	check(t, os.RemoveAll(answer.([]any)[1].(string)))
	do(t, r, "CONFIG", "SET", "save", "3600 1")
	s := open(t, "redis://"+r.Address())
	do(t, r, "BGSAVE")
	requests.Eventually(t, "the snapshot fails", func() bool {
		_, found := requests.Finding(t, s, "disk")
		return found
	})
	requests.Finds(t, s, "persistence", "snapshots (3600 1)")

	a, b := start(t, good...), start(t, good...)
	s = open(t, "redis://"+startSpreading(t, new(atomic.Bool), a, b))
	_, err := s.Guarantees(t.Context())
	check(t, err)
	requests.Found(t, s, append([]string{"proxy"}, old(t, a)...)...)
}

// TestExamineFindsBadReplicas examines a primary whose replicas are not as they should be.
func TestExamineFindsBadReplicas(t *testing.T) {
	t.Parallel()
	g := replicas(t, good...)
	s := open(t, "redis://"+g.Primary.Address())
	requests.Finds(t, s, "failover", "replicas is 0, and connected_slaves is 1")
	requests.Finds(t, s, "min-replicas", "min-replicas-to-write is 0")
	do(t, g.Replicas[0], "CONFIG", "SET", "replica-read-only", "no")
	requests.Finds(t, s, "writable-replica", "replica-read-only no")
	if err := g.Replicas[0].FakeClock(t.Context()); err != nil {
		servertest.Started(t, err)
	}
	check(t, g.Replicas[0].SetClock(time.Minute))
	check(t, g.Linked(t.Context()))
	requests.Finds(t, s, "replica-clock", "ahead")
	check(t, g.Replicas[0].Pause())
	requests.Eventually(t, "the replica lags", func() bool {
		_, found := requests.Finding(t, s, "replica-lag")
		return found
	})
	check(t, g.Replicas[0].Cont())
}

// TestExamineFindsBadSentinels examines sentinels and a Cluster with settings by which a failover takes too long, or
// does not take place.
func TestExamineFindsBadSentinels(t *testing.T) {
	g, err := servers.StartRedisSentinel(t.Context(), t.TempDir(), 0, good...)
	servertest.Started(t, err)
	t.Cleanup(g.Kill)
	s := open(t, "redis+sentinel://"+g.Sentinels[0].Address()+"/"+g.Name+"?addr="+g.Sentinels[1].Address())
	requests.Finds(t, s, "no-replica", "connected_slaves is 0")
	for check, set := range map[string][]string{"sentinel-quorum": {"quorum", "1"}, "sentinel-timeout": {"down-after-milliseconds", "30000"}} {
		do(t, g.Sentinels[0], append([]string{"SENTINEL", "SET", g.Name}, set...)...)
		requests.Finds(t, s, check, set[1])
	}
	g.Sentinels[1].Kill()
	requests.Finds(t, s, "sentinel-silent", g.Sentinels[1].Address())
	do(t, g.Sentinels[0], "SENTINEL", "RESET", g.Name) // forgets the other sentinels, one of which answers
	g.Sentinels[2].Kill()
	do(t, g.Sentinels[0], "SENTINEL", "RESET", g.Name)
	requests.Finds(t, s, "sentinel-number", "sentinels is 1")

	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), false, append([]string{"--cluster-require-full-coverage", "yes"}, good...)...)
	check(t, err)
	t.Cleanup(c.Kill)
	check(t, c.SetNodeTimeout(t.Context(), time.Minute))
	s = open(t, "redis+cluster://"+c.Nodes[0].Address())
	requests.Finds(t, s, "node-timeout", "60000")
	requests.Finds(t, s, "coverage", "yes")
}
