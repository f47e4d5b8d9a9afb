package mysqlstore

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/sqlkit"
)

// probed is what was found out about the server.
type probed struct {
	mu    sync.Mutex
	known bool
	facts
}

type facts struct {
	maria      bool
	version    string
	sysdateNow bool
	notes      []string
}

// probe asks the server once what it is, and refuses it where the recipe would not
// hold there.
func (s *Store) probe(ctx context.Context) error {
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if known {
		return nil
	}
	l, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	a, err := l.Run(ctx, "SELECT VERSION(), @@autocommit, @@global.read_only, @@innodb_read_only, SYSDATE(6), SLEEP(0.002), SYSDATE(6)")
	if err != nil {
		return unreached(err)
	}
	r := a.Last()
	f := facts{version: r.Text(0), maria: strings.Contains(strings.ToLower(r.Text(0)), "mariadb"), sysdateNow: r.Text(4) == r.Text(6)}
	refuse := func(format string, args ...any) error {
		return driver.Errorf(driver.Refused, "mysqlstore: recipe "+string(s.cfg.Recipe)+": "+format, args...)
	}
	switch {
	case !r.True(1):
		return refuse("the connections have autocommit off, so that nothing would be committed: leave it on")
	case r.True(2) || r.True(3):
		return refuse("the server is read-only, a replica perhaps: give the address of the one that is written to")
	}
	if a, err = l.Run(ctx, "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'"); err != nil {
		return unreached(err)
	}
	galera := strings.EqualFold(a.Last().Text(1), "ON")
	if galera && s.cfg.Recipe != Optimistic {
		return refuse("the server is a node of a Galera cluster, where locks of sessions are those of one node: use recipe=optimistic")
	}
	if galera {
		f.notes = append(f.notes, "this server is a node of a Galera cluster: a change is decided when it is certified")
	}
	if !f.maria {
		f.notes = append(f.notes, "MySQL: written for and not tested; the tests run on MariaDB")
	}
	if f.sysdateNow && s.cfg.Recipe != Optimistic {
		f.notes = append(f.notes, "the server runs with --sysdate-is-now: the time of a token is read in a statement of its own")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts, s.known = f, true
	return nil
}

func (s *Store) sysdateIsNow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sysdateNow
}

func (s *Store) isMaria() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maria
}

// settled probes until it is known or ctx ends: a server that is being started
// again is no reason to fail.
func (s *Store) settled(ctx context.Context) (facts, error) {
	if err := sqlkit.Settle(ctx, s.probe); err != nil {
		return facts{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts, nil
}

// Guarantees tells what this store promises. It asks the server once.
func (s *Store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	f, err := s.settled(ctx)
	if err != nil {
		return driver.Guarantees{}, err
	}
	g := Declared(s.cfg.Recipe)
	g.Notes = append(g.Notes, f.notes...)
	return g, nil
}

// Declared is what a recipe promises where nothing is special about the server. It
// asks nobody.
func Declared(r Recipe) driver.Guarantees {
	g := driver.Guarantees{
		Kind: "mysql " + string(r), Scope: driver.ScopeNetwork, TryFirst: true, MaxTTL: 24 * time.Hour,
		Pause: driver.PauseLoses, Break: driver.BreakNow,
	}
	if r != Optimistic {
		g.Crash, g.Order, g.Wake = driver.CrashFreesAtOnce, driver.OrderFIFO, driver.WakePush
		g.Tokens = "the server's clock in microseconds, read when the lock is granted: they rise unless the clock is set back; with tokens=durable a committed row, which rises then too"
		g.EarlyEnd = []string{"an operator's break", "KILL", "the end of the connection or of the server", "a failover"}
		g.Notice = time.Second
		g.MinTTL, g.Granularity, g.Visible = time.Second, time.Second, driver.VisibleAll
		g.Notes = []string{
			"a lock costs one connection, and so does a place in the queue",
			"a holder that is silent or stopped is freed by the server's wait_timeout, which is set to the TTL; a crash is seen at once where the client's machine is up",
			"not through proxies that share or split connections, and not on Galera",
			"on a user's pool the end of a connection is noticed by a ping every second",
		}
	}
	switch r {
	case Pessimistic:
		g.Shared, g.Semaphore, g.Slots, g.Order = true, true, true, driver.OrderNone
		g.Notes = append(g.Notes,
			"readers, and semaphores of each size, wait for one another on one name; a writer excludes them all and is not starved by them",
			"the server serves waiters of locks in their order (MariaDB; MySQL 8 by its own reckoning); semaphores are waited for by polling, at most 100ms apart",
			"a held lock is an open transaction: it holds back no purge of old rows, since it reads none, and it is in the server's list of transactions",
		)
	case Optimistic:
		g.Crash, g.Order, g.Wake = driver.CrashFreesAfterTTL, driver.OrderNone, driver.WakePoll
		g.Shared, g.Semaphore, g.Mixed, g.Slots = true, true, true, true
		g.Tokens = "the name's row: the last one plus one, or the database's clock in microseconds if that is larger; they rise through restarts, a clock set back and the removal of idle rows"
		g.EarlyEnd, g.Notice = []string{"an operator's break", "rows deleted or changed by hand", "a failover to a replica that lags"}, 2*time.Second
		g.MinTTL, g.Granularity, g.Linger, g.Visible = time.Millisecond, time.Microsecond, true, driver.VisibleHolders
		g.Notes = []string{
			"works through poolers and proxies, and on Galera (not tested); no connection is kept for a lock",
			"a row per name in use; a row that is idle for a minute is removed",
		}
	}
	return g
}
