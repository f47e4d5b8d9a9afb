package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// TestDeadlockWithTableLocksLeavesOneHolder: while an administrator locks the tables one
// after the other, a lock that is passed from waiter to waiter has one holder at a time.
func TestDeadlockWithTableLocksLeavesOneHolder(t *testing.T) {
	for _, lock := range []string{
		"LOCK TABLES holdfast_name READ, holdfast_session WRITE",
		"FLUSH TABLES holdfast_name, holdfast_session WITH READ LOCK",
		"RENAME TABLE holdfast_name TO a, holdfast_session TO b, a TO holdfast_name, b TO holdfast_session",
	} {
		t.Run(lock[:6], func(t *testing.T) {
			mariadb.Each(t, mariadb.Sessions, func(t *testing.T, params, schema string) {
				s := mariadb.Store(t, schema, params)
				first, _ := sqltest.Must(t, s, "passed", driver.Exclusive, time.Minute)
				// Each waiter keeps the lock for a while, and the test counts the holders.
				const waiters = 4
				var all sync.WaitGroup
				var mu sync.Mutex
				holding, most, granted := 0, 0, 0
				for range waiters {
					w := mariadb.Store(t, schema, params)
					waiter := sqltest.Wait(t, t.Context(), w, "passed", driver.Exclusive)
					all.Go(func() {
						g := waiter.Granted()
						if t.Failed() {
							return
						}
						mu.Lock()
						holding++
						granted++
						most = max(most, holding)
						mu.Unlock()
						for range 3 { // pings prove the lock, or end it
							if r := w.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil {
								break
							}
							time.Sleep(30 * time.Millisecond)
						}
						mu.Lock()
						holding--
						mu.Unlock()
						must.Report(t, w.Release(t.Context(), g, 0))
					})
				}
				c, err := mariadb.Pool(t, schema).Conn(t.Context())
				check(t, err)
				defer c.Close()
				locked := make(chan error, 1)
				go func() {
					_, err := c.ExecContext(context.WithoutCancel(t.Context()), lock)
					if err == nil {
						_, err = c.ExecContext(context.WithoutCancel(t.Context()), "UNLOCK TABLES")
					}
					locked <- err
				}()
				db := mariadb.Pool(t, schema)
				if params == "recipe=pessimistic" && !sqltest.Soon(func() bool {
					var n int
					err := db.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'").Scan(&n)
					return err == nil && n > 0
				}) {
					t.Fatal("the administrator does not wait for the locks")
				}
				sqltest.Release(t, s, first)
				all.Wait()
				// The server may choose the administrator as the victim instead.
				if err := <-locked; err != nil && !deadlocked(err) {
					t.Error(err)
				}
				if most != 1 || granted != waiters {
					t.Errorf("%d held it at once, and %d of %d were granted", most, granted, waiters)
				}
			})
		})
	}
}

func deadlocked(err error) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && my.Number == 1213
}

// TestPingNoticesEndOfTransaction: a session whose transaction has ended has no lock, although its
// connection is open. A renewal and a release report that, and the store notifies the holder.
func TestPingNoticesEndOfTransaction(t *testing.T) {
	schema := mariadb.Create(t)
	for _, limit := range []int{driver.Exclusive, driver.Unlimited, 3} {
		for _, end := range []string{"ROLLBACK", "COMMIT"} {
			s, inject := injected(t, schema, mysqlstore.Pessimistic)
			g, a := sqltest.Must(t, s, "ended", limit, time.Minute)
			inject("ROLLBACK TO SAVEPOINT", end)
			if r := s.Renew(t.Context(), []driver.Grant{g}); s.Classify(r[0].Err) != driver.CodeNotHeld {
				t.Errorf("limit %d: a renewal after a %s answers %v", limit, end, r[0].Err)
			}
			a.AwaitLoss(t)
			g, _ = sqltest.Must(t, s, "ended", limit, time.Minute)
			inject("ROLLBACK TO SAVEPOINT", end)
			if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.CodeNotHeld {
				t.Errorf("limit %d: a release after a %s answers %v", limit, end, err)
			}
		}
	}
}

// TestPingNoticesLossOfNamedLock: a session has lost its lock of GET_LOCK. A renewal
// reports that, and the store notifies the holder.
func TestPingNoticesLossOfNamedLock(t *testing.T) {
	s, inject := injected(t, mariadb.Create(t), mysqlstore.Named)
	g, a := sqltest.Must(t, s, "ended", driver.Exclusive, time.Minute)
	inject("SELECT IS_USED_LOCK", "DO RELEASE_ALL_LOCKS()")
	if r := s.Renew(t.Context(), []driver.Grant{g}); s.Classify(r[0].Err) != driver.CodeNotHeld {
		t.Errorf("a renewal without the lock answers %v", r[0].Err)
	}
	a.AwaitLoss(t)
}

// injected returns a store and a function. After a call of inject, one session runs
// statement once, just before the first of the store's statements that begins with before.
func injected(t *testing.T, schema string, recipe mysqlstore.Recipe) (s sqltest.Store, inject func(before, statement string)) {
	t.Helper()
	cfg, err := mysql.ParseDSN(mariadb.DSN(mariadb.Server(t).Address, schema))
	check(t, err)
	real, err := mysql.NewConnector(cfg)
	check(t, err)
	i := &injector{Connector: real}
	db := sql.OpenDB(i)
	t.Cleanup(func() { _ = db.Close() })
	if s, err = mysqlstore.New(t.Context(), db, mysqlstore.With(recipe)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sqltest.Close(t, s) })
	return s, func(before, statement string) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.before, i.statement = before, statement
	}
}

type injector struct {
	sqldriver.Connector
	mu                sync.Mutex
	before, statement string
}

func (i *injector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	c, err := i.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return injectedConn{c, i}, nil
}

type injectedConn struct {
	sqldriver.Conn
	i *injector
}

func (c injectedConn) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	c.i.mu.Lock()
	statement := ""
	if c.i.before != "" && strings.HasPrefix(query, c.i.before) {
		statement, c.i.before = c.i.statement, ""
	}
	c.i.mu.Unlock()
	if statement != "" {
		if _, err := c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, statement, nil); err != nil && !deadlocked(err) {
			return nil, err
		}
	}
	return c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, query, args)
}
