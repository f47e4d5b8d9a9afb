package zkstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// recipe describes a layout: how to parse its nodes, how to name new nodes, and which limits it
// supports.
type recipe struct {
	kind     string
	read     func(string) (node, bool)
	mark     func(limit int) string
	supports func(limit int) bool
	acquire  func(*session, context.Context, driver.Request, *release) (driver.Grant, error)
	// queue and leases are the parts below a name's node; empty if one queue contains both.
	queue, leases string
}

var recipes = map[Layout]recipe{
	ReadWrite: {
		kind: "zookeeper", read: readWriteNode, acquire: (*session).acquire,
		supports: func(int) bool { return true },
		mark: func(limit int) string {
			switch limit {
			case driver.Exclusive:
				return markWrite
			case driver.Unlimited:
				return markRead
			}
			return fmt.Sprintf("%s%d-%s", markPermit, limit, markWrite)
		},
	},
	Mutex: {
		kind: "zookeeper mutex", read: mutexNode, acquire: (*session).acquire,
		supports: func(limit int) bool { return limit == driver.Exclusive },
		mark:     func(int) string { return markMutex },
	},
	Semaphore: {
		kind: "zookeeper semaphore", read: mutexNode, acquire: (*session).acquirePermit,
		supports: func(limit int) bool { return limit <= driver.MaxLimit },
		mark:     func(int) string { return markMutex },
		queue:    "/locks", leases: "/leases",
	},
}

// dirs returns the directories that a request's nodes can be in.
func (r recipe) dirs(dir string) []string {
	if r.queue == "" {
		return []string{dir}
	}
	return []string{dir + r.queue, dir + r.leases}
}

// reader returns the parser for the children of a directory, for a request with a limit.
func (r recipe) reader(dir string, limit int) func(string) (node, bool) {
	if r.leases == "" || !strings.HasSuffix(dir, r.leases) {
		return r.read
	}
	return func(name string) (node, bool) {
		seq, ok := sequence(name, markLease)
		return node{name, seq, limit}, ok
	}
}

// Declared returns the guarantees of a store with these options on servers with ZooKeeper's
// default session timeouts, 2 to 20 ticks, without a connection.
func Declared(options ...Option) (driver.Guarantees, error) {
	c, _, err := configure([]string{"localhost"}, options)
	if err != nil {
		return driver.Guarantees{}, err
	}
	s := &store{cfg: c, recipe: recipes[c.layout]}
	return s.guarantees(20*c.tick - s.slack()), nil
}

// openNote is the note of a store whose nodes have ZooKeeper's open ACL, world:anyone:cdrwa.
const openNote = "WARNING: each client that reaches the servers can end and change the locks: " +
	"give user:password@ and acl=creator"

// guarantees returns the guarantees on servers that allow TTLs up to longest.
func (s *store) guarantees(longest time.Duration) driver.Guarantees {
	notice := (s.clientConfig(longest+s.slack()).HeartbeatTimeout() + s.heartbeat() + time.Second - 1).Truncate(time.Second)
	g := driver.Guarantees{
		Kind:  s.recipe.kind,
		Scope: driver.ScopeNetwork,
		Reach: "every client of the ensemble with the same root and layout",
		Crash: driver.CrashFreesAfterTTL,
		Pause: driver.PauseLoses,
		Order: driver.OrderFIFO,
		Wake:  driver.WakePush,
		// A server that is cut off sends no events. The client leaves it after this time.
		Fallback: notice,
		Tokens: fmt.Sprintf("%d times the czxid of the grant's node, a counter of the ensemble. ", s.cfg.room) +
			"After a restore from an older copy, tokens rise again when a client that has seen the later state begins a session",
		Reserves: s.cfg.room > 1,
		EarlyEnd: []string{"an operator deletes the grant's node", "the ensemble is restored from an older copy"},
		Notice:   notice,
		MinTTL:   s.cfg.tick, MaxTTL: longest, Granularity: s.cfg.tick,
		Break:   driver.BreakNow,
		Visible: driver.VisibleAll,
		Wanted:  driver.WakePush,
		Notes: []string{
			fmt.Sprintf("a crash frees the lock when the session expires: the TTL plus %s, and up to two more ticks", s.slack()),
			fmt.Sprintf("the servers' tickTime must be at most %s (set it with tick=)", s.cfg.tick),
			fmt.Sprintf("a holder is notified of a deletion or a break within %s, if its server follows the leader", 2*watchDelay),
			"a leader that is stopped and silently cut off from its followers may confirm a lost session for syncLimit ticks; only the token protects then",
			fmt.Sprintf("break first notifies the holder, by %s, and deletes the node after %s", revoke, s.cfg.grace),
			"the next waiter of the same process queues with the release, at most 5 ms after the grant",
		},
	}
	if s.cfg.acl[0] == zk.Everyone[0] {
		g.Notes = append([]string{openNote}, g.Notes...)
	}
	switch s.cfg.layout {
	case ReadWrite:
		g.Shared, g.Semaphore, g.Mixed = true, true, true
	case Semaphore:
		g.Semaphore = true
	}
	return g
}
