package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestConformanceCluster runs the suite on three members.
func TestConformanceCluster(t *testing.T) {
	// An election ends within two thirds of a second, so the cluster grants a lease of one second.
	conform(t, start(t, servers.EtcdConfig{Members: 3, Heartbeat: 60 * time.Millisecond}), time.Second)
}

// TestConformanceDistribution runs the suite on the etcd of Debian 12, 3.4.
func TestConformanceDistribution(t *testing.T) {
	t.Setenv(servers.Dirs, "")
	program := need(t, "etcd", "/usr/bin/etcd")
	if program == need(t, "etcd") && !strings.HasPrefix(program, "/usr/") {
		t.Skip("the etcd in PATH is the current one")
	}
	conform(t, start(t, servers.EtcdConfig{Program: program, Heartbeat: quick}), time.Second)
}

// leader returns the index of the member that reports itself as the leader.
func (c *cluster) leader(t *testing.T, client *clientv3.Client) int {
	t.Helper()
	lead := -1
	eventually(t, "a member leads", func() bool {
		lead = slices.IndexFunc(c.members, func(m *servers.Etcd) bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			st, err := client.Status(ctx, m.Client)
			return err == nil && st.Leader == st.Header.MemberId
		})
		return lead >= 0
	})
	return lead
}

// TestLockAndWaiterSurviveKilledLeader: the lock is held and the queue entry stands after an
// election.
func TestLockAndWaiterSurviveKilledLeader(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{Members: 3})
	client := c.direct(t)
	l, o := locker(t, c.open(t)), locker(t, c.open(t))
	k, err := l.Lock(t.Context(), "n", holdfast.TTL(10*time.Second))
	check(t, err)
	waited := make(chan error, 1)
	go func() {
		waited <- o.Do(t.Context(), "n", func(context.Context) error { return nil }, holdfast.TTL(10*time.Second))
	}()
	eventually(t, "the waiter has a queue entry", func() bool {
		st, err := o.Inspect(t.Context(), "n")
		check(t, err)
		return len(st.Holders)+len(st.Waiters) == 2
	})
	dead := c.leader(t, client)
	c.members[dead].Kill()
	c.leader(t, client)
	if err := k.Context().Err(); err != nil {
		t.Fatalf("the lock did not survive its leader: %v", context.Cause(k.Context()))
	}
	if err := k.Unlock(); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
		t.Fatal(err)
	}
	check(t, receive(t, "the waiter's lock", waited))
	check(t, c.members[dead].Restart(t.Context()))
}

// apart starts a cluster whose members a test can cut off from each other.
func apart(t *testing.T) (*network, *cluster) {
	t.Helper()
	n, err := newNetwork(3)
	if errors.Is(err, errNoNetwork) {
		servertest.Missing(t, err)
	}
	check(t, err)
	t.Cleanup(n.close)
	return n, start(t, servers.EtcdConfig{Members: 3, Hosts: n.addresses(), Enter: n.enter})
}

// TestHolderOnCutOffMemberEndsInTime: a member without a connection to the others still serves its clients'
// connections. A holder on that member alone loses its context before another client can get the
// lock. A waiter on that member continues to wait. Both are also true if that member is the leader.
func TestHolderOnCutOffMemberEndsInTime(t *testing.T) {
	t.Parallel()
	network, c := apart(t)
	client := c.direct(t)
	only := func(i int) *etcdstore.Store {
		// No member advertises the proxy, so the client does not follow the member list.
		s, err := etcdstore.Open(t.Context(), "etcd://"+c.proxies[i].Address())
		return closing(t, s, err)
	}
	// A member that has lost its leader does not answer requests. A restarted member needs a while
	// to find the present leader.
	lock := func(l *holdfast.Locker, name string, o ...holdfast.LockOption) (*holdfast.Lock, error) {
		return requests.Retried(func() (*holdfast.Lock, error) { return l.Lock(t.Context(), name, o...) })
	}
	for _, lead := range []bool{false, true} {
		at := c.leader(t, client)
		if !lead {
			at = (at + 1) % 3
		}
		name := map[bool]string{true: "leader", false: "follower"}[lead]
		holder, other := locker(t, only(at)), locker(t, only((at+1)%3))
		k, err := lock(holder, name, holdfast.TTL(3*time.Second))
		check(t, err)
		ended := make(chan time.Time, 1)
		context.AfterFunc(k.Context(), func() { ended <- time.Now() })
		check(t, network.cut(at))
		next, err := lock(other, name, holdfast.TTL(3*time.Second))
		granted := time.Now()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if k.Context().Err() == nil {
			t.Fatalf("%s: granted to another client before the first holder's context has ended", name)
		}
		if at := receive(t, "the end of the context", ended); at.After(granted) {
			t.Errorf("%s: the context ended %s after the next grant", name, at.Sub(granted))
		}
		requests.LocksRise(t, k, next)
		check(t, network.heal(at))
		if err := next.Unlock(); err != nil {
			t.Error(err)
		}
		if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("%s: Unlock of the lost lock: %v", name, err)
		}
		// The client of that member can lock again.
		again, err := lock(holder, name)
		check(t, err)
		if err := again.Unlock(); err != nil {
			t.Error(err)
		}
	}
}

// TestClientOfProgramLeavesCutOffMember: a member is cut off from the others, and its clients stay connected. Stores over
// clients of the program, which have the addresses of all members, leave it: new locks are granted, held locks are
// renewed, and waiters get theirs. All that is also true if that member was the leader.
func TestClientOfProgramLeavesCutOffMember(t *testing.T) {
	t.Parallel()
	network, c := apart(t)
	client := c.direct(t)
	for _, lead := range []bool{false, true} {
		at := c.leader(t, client)
		if !lead {
			at = (at + 1) % 3
		}
		const clients, ttl = 3, 10 * time.Second // their requests and streams begin at different members
		var holders, waiters []*holdfast.Locker
		var held []*holdfast.Lock
		granted := make(chan error, clients)
		for i := range clients {
			name := fmt.Sprintf("%t-%d", lead, i)
			holder, waiter := locker(t, over(t, c.direct(t))), locker(t, over(t, c.direct(t)))
			k, err := requests.Retried(func() (*holdfast.Lock, error) { return holder.Lock(t.Context(), name, holdfast.TTL(ttl)) })
			check(t, err)
			holders, waiters, held = append(holders, holder), append(waiters, waiter), append(held, k)
			go func() {
				_, err := requests.Retried(func() (struct{}, error) {
					return struct{}{}, waiter.Do(t.Context(), name, func(context.Context) error { return nil }, holdfast.TTL(ttl))
				})
				granted <- err
			}()
			eventually(t, "the waiter has a queue entry", func() bool {
				st, err := holder.Inspect(t.Context(), name)
				return err == nil && len(st.Waiters) == 1
			})
		}
		check(t, network.cut(at))
		cut := time.Now()
		for i, l := range slices.Concat(holders, waiters) {
			_, err := requests.Retried(func() (struct{}, error) { // requests at the cut off member have no answer
				return struct{}{}, l.Do(t.Context(), fmt.Sprintf("%t-new-%d", lead, i), func(context.Context) error { return nil }, holdfast.TTL(3*time.Second))
			})
			check(t, err)
		}
		for _, k := range held {
			eventually(t, "the lock is renewed", func() bool { return time.Now().Add(k.Remaining()).After(cut.Add(ttl)) })
			if err := k.Unlock(); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
				t.Error(err)
			}
		}
		for range clients {
			check(t, receive(t, "a waiter's lock", granted))
		}
		check(t, network.heal(at))
	}
}
