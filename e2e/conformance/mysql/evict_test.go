package mysql

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// row waits until the holder of a grant is recorded, and returns the named lock of the
// grant and the number of its session.
func row(t *testing.T, schema string, g driver.Grant) (held string, conn int64) {
	t.Helper()
	db := mariadb.Pool(t, schema)
	var err error
	if !sqltest.Soon(func() bool {
		err = db.QueryRow("SELECT held, conn FROM holdfast_session WHERE token = ?", g.Token).Scan(&held, &conn)
		return err == nil
	}) {
		t.Fatalf("no holder of %q is recorded: %v", g.Name, err)
	}
	return held, conn
}

// TestEvictTooLateEndsNothing: an operator breaks a grant that its holder has just
// released. The session keeps its next grant.
func TestEvictTooLateEndsNothing(t *testing.T) {
	mariadb.Each(t, mariadb.Sessions, func(t *testing.T, params, schema string) {
		s := mariadb.Store(t, schema, params)
		other := mariadb.Store(t, schema, params)
		first, _ := sqltest.Must(t, s, "one", driver.Exclusive, time.Minute)
		held, conn := row(t, schema, first)
		sqltest.Release(t, s, first)
		next, a := sqltest.Must(t, s, "two", driver.Exclusive, time.Minute)
		if _, again := row(t, schema, next); again != conn {
			t.Errorf("session %d after %d: it was not used again", again, conn)
		}
		if err := other.Break(t.Context(), "one", first.Token); other.Classify(err) != driver.CodeNotHeld {
			t.Errorf("breaking what was released: %v", err)
		}
		// This is the last statement of a Break that has seen the first grant before its
		// release.
		if _, err := mariadb.Pool(t, schema).Exec(fmt.Sprintf("KILL IS_USED_LOCK('%s')", held)); err == nil || !strings.Contains(err.Error(), "1094") {
			t.Errorf("KILL for a grant that was released: %v", err)
		}
		if r := s.Renew(t.Context(), []driver.Grant{next}); r[0].Err != nil {
			t.Error(r[0].Err)
		}
		a.Keeps(t)
		sqltest.Release(t, s, next)
	})
}

// TestBreakFindsUnrecordedRowLock: a session has locked the row of a name and has not recorded its grant, such as that of
// a process that was stopped just after the grant. A break does not report that the grant is not held.
func TestBreakFindsUnrecordedRowLock(t *testing.T) {
	schema := mariadb.Create(t)
	s := mariadb.Store(t, schema, "recipe=pessimistic")
	g, _ := sqltest.Must(t, s, "stopped", driver.Exclusive, time.Minute)
	sqltest.Release(t, s, g)
	tx, err := mariadb.Pool(t, schema).Begin()
	check(t, err)
	defer tx.Rollback()
	for _, mode := range []string{"LOCK IN SHARE MODE", "FOR UPDATE"} {
		if _, err := tx.Exec("SELECT * FROM holdfast_name WHERE name = CONCAT(CHAR(0), 'stopped') " + mode); err != nil {
			t.Fatal(err)
		}
		if err := s.Break(t.Context(), "stopped", g.Token+1); s.Classify(err) != driver.CodeUnavailable {
			t.Errorf("Break of a lock %s: %v; want unavailable", mode, err)
		}
	}
	check(t, tx.Rollback())
	for _, name := range []string{"stopped", "never locked"} {
		if err := s.Break(t.Context(), name, g.Token+1); s.Classify(err) != driver.CodeNotHeld {
			t.Errorf("Break of %q, which is free: %v; want not held", name, err)
		}
	}
	g, _ = sqltest.Must(t, s, "stopped", driver.Exclusive, time.Minute) // the break has left no lock
	sqltest.Release(t, s, g)
}

// TestTakeoverSparesConnectionsOfOthers: another server takes over, and another program has
// connections there. They have the numbers of this store's sessions at the old server, and
// both servers were started at the same time. The store does not end these connections, and a KILL that
// arrives late does not either.
func TestTakeoverSparesConnectionsOfOthers(t *testing.T) {
	t.Parallel()
	for _, recipe := range mariadb.Sessions {
		t.Run(recipe, func(t *testing.T) {
			t.Parallel()
			old, next, r := startTwo(t)
			s, kills := delayed(t, r.Address(), mariadb.Home, recipe)
			g, _ := sqltest.Must(t, s, "taken over", driver.Exclusive, time.Minute)
			cancelWait(t, s, kills, "taken over", func() {})
			unknown, _ := sqltest.Must(t, s, "undone", driver.Exclusive, time.Minute)
			// Another program has a connection of each number that the store may have.
			strangers := open(t, next, 40)
			old.Kill()
			r.Lead(next.Address)
			if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.CodeNotHeld && s.Classify(err) != driver.CodeUnknown {
				t.Errorf("Release: %v", err)
			}
			requests.Undone(t, s, driver.Request{ID: unknown.ID, Name: unknown.Name})
			for _, alive := range strangers {
				if err := alive(); err != nil {
					t.Fatalf("another program's connection was ended: %v", err)
				}
			}
			kills.arrive(t, mariadb.PoolAt(t, next.Address, mariadb.Home))
			for _, alive := range strangers {
				if err := alive(); err != nil {
					t.Fatalf("a late KILL has ended another program's connection or statement: %v", err)
				}
			}
			again, _ := sqltest.Must(t, s, "taken over", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, again)
		})
	}
}

// startTwo starts two servers at the same time, with holdfast's tables, and a proxy that leads
// to the first.
func startTwo(t *testing.T) (first, second *servers.MySQL, r *servers.Proxy) {
	t.Helper()
	type started struct {
		m   *servers.MySQL
		err error
	}
	both := make(chan started, 2)
	for range 2 {
		go func() {
			m, err := servers.StartMySQL(t.Context(), mariadb.Fast)
			both <- started{m, err}
		}()
	}
	var all []*servers.MySQL
	for range 2 {
		s := <-both
		if s.err != nil {
			t.Fatal(s.err)
		}
		t.Cleanup(func() { _ = s.m.Close() })
		all = append(all, s.m)
	}
	for _, m := range all {
		s := mariadb.StoreAt(t, m.Address, mariadb.Home, "")
		check(t, s.Init(t.Context()))
		sqltest.Close(t, s)
	}
	r, err := servers.NewProxy(all[0].Address)
	check(t, err)
	t.Cleanup(r.Close)
	return all[0], all[1], r
}
