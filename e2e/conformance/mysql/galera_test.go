package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// galera starts a cluster of two nodes with holdfast's tables, and a balancer before them.
func galera(t *testing.T) (nodes []*servers.MySQL, balancer *servers.Proxy) {
	t.Helper()
	nodes, err := servers.StartGalera(t.Context(), 2)
	servertest.Started(t, err)
	for _, m := range nodes {
		t.Cleanup(func() { _ = m.Close() })
		awaitSynced(t, m)
	}
	s := mariadb.StoreAt(t, nodes[0].Address, mariadb.Home, "recipe=optimistic")
	check(t, s.Init(t.Context()))
	if balancer, err = servers.NewProxy(nodes[0].Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(balancer.Close)
	balancer.Lead(nodes[0].Address, nodes[1].Address)
	return nodes, balancer
}

// awaitSynced waits until a node serves clients.
func awaitSynced(t *testing.T, m *servers.MySQL) {
	t.Helper()
	db := mariadb.PoolAt(t, m.Address, mariadb.Home)
	defer db.Close()
	for {
		var tables int
		err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.tables").Scan(&tables)
		if err == nil {
			return
		}
		// A node that joins may also end its connections.
		if t.Context().Err() != nil || !strings.Contains(err.Error(), "1047") && !errors.Is(err, mysql.ErrInvalidConn) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestGalera: the recipes with sessions refuse a node of a Galera cluster, with the reason.
// The recipe optimistic passes the whole suite behind a balancer that uses two nodes in turn.
func TestGalera(t *testing.T) {
	_, balancer := galera(t)
	for _, r := range mariadb.Sessions {
		_, err := mysqlstore.Open(t.Context(), mariadb.URL(balancer.Address(), mariadb.Home, "recipe="+r))
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "Galera") {
			t.Errorf("%s: %v", r, err)
		}
	}
	open := func(t testing.TB, ns string) driver.Store {
		s, err := mysqlstore.Open(context.Background(), mariadb.URL(balancer.Address(), mariadb.Home, "recipe=optimistic"), mysqlstore.Namespace(ns))
		check(t, err)
		return s
	}
	s := open(t, "").(*mysqlstore.Store)
	defer sqltest.Close(t, s)
	g, err := s.Guarantees(t.Context())
	if err != nil || !strings.Contains(strings.Join(g.Notes, " "), "this server is a node of a Galera cluster") {
		t.Errorf("%v, %v", g.Notes, err)
	}
	drivertest.Run(t, drivertest.Harness{Open: open})
	t.Run("values", func(t *testing.T) {
		drivertest.RunValues(t, func(t testing.TB, namespace string) *mysqlstore.Store { return open(t, namespace).(*mysqlstore.Store) })
	})
}

// lag makes a node lag: it completes no change of another node, until the returned function is called.
func lag(t *testing.T, m *servers.MySQL) (end func()) {
	t.Helper()
	c, err := mariadb.PoolAt(t, m.Address, mariadb.Home).Conn(t.Context())
	check(t, err)
	execute := func(statement string) {
		if _, err := c.ExecContext(context.Background(), statement); err != nil {
			t.Error(err)
		}
	}
	execute("FLUSH TABLES WITH READ LOCK")
	return sync.OnceFunc(func() { execute("UNLOCK TABLES") })
}

// awaitWaiting waits until a statement of a store waits for a node that lags, or until done is closed.
func awaitWaiting(t *testing.T, m *servers.MySQL, done <-chan struct{}) {
	t.Helper()
	db := mariadb.PoolAt(t, m.Address, mariadb.Home)
	for {
		var n int
		err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SET STATEMENT wsrep_sync_wait%' OR state = 'Waiting for backup lock'").Scan(&n)
		check(t, err)
		if n > 0 {
			return
		}
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestLaggingGaleraNodeShowsEveryChange: a node that lags answers a release, a renewal and a read of a value
// only after it has what another node has completed.
func TestLaggingGaleraNodeShowsEveryChange(t *testing.T) {
	nodes, balancer := galera(t)
	balancer.Lead(nodes[0].Address)
	s := mariadb.StoreAt(t, balancer.Address(), mariadb.Home, "recipe=optimistic").(*mysqlstore.Store)
	late := mariadb.StoreAt(t, nodes[1].Address, mariadb.Home, "recipe=optimistic").(*mysqlstore.Store)
	// at executes f at the second node, which lags until f waits for it.
	at := func(t *testing.T, before func(), f func() error) {
		end := lag(t, nodes[1])
		defer end()
		before()
		done := make(chan struct{})
		var err error
		go func() {
			defer close(done)
			err = f()
		}()
		awaitWaiting(t, nodes[1], done)
		end()
		if <-done; err != nil {
			t.Error(err)
		}
	}
	var g driver.Grant
	acquire := func() { g, _ = sqltest.Must(t, s, "lagging", driver.Exclusive, time.Minute) }
	t.Run("renewal", func(t *testing.T) {
		at(t, acquire, func() error { return late.Renew(t.Context(), []driver.Grant{g})[0].Err })
		sqltest.Release(t, s, g)
	})
	t.Run("release", func(t *testing.T) {
		at(t, acquire, func() error { return late.Release(t.Context(), g, 0) })
		again, _ := sqltest.Must(t, s, "lagging", driver.Exclusive, time.Minute)
		sqltest.Release(t, s, again)
	})
	var version string
	put := func() {
		var err error
		if version, err = s.Put(t.Context(), "v", []byte("new"), version); err != nil {
			t.Error(err)
		}
	}
	put()
	t.Run("get", func(t *testing.T) {
		at(t, put, func() error {
			if _, v, err := late.Get(t.Context(), "v"); err != nil || v != version {
				return fmt.Errorf("version %q, %v; want %q", v, err, version)
			}
			return nil
		})
	})
	t.Run("put", func(t *testing.T) {
		at(t, put, func() (err error) {
			version, err = late.Put(t.Context(), "v", []byte("newer"), version)
			return err
		})
	})
}

// TestSkewOfGaleraNodesDoesNotEndAGrant: the clock of a node is ahead. Within the declared skew the node grants
// no lock that a client of the other node may rely on. A larger difference is refused.
func TestSkewOfGaleraNodesDoesNotEndAGrant(t *testing.T) {
	nodes, balancer := galera(t)
	ahead := nodes[1]
	check(t, ahead.Stop())
	servertest.Started(t, ahead.FakeClock(t.Context()))
	awaitSynced(t, ahead)
	check(t, ahead.SetClock(900*time.Millisecond))
	s := mariadb.StoreAt(t, nodes[0].Address, mariadb.Home, "recipe=optimistic")
	other := mariadb.StoreAt(t, ahead.Address, mariadb.Home, "recipe=optimistic")
	const ttl = 2 * time.Second
	require := func(t *testing.T, g driver.Grant) {
		for {
			r, _ := sqltest.Request("skewed", driver.Exclusive, ttl)
			next, err := other.Acquire(t.Context(), r)
			elapsed, _ := g.SentAt.Elapsed()
			if err == nil {
				if elapsed < ttl {
					t.Errorf("granted again after %s of %s", elapsed, ttl)
				}
				sqltest.Release(t, other, next)
				return
			}
			switch s.Classify(err) {
			case driver.CodeBusy:
			case driver.CodeUnavailable, driver.CodeUnknown: // the server may end a connection when its clock is set
				requests.Undone(t, other, r)
			default:
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	g, _ := sqltest.Must(t, s, "skewed", driver.Exclusive, ttl)
	require(t, g)
	g, _ = sqltest.Must(t, s, "skewed", driver.Exclusive, ttl)
	renewal := s.Renew(t.Context(), []driver.Grant{g})[0]
	if renewal.Err != nil {
		t.Fatal(renewal.Err)
	}
	g.SentAt = renewal.SentAt
	require(t, g)

	check(t, ahead.SetClock(5*time.Second))
	both := mariadb.StoreAt(t, balancer.Address(), mariadb.Home, "recipe=optimistic")
	var err error
	for try := 0; try < 20 && s.Classify(err) != driver.CodeRefused; try++ {
		r, _ := sqltest.Request("skewed", driver.Exclusive, ttl)
		var g driver.Grant
		if g, err = both.Acquire(t.Context(), r); err == nil {
			sqltest.Release(t, both, g)
		}
		balancer.Cut() // the next connection leads to the other node
		check(t, balancer.Heal())
	}
	if s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), "clocks") {
		t.Errorf("clocks that differ by 5 s: %v; want refused", err)
	}
}
