//go:build linux || darwin

package lab

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// zookeeper starts ZooKeeper, and makes it the store of the clients' Lockers.
func (s *stage) zookeeper() *servers.ZooKeeper {
	start := func(dir string) (*servers.ZooKeeper, error) {
		return servers.StartZooKeeper(s.ctx, dir, servers.ZooKeeperConfig{})
	}
	z := sharedServer(s, "zookeeper", start, (*servers.ZooKeeper).Kill)
	s.url = func(a Actor) string { return "zk://" + s.link(a, z.Address()) + "/holdfast?tick=100ms" }
	return z
}

// session begins a session that sends no pings.
func (s *stage) session(timeout time.Duration) *servers.ZooKeeperSession {
	k, err := s.zookeeper().Session(s.ctx, timeout)
	s.must(err)
	s.cleanUp(k.Close)
	return k
}

// ephemeral is a lock of an ephemeral node. The holder does not watch its session.
var ephemeral = lock{
	on: func(s *stage) { s.zookeeper() },
	take: func(s *stage, a Actor) bool {
		k := s.session(map[Actor]time.Duration{A: 2 * short, B: long}[a])
		_, ok, err := k.Create("/lock", servers.Ephemeral)
		s.must(err)
		s.step(a, "create -e /lock", map[bool]string{true: "created", false: "it exists"}[ok])
		if ok {
			s.enter(a, nil)
		}
		return ok
	},
	free: func(s *stage, a Actor) { s.note(a, "works on") },
	expire: func(s *stage) bool {
		k := s.session(long)
		s.until("the node is gone", func() bool {
			there, err := k.Exists("/lock")
			s.must(err)
			return !there
		})
		s.note(Server, "session expires")
		return true
	},
}

// waiters is the number of clients that wait in the story herd.
const waiters = 10

// watchers returns the number of watched nodes, and the largest number of clients that
// watch one of them. It reads both from the server, without watches of children, and without those of the list of servers.
func (s *stage) watchers() (nodes, most int) {
	text, err := s.zookeeper().Command(s.ctx, "wchp")
	s.must(err)
	n, counts := 0, false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "/") {
			if counts = !strings.HasPrefix(line, "/zookeeper/"); counts {
				nodes++
			}
			n = -1
		}
		if n++; counts && strings.TrimSpace(line) != "" {
			most = max(most, n)
		}
	}
	return nodes, most
}

// wait starts another client that waits for the story's lock with holdfast, until the play
// ends.
func (s *stage) wait() {
	l, err := holdfast.Open(s.ctx, s.url(Server))
	s.must(err)
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Do(ctx, lockName, func(context.Context) error { return nil })
	}()
	s.cleanUp(func() {
		cancel()
		<-done
		closing, end := context.WithTimeout(context.WithoutCancel(s.ctx), 2*time.Second)
		defer end()
		_ = l.Close(closing)
	})
}

// nearest is the number of waiters that holdfast notifies of a release: those that may be
// next.
const nearest = 3

// herd records whether a release notifies more clients than necessary.
func (s *stage) herd(n int) {
	if n > nearest {
		s.violate(fmt.Sprintf("One release wakes %d clients, %d of them for nothing.", n, n-1))
	}
}

// watchParent plays waiters that all watch the parent node.
func watchParent(s *stage) {
	s.zookeeper()
	holder := s.session(long)
	_, _, err := holder.Create("/queue", 0)
	s.must(err)
	entry, _, err := holder.Create("/queue/n-", servers.Ephemeral|servers.Sequential)
	s.must(err)
	s.step(A, "create /lock/n-", "first: has it")
	s.enter(A, nil)
	var all []*servers.ZooKeeperSession
	for range waiters {
		k := s.session(long)
		_, _, err := k.Create("/queue/n-", servers.Ephemeral|servers.Sequential)
		s.must(err)
		all = append(all, k)
	}
	for _, k := range all {
		s.must(k.WatchChildren("/queue"))
	}
	s.step(B, "B, 9 more: create, watch", "watched by 10")
	s.leave(A)
	s.must(holder.Delete(entry))
	s.step(A, "delete /lock/n-0", "deleted")
	woken := 0
	for _, k := range all {
		s.must(k.Await())
		woken += k.Notified
	}
	s.note(Server, fmt.Sprintf("notifies %d", woken))
	s.note(B, "10 clients read the queue")
	s.herd(woken)
}

// watchParentRight plays the same story with holdfast.
func watchParentRight(s *stage) {
	s.zookeeper()
	s.expect(s.tryLock(A, long), "A gets the lock")
	for i := range waiters {
		s.wait()
		s.until("the waiter is in the queue", func() bool {
			st, err := s.locker(A).Inspect(s.ctx, lockName)
			s.expect(err == nil, fmt.Sprint("the store shows the queue: ", err))
			return len(st.Waiters) == i+1
		})
	}
	n := 0
	s.until("every waiter watches", func() bool {
		nodes, most := s.watchers()
		n = most - 1 // without A, which also watches its own node to notice its deletion
		// Each of the nearest waiters watches all nodes before it and its own. Each
		// other waiter watches the last node but one before it. So no waiter
		// watches the last two nodes.
		return nodes == waiters-1 && n == nearest
	})
	s.step(B, "B, 9 more: Lock(\"lock\")", fmt.Sprintf("watched by %d", n))
	s.unlock(A)
	s.note(Server, fmt.Sprintf("notifies %d", n))
	s.herd(n)
	s.survive("Three waiters watch its entry: one starts, and the others count.")
}
