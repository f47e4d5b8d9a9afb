package zookeeper

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

var (
	togetherOnce   sync.Once
	together       *servers.Ensemble
	togetherFailed error
)

// three returns the ensemble that this package's tests share. A follower waits long for a silent leader, and the
// leader for a silent follower. So they do not notice a cut link during a test.
func three(t *testing.T) *servers.Ensemble {
	t.Helper()
	togetherOnce.Do(func() {
		var dir string
		if dir, togetherFailed = os.MkdirTemp("", "holdfast-ensemble-"); togetherFailed != nil {
			return
		}
		together, togetherFailed = servers.StartEnsemble(t.Context(), filepath.Join(dir, "e"), servers.ZooKeeperConfig{Tick: tick, SyncTicks: 50})
		atEnd = append(atEnd, func() {
			if together != nil {
				together.Close()
			}
			os.RemoveAll(dir)
		})
	})
	servertest.Started(t, togetherFailed)
	return together
}

func leader(t *testing.T, e *servers.Ensemble) *servers.ZooKeeper {
	t.Helper()
	m, err := e.Leader(t.Context())
	must(t, err)
	return m
}

// others returns the members but one.
func others(e *servers.Ensemble, one *servers.ZooKeeper) []*servers.ZooKeeper {
	return slices.DeleteFunc(slices.Clone(e.Members), func(m *servers.ZooKeeper) bool { return m == one })
}

func addresses(members ...*servers.ZooKeeper) (all []string) {
	for _, m := range members {
		all = append(all, m.Address())
	}
	return all
}

// TestCutOffFollowerDoesNotExtendValidity: the link between a follower and its leader is
// cut, and the follower still answers its client.
func TestCutOffFollowerDoesNotExtendValidity(t *testing.T) {
	e := three(t)
	l := leader(t, e)
	f, err := e.Follower(t.Context())
	must(t, err)
	a, _ := locker(t, []string{f.Address()})
	b, sb := locker(t, []string{l.Address()})
	name := newName()
	k := lock(t, a, name, holdfast.TTL(2*time.Second))
	got := waiting(t, b, sb, name)
	raw := connect(t, f.Address())
	children, _, err := raw.Children("/faults/" + name)
	must(t, err)

	must(t, e.Silence(f))
	defer func() { must(t, e.Heal(f)); leader(t, e) }()
	next := overtaken(t, k, got)
	// The follower still serves old data, which a client must not rely on.
	later, _, err := raw.Children("/faults/" + name)
	if err != nil || len(later) < len(children) {
		t.Errorf("the follower shows %v, %v: it has noticed the change, so the test proves nothing", later, err)
	}
	must(t, next.Unlock())
}

// TestClientLeavesCutOffFollower: a client with other servers leaves the one that is cut
// off, and keeps its lock.
func TestClientLeavesCutOffFollower(t *testing.T) {
	e := three(t)
	l := leader(t, e)
	f, err := e.Follower(t.Context())
	must(t, err)
	// At first the client can reach only the follower, so it connects there.
	p, err := servers.NewProxy(f.Address())
	must(t, err)
	defer p.Close()
	a, _ := locker(t, []string{p.Address(), l.Address()})
	name := newName()
	const ttl = 10 * time.Second
	k := lock(t, a, name, holdfast.TTL(ttl))
	heal := sync.OnceFunc(func() { must(t, e.Heal(f)); leader(t, e) })
	defer heal()
	must(t, e.Silence(f))
	cut := time.Now()
	// Wait until a renewal after the TTL: only renewals keep the session alive.
	for last := k.Remaining(); ; time.Sleep(10 * time.Millisecond) {
		left := k.Remaining()
		if k.Context().Err() != nil {
			t.Fatalf("the lock was lost: %v", context.Cause(k.Context()))
		}
		if time.Since(cut) > ttl && left > last {
			break
		}
		last = left
	}
	heal()
	must(t, k.Unlock())
}

// TestLockSurvivesKilledLeader: sessions and the queue continue with the next leader.
func TestLockSurvivesKilledLeader(t *testing.T) {
	e := three(t)
	a, sa := locker(t, addresses(e.Members...))
	b, _ := locker(t, addresses(e.Members...))
	name := newName()
	k := lock(t, a, name)
	got := waiting(t, b, sa, name)
	l := leader(t, e)
	l.Kill()
	leader(t, e)
	if k.Context().Err() != nil {
		t.Fatalf("the lock was lost with the leader: %v", context.Cause(k.Context()))
	}
	must(t, k.Unlock())
	next := granted(t, got)
	requests.LocksRise(t, k, next)
	must(t, l.Restart(t.Context()))
	leader(t, e)
	must(t, next.Unlock())
}

// TestQuorumLossEndsContext: without a quorum no lock is renewed, so the context ends. When
// the quorum is back, the waiters are served.
func TestQuorumLossEndsContext(t *testing.T) {
	e := three(t)
	a, sa := locker(t, addresses(e.Members...))
	b, _ := locker(t, addresses(e.Members...))
	name := newName()
	k := lock(t, a, name, holdfast.TTL(2*time.Second))
	got := waiting(t, b, sa, name)
	l := leader(t, e)
	down := others(e, l)
	for _, m := range down {
		m.Kill()
	}
	ends(t, k)
	for _, m := range down {
		must(t, m.Restart(t.Context()))
	}
	leader(t, e)
	_ = k.Unlock()
	next := overtaken(t, k, got)
	must(t, next.Unlock())
	empty(t, sa, name)
}

// TestPausedLeaderDoesNotExtendValidity: a leader is stopped, and another one takes over. When
// it continues, its answers to heartbeats extend no validity.
func TestPausedLeaderDoesNotExtendValidity(t *testing.T) {
	e := three(t)
	l := leader(t, e)
	a, _ := locker(t, []string{l.Address()})
	b, sb := locker(t, addresses(others(e, l)...))
	name := newName()
	k := lock(t, a, name, holdfast.TTL(2*time.Second))
	got := waiting(t, b, sb, name)
	must(t, l.Pause())
	ends(t, k)
	successor(t, e, l)
	must(t, l.Cont())
	next := overtaken(t, k, got)
	must(t, next.Unlock())
	leader(t, e)
}

// successor waits until another member than the stopped one leads.
func successor(t *testing.T, e *servers.Ensemble, old *servers.ZooKeeper) {
	t.Helper()
	requests.Eventually(t, "another member leads", func() bool {
		return slices.ContainsFunc(others(e, old), func(m *servers.ZooKeeper) bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			mode, err := m.Mode(ctx)
			return err == nil && mode == "leader"
		})
	})
}
