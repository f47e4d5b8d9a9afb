//go:build linux || darwin

package story

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
)

// zookeeper starts ZooKeeper, and makes it the store of the clients' Lockers.
func (s *Stage) zookeeper() *servers.ZooKeeper {
	z := server(s, "zookeeper", func(ctx context.Context, dir string) (*servers.ZooKeeper, func(), error) {
		z, err := servers.StartZooKeeper(ctx, dir, servers.ZooKeeperConfig{})
		if err != nil {
			return nil, nil, err
		}
		return z, z.Kill, nil
	})
	s.url = func(a Actor) string { return "zk://" + s.Link(a, z.Address()) + "/holdfast?tick=100ms" }
	return z
}

// session begins a session that sends no pings.
func (s *Stage) session(timeout time.Duration) *servers.ZooKeeperSession {
	k, err := s.zookeeper().Session(s.ctx, timeout)
	s.Must(err)
	s.Defer(k.Close)
	return k
}

// ephemeral is a lock of an ephemeral node whose session nothing watches.
var ephemeral = lock{
	on: func(s *Stage) { s.zookeeper() },
	take: func(s *Stage, a Actor) bool {
		k := s.session(map[Actor]time.Duration{A: 2 * short, B: long}[a])
		_, ok, err := k.Create("/lock", servers.Ephemeral)
		s.Must(err)
		s.Step(a, "create -e /lock", map[bool]string{true: "created", false: "it exists"}[ok])
		if ok {
			s.Enter(a, nil)
		}
		return ok
	},
	free: func(s *Stage, a Actor) { s.Note(a, "works on") },
	expire: func(s *Stage) bool {
		k := s.session(long)
		s.Until("the node is gone", func() bool {
			there, err := k.Exists("/lock")
			s.Must(err)
			return !there
		})
		s.Note(Server, "session expires")
		return true
	},
}

// waiters is how many clients wait in the story of the herd.
const waiters = 10

// watchers returns how many nodes are watched, and the largest number of clients that watch
// one of them, by the server's own count. It does not count watches of children.
func (s *Stage) watchers() (nodes, most int) {
	text, err := s.zookeeper().Command(s.ctx, "wchp")
	s.Must(err)
	n := 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "/") {
			nodes++
			n = -1
		}
		if n++; strings.TrimSpace(line) != "" {
			most = max(most, n)
		}
	}
	return nodes, most
}

// wait lets a client of its own wait for the story's lock with holdfast, until the play ends.
func (s *Stage) wait() {
	l, err := holdfast.Open(s.ctx, s.url(Server))
	s.Must(err)
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Do(ctx, lockName, func(context.Context) error { return nil })
	}()
	s.Defer(func() {
		cancel()
		<-done
		closing, end := context.WithTimeout(context.WithoutCancel(s.ctx), 2*time.Second)
		defer end()
		_ = l.Close(closing)
	})
}

// herd judges how many clients a release wakes.
func (s *Stage) herd(n int) {
	if n > 1 {
		s.Violate(fmt.Sprintf("One release wakes %d clients, %d of them for nothing.", n, n-1))
	}
}

var zookeeperStories = []Story{
	{
		Name: "herd", Title: "waiters that all watch the parent node", Server: "ZooKeeper",
		Code:   "create /lock/n-; while not first: watch the children of /lock",
		Tale:   "Ten clients wait for a lock. Each has a node of its own in a queue, and each watches the whole queue. When the holder leaves, the server notifies all ten, all ten read the whole queue again, and nine find that it is not their turn. With a thousand clients, a release is a thousand messages and a thousand readings.",
		Lesson: "Watch the entry in front of your own: a release wakes one client.",
		Wrong: func(s *Stage) {
			s.zookeeper()
			holder := s.session(long)
			_, _, err := holder.Create("/queue", 0)
			s.Must(err)
			entry, _, err := holder.Create("/queue/n-", servers.Ephemeral|servers.Sequential)
			s.Must(err)
			s.Step(A, "create /lock/n-", "first: has it")
			s.Enter(A, nil)
			var all []*servers.ZooKeeperSession
			for range waiters {
				k := s.session(long)
				_, _, err := k.Create("/queue/n-", servers.Ephemeral|servers.Sequential)
				s.Must(err)
				all = append(all, k)
			}
			for _, k := range all {
				s.Must(k.WatchChildren("/queue"))
			}
			s.Step(B, "B, 9 more: create, watch", "watched by 10")
			s.Leave(A)
			s.Must(holder.Delete(entry))
			s.Step(A, "delete /lock/n-0", "deleted")
			woken := 0
			for _, k := range all {
				s.Must(k.Await())
				woken += k.Notified
			}
			s.Note(Server, fmt.Sprintf("notifies %d", woken))
			s.Note(B, "10 clients read the queue")
			s.herd(woken)
		},
		Right: func(s *Stage) {
			s.zookeeper()
			s.Expect(s.TryLock(A, long), "A gets the lock")
			for i := range waiters {
				s.wait()
				s.Until("the waiter is in the queue", func() bool {
					st, err := s.locker(A).Inspect(s.ctx, lockName)
					s.Expect(err == nil, fmt.Sprint("the store shows the queue: ", err))
					return len(st.Waiters) == i+1
				})
			}
			n := 0
			s.Until("each waiter watches one node", func() bool {
				nodes, most := s.watchers()
				n = most - 1 // A watches its own node, too, for the case that it is deleted
				return nodes == waiters && n > 0
			})
			s.Step(B, "B, 9 more: Lock(\"lock\")", fmt.Sprintf("watched by %d", n))
			s.Unlock(A)
			s.Note(Server, fmt.Sprintf("notifies %d", n))
			s.herd(n)
			s.Survive("Each watches the entry in front of it: one release wakes one client.")
		},
	},
	{
		Name: "zookeeper-session", Title: "a session that expires unnoticed", Mistake: "ignores-loss", Server: "ZooKeeper",
		Code:   "create -e /lock; work",
		Tale:   "The lock is a node that exists as long as A's session. A stalls, the server hears nothing of A, ends the session and deletes the node. B gets the lock. A continues with its work: the news about its session waits on a connection that A does not read.",
		Lesson: "A session can end unnoticed: stop when you cannot confirm it.",
		Wrong:  asleep(ephemeral, "its process stands still"),
		Right:  asleep(holdfastOn(ephemeral.on, short), "its process stands still"),
	},
}
