package mysqlstore

import (
	"context"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/sqlkit"
)

// facts are what was found out about the server.
type facts struct {
	maria      bool
	version    string
	sysdateNow bool
	notes      []string
}

// probe asks the server what it is, and refuses it where the recipe would not hold
// there.
func (s *Store) probe(ctx context.Context) (f facts, err error) {
	l, err := s.dial(ctx)
	if err != nil {
		return f, err
	}
	defer l.Close()
	a, err := l.Run(ctx, "SELECT VERSION(), @@autocommit, @@global.read_only, @@innodb_read_only, SYSDATE(6), SLEEP(0.002), SYSDATE(6)")
	if err != nil {
		return f, unreached(err)
	}
	r := a.Last()
	f = facts{version: r.Text(0), maria: strings.Contains(strings.ToLower(r.Text(0)), "mariadb"), sysdateNow: r.Text(4) == r.Text(6)}
	refuse := func(format string, args ...any) error {
		return driver.Errorf(driver.Refused, "mysqlstore: recipe "+string(s.cfg.Recipe)+": "+format, args...)
	}
	switch {
	case !r.True(1):
		return f, refuse("the connections have autocommit off, so that nothing would be committed: leave it on")
	case r.True(2) || r.True(3):
		return f, refuse("the server is read-only, a replica perhaps: give the address of the one that is written to")
	}
	if a, err = l.Run(ctx, "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'"); err != nil {
		return f, unreached(err)
	}
	galera := strings.EqualFold(a.Last().Text(1), "ON")
	if galera && s.cfg.Recipe != Optimistic {
		return f, refuse("the server is a node of a Galera cluster, where locks of sessions are those of one node: use recipe=optimistic")
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
	return f, nil
}

// facts are what is known of the server by now.
func (s *Store) facts() facts {
	f, _ := s.server.Facts()
	return f
}

// Guarantees tells what this store promises. It asks the server once.
func (s *Store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	f, err := s.server.Settle(ctx)
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
	kind := "mysql " + string(r)
	if r == Optimistic {
		g := sqlkit.OptimisticGuarantees(kind, false)
		g.Notes = []string{
			"works through poolers and proxies, and on Galera (tested on a cluster of one node); no connection is kept for a lock",
			"a row per name in use; a row that is idle for a minute is removed",
		}
		return g
	}
	g := sqlkit.SessionGuarantees(kind, unit, unit, "KILL")
	g.Notes = []string{
		"a lock costs one connection, and so does a place in the queue",
		"a holder that is silent or stopped is freed by the server's wait_timeout, which is set to the TTL; a crash is seen at once where the client's machine is up",
		"not through proxies that share or split connections, and not on Galera",
		"on a user's pool the end of a connection is noticed by a ping every second",
	}
	if r == Pessimistic {
		g.Shared, g.Semaphore, g.Slots, g.Order = true, true, true, driver.OrderNone
		g.Notes = append(g.Notes,
			"readers, and semaphores of each size, wait for one another on one name; a writer excludes them all and is not starved by them",
			"the server serves waiters of locks in their order (MariaDB; MySQL 8 by its own reckoning); semaphores are waited for by polling, at most 100ms apart",
			"a held lock is an open transaction: it holds back no purge of old rows, since it reads none, and it is in the server's list of transactions",
		)
	}
	return g
}
