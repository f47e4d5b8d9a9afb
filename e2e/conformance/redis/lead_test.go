package redis

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// leaseOf returns the TTL of the only lease of a name, and the moment from which the server counts it,
// by the server's clock.
func leaseOf(t *testing.T, r *servers.Redis, name string) (from time.Time, ttl time.Duration) {
	t.Helper()
	rec, _ := do(t, r, "HGET", redisstore.Key("", name), "s0").(string)
	at, length, _ := strings.Cut(rec[strings.LastIndex(rec, " ")+1:], "+")
	begin, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		t.Fatalf("the grant of %s is %q", name, rec)
	}
	n, err := strconv.ParseInt(length, 10, 64)
	if err != nil {
		t.Fatalf("the grant of %s is %q", name, rec)
	}
	return time.UnixMicro(begin), time.Duration(n) * time.Microsecond
}

// TestReplicaThatCannotBeComparedKeepsItsLead: a replica's clock is ahead. Then the store cannot read that
// clock any more, while the replica acknowledges grants, or it is disconnected from its primary and comes
// back. New leases are as long as before.
func TestReplicaThatCannotBeComparedKeepsItsLead(t *testing.T) {
	const ahead = 5 * time.Second
	for what, hide := range map[string]func(*testing.T, *servers.RedisReplicas, *servers.Proxy){
		"cut off": func(_ *testing.T, _ *servers.RedisReplicas, p *servers.Proxy) { p.Cut() },
		"silent": func(t *testing.T, _ *servers.RedisReplicas, p *servers.Proxy) {
			check(t, p.Silence())
		},
		"TIME refused": func(t *testing.T, g *servers.RedisReplicas, _ *servers.Proxy) {
			do(t, g.Replicas[0], "ACL", "SETUSER", "default", "-time")
		},
		"INFO refused": func(t *testing.T, g *servers.RedisReplicas, _ *servers.Proxy) {
			do(t, g.Primary, "ACL", "SETUSER", "default", "-info")
		},
		"disconnected": func(t *testing.T, g *servers.RedisReplicas, _ *servers.Proxy) {
			do(t, g.Replicas[0], "REPLICAOF", "NO", "ONE")
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			g := clockedReplicas(t)
			p, err := servers.NewProxy(g.Replicas[0].Address())
			check(t, err)
			t.Cleanup(p.Close)
			// The replica reports the proxy's port when it connects to the primary.
			follow := func() {
				host, port, _ := strings.Cut(g.Primary.Address(), ":")
				do(t, g.Replicas[0], "REPLICAOF", host, port)
				eventually(t, "the replica follows", func() bool {
					info, err := g.Replicas[0].Info(t.Context(), "replication")
					return err == nil && info["master_link_status"] == "up"
				})
			}
			_, port, _ := strings.Cut(p.Address(), ":")
			do(t, g.Replicas[0], "REPLICAOF", "NO", "ONE")
			do(t, g.Replicas[0], "CONFIG", "SET", "replica-announce-port", port)
			follow()
			check(t, g.Replicas[0].SetClock(ahead))
			s := open(t, "redis://"+g.Primary.Address(), redisstore.WaitReplicas(1, 200*time.Millisecond))
			lease := func(when string) {
				t.Helper()
				held := acknowledged(t, s, "x")
				if _, ttl := leaseOf(t, g.Primary, "x"); ttl < long+ahead-time.Second {
					t.Errorf("%s the lease is %s, want %s more than %s", when, ttl, ahead, long)
				}
				release(t, s, held)
			}
			lease("at first")
			hide(t, g, p)
			// Each probe is valid for two seconds. In this time the store probes again.
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
				if what == "disconnected" {
					_, _ = s.Acquire(t.Context(), request("y", driver.Exclusive, long)) // no replica acknowledges it
				} else {
					lease("after that")
				}
			}
			if what == "disconnected" {
				follow()
				lease("after the replica has come back")
			}
		})
	}
}

// TestFailoverBeforeLengtheningIsAcknowledged: a replica's clock is set ahead while a lock is held. The
// store lengthens the lease, and the replica is promoted before it has received that. The store renews
// the lease at the promoted replica, so that it lasts as long as its holder relies on it.
func TestFailoverBeforeLengtheningIsAcknowledged(t *testing.T) {
	t.Parallel()
	const ahead = 8 * time.Second
	g := clockedReplicas(t)
	link := proxy(t, g.Primary)
	host, port, _ := strings.Cut(link.Address(), ":")
	do(t, g.Replicas[0], "REPLICAOF", host, port)
	check(t, g.Linked(t.Context()))
	p := proxy(t, g.Primary)
	s := open(t, "redis://"+p.Address(), redisstore.WaitReplicas(1, 200*time.Millisecond))
	held := acknowledged(t, s, "x")
	until := held.SentAt.Time().Add(held.TTL) // the holder relies on the lease until then
	check(t, link.Silence())
	check(t, g.Replicas[0].SetClock(ahead))
	eventually(t, "the store does not lengthen the lease", func() bool {
		_, ttl := leaseOf(t, g.Primary, "x")
		return ttl >= long+ahead
	})
	p.Cut()
	g.Primary.Kill()
	do(t, g.Replicas[0], "REPLICAOF", "NO", "ONE")
	time.Sleep(2500 * time.Millisecond) // a call that lengthens the lease ends: it could reach the promoted replica
	if from, ttl := leaseOf(t, g.Replicas[0], "x"); !from.Add(ttl - ahead).Before(until) {
		t.Skip("the machine is too slow: the difference of the clocks was measured with an error of seconds")
	}
	check(t, errors.Join(p.Redirect(g.Replicas[0].Address()), p.Heal()))
	eventually(t, "the lease at the promoted replica ends before its holder's validity", func() bool {
		from, ttl := leaseOf(t, g.Replicas[0], "x")
		return !from.Add(ttl - ahead).Before(until)
	})
}

// TestSilentNodeKeepsTheLead: the clock of a replica in a Cluster is ahead, and its primary stops
// answering. While the store probes the other nodes, new leases are as long as before.
func TestSilentNodeKeepsTheLead(t *testing.T) {
	t.Parallel()
	const ahead = 5 * time.Second
	c := ownCluster(t, true)
	check(t, c.SetNodeTimeout(t.Context(), time.Hour)) // no node is replaced
	node, silent := c.Nodes[0], c.Nodes[2]
	replica, behind := c.Nodes[3], c.Nodes[5] // of these nodes
	fakeClock(t, behind)
	check(t, errors.Join(c.SetNodeTimeout(t.Context(), time.Hour), c.Whole(t.Context()), behind.SetClock(ahead)))
	url := "redis+cluster://" + node.Address() + "?replicas=1"
	s := open(t, url)
	var name string
	for i := 0; ; i++ {
		name = fmt.Sprint("x-", i)
		slot, err := c.Slot(t.Context(), redisstore.Key("", name))
		check(t, err)
		if owner, err := c.Owner(t.Context(), slot); err != nil {
			t.Fatal(err)
		} else if owner == node {
			break
		}
	}
	long := func() bool {
		held := acknowledged(t, s, name)
		_, ttl := leaseOf(t, node, name)
		release(t, s, held)
		return ttl >= held.TTL+ahead-time.Second
	}
	// A probe reads the time of this replica. No script runs there.
	probes := func() (n int) {
		stats, err := replica.Info(t.Context(), "commandstats")
		check(t, err)
		_, _ = fmt.Sscanf(stats["cmdstat_time"], "calls=%d,", &n)
		return n
	}
	eventually(t, "the leases have no time for the clock that is ahead", long)
	check(t, silent.Pause())
	defer func() {
		if err := silent.Cont(); err != nil {
			t.Error(err)
		}
	}()
	// The first of these probes may have begun before the pause. The third one begins
	// after the store has the findings of the second one.
	before := probes()
	eventually(t, "the store does not probe", func() bool {
		if !long() {
			t.Fatal("the lease has no time for a replica's clock, because its primary is silent")
		}
		return probes() >= before+3
	})
}
