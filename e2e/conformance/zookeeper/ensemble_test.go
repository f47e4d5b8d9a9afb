package zookeeper

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
)

var (
	togetherOnce   sync.Once
	together       *servers.Ensemble
	togetherFailed error
)

// three is the ensemble of this package's tests. Its followers may be silent for
// long before the leader, or they, give up: a cut link goes unnoticed.
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
	installed(t, togetherFailed)
	return together
}

func leader(t *testing.T, e *servers.Ensemble) *servers.ZooKeeper {
	t.Helper()
	m, err := e.Leader(t.Context())
	must(t, err)
	return m
}

func addresses(e *servers.Ensemble) []string { return strings.Split(e.Addresses(), ",") }

// TestCutOffFollower is the case that trust is argued for: the link between a
// follower and its leader is cut, and the follower goes on answering its client.
func TestCutOffFollower(t *testing.T) {
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
	// This is what makes it dangerous: it still serves what is long gone.
	later, _, err := raw.Children("/faults/" + name)
	if err != nil || len(later) < len(children) {
		t.Errorf("the follower noticed: %v, %v; the test shows nothing", later, err)
	}
	must(t, next.Unlock())
}

// TestCutOffFollowerIsLeft: a client that knows other servers leaves the one that
// is cut off, and keeps its lock.
func TestCutOffFollowerIsLeft(t *testing.T) {
	e := three(t)
	l := leader(t, e)
	f, err := e.Follower(t.Context())
	must(t, err)
	// First the follower alone, so that the client is there.
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
	// Until it has been renewed beyond the TTL: the session lives by its renewal only.
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

// TestLeaderKilled: sessions go on with the next leader, and so does the queue.
func TestLeaderKilled(t *testing.T) {
	e := three(t)
	a, sa := locker(t, addresses(e))
	b, _ := locker(t, addresses(e))
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
	next := <-got
	if next == nil {
		t.FailNow()
	}
	if next.Token() <= k.Token() {
		t.Errorf("token %d after %d", next.Token(), k.Token())
	}
	must(t, l.Restart(t.Context()))
	leader(t, e)
	must(t, next.Unlock())
}

// TestQuorumLost: nobody renews while there is no quorum, so the context ends;
// when it is back the others get their turn.
func TestQuorumLost(t *testing.T) {
	e := three(t)
	a, sa := locker(t, addresses(e))
	b, _ := locker(t, addresses(e))
	name := newName()
	k := lock(t, a, name, holdfast.TTL(2*time.Second))
	got := waiting(t, b, sa, name)
	l := leader(t, e)
	var down []*servers.ZooKeeper
	for _, m := range e.Members {
		if m != l {
			m.Kill()
			down = append(down, m)
		}
	}
	select {
	case <-k.Context().Done():
	case <-time.After(patience):
		t.Fatal("the context goes on without a quorum")
	}
	for _, m := range down {
		must(t, m.Restart(t.Context()))
	}
	leader(t, e)
	_ = k.Unlock()
	next := overtaken(t, k, got)
	must(t, next.Unlock())
	empty(t, sa, name)
}

// TestLeaderPaused: a leader that was stopped while another took over answers,
// when it goes on, nobody's heartbeat for long enough to prolong a trust.
func TestLeaderPaused(t *testing.T) {
	e := three(t)
	l := leader(t, e)
	var others []string
	for _, m := range e.Members {
		if m != l {
			others = append(others, m.Address())
		}
	}
	a, _ := locker(t, []string{l.Address()})
	b, sb := locker(t, others)
	name := newName()
	k := lock(t, a, name, holdfast.TTL(2*time.Second))
	got := waiting(t, b, sb, name)
	must(t, l.Pause())
	ended := make(chan struct{})
	stop := context.AfterFunc(k.Context(), func() { close(ended) })
	defer stop()
	<-ended
	successor(t, e, l)
	must(t, l.Cont())
	next := overtaken(t, k, got)
	must(t, next.Unlock())
	leader(t, e)
}

// successor waits until another than the one that is stopped leads.
func successor(t *testing.T, e *servers.Ensemble, old *servers.ZooKeeper) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for _, m := range e.Members {
			if m == old {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			mode, err := m.Mode(ctx)
			cancel()
			if err == nil && mode == "leader" {
				return
			}
		}
	}
	t.Fatal("nobody else leads")
}
