package mysql

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

func TestGetLockOfOtherProgramsExcludes(t *testing.T) {
	shared := "Shared name"
	if !isMariaDB(t) {
		shared = "shared name" // MySQL ignores case, and the store refuses upper case
	}
	sqltest.OtherLocksExclude(t, mariadb, "recipe=named&names=exact", "another client", map[string]sqltest.OtherLock{
		shared: {Take: "SELECT GET_LOCK('" + shared + "', 0)", Free: "SELECT RELEASE_LOCK('" + shared + "')"},
	}, strings.Repeat("x", 193))
}

// TestWaiterIsSeenOnceItWaits: Inspect shows a waiter. It does not show a statement with the same form that
// has not reached the queue of the lock, however long it runs.
func TestWaiterIsSeenOnceItWaits(t *testing.T) {
	schema := mariadb.Create(t)
	s := mariadb.Store(t, schema, "recipe=named")
	g, _ := sqltest.Must(t, s, "seen", driver.Exclusive, time.Minute)
	w := sqltest.Wait(t, t.Context(), s, "seen", driver.Exclusive)
	db := mariadb.Pool(t, schema)
	var label string
	check(t, db.QueryRowContext(t.Context(), "SELECT SUBSTRING_INDEX(info, '*/', 1) FROM information_schema.processlist WHERE info LIKE 'SELECT /*hf1.%'").Scan(&label))
	waiters := func() int {
		t.Helper()
		st, err := s.Inspect(t.Context(), "seen")
		check(t, err)
		return len(st.Waiters)
	}
	if n := waiters(); n != 1 {
		t.Errorf("%d waiters are shown, want 1", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = db.ExecContext(ctx, label+"*/ SLEEP(600)")
	}()
	defer func() { cancel(); <-ended }()
	for age := time.Duration(0); age < 2*time.Second; time.Sleep(20 * time.Millisecond) { // MySQL counts seconds
		err := db.QueryRowContext(t.Context(), "SELECT COALESCE(MAX(time), 0) * 1000000000 FROM information_schema.processlist WHERE state = 'User sleep' AND info LIKE 'SELECT /*hf1.%'").Scan(&age)
		check(t, err)
	}
	if n := waiters(); n != 1 {
		t.Errorf("%d waiters are shown beside a statement that does not wait, want 1", n)
	}
	sqltest.Release(t, s, g)
	sqltest.Release(t, s, w.Granted())
}

// TestNameWithTildeIsOneLock: a name has a tilde, from the caller or from the store.
// Sessions with different character sets use the same lock, although the byte is another
// letter in some sets.
func TestNameWithTildeIsOneLock(t *testing.T) {
	schema := mariadb.Create(t)
	c, err := mariadb.Pool(t, schema).Conn(t.Context())
	check(t, err)
	defer c.Close()
	foreign := "&charset=swe7"
	if !isMariaDB(t) {
		foreign = "&charset=sjis" // as in TestOddNamesMatchOtherPrograms
	}
	for params, name := range map[string]string{"recipe=named": "a b", "recipe=named&names=exact": "a~b"} {
		s := mariadb.Store(t, schema, params)
		swedish := mariadb.Store(t, schema, params+foreign)
		g, _ := sqltest.Must(t, swedish, name, driver.Exclusive, time.Minute)
		sqltest.Busy(t, s, name, driver.Exclusive)
		sqltest.Release(t, swedish, g)
		g, _ = sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
		sqltest.Busy(t, swedish, name, driver.Exclusive)
		sqltest.Shown(t, swedish, g)
		sqltest.Release(t, s, g)
	}
	// Another program takes a lock with that name.
	var got int
	if err := c.QueryRowContext(t.Context(), "SELECT GET_LOCK('a~b', 0)").Scan(&got); err != nil || got != 1 {
		t.Fatalf("GET_LOCK returned %d, %v", got, err)
	}
	s := mariadb.Store(t, schema, "recipe=named&names=exact"+foreign)
	sqltest.Busy(t, s, "a~b", driver.Exclusive)
}

// TestUnsafeServersAreRefused requires that Open refuses connections without autocommit, a read-only
// server, and bad URLs, with the reason.
func TestUnsafeServersAreRefused(t *testing.T) {
	address, schema := mariadb.Server(t).Address, mariadb.Create(t)
	if _, err := mysqlstore.Open(t.Context(), mariadb.URL(address, schema, "autocommit=0")); err == nil || driver.CodeOf(err) != driver.CodeRefused {
		t.Errorf("autocommit off: %v", err)
	}
	mariadb.Exec(t, "test", "SET GLOBAL read_only = 1")
	_, err := mysqlstore.Open(t.Context(), mariadb.URL(address, schema, ""))
	mariadb.Exec(t, "test", "SET GLOBAL read_only = 0")
	if err == nil || driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a read-only server: %v", err)
	}
	sqltest.Refuses(t, mariadb, "mysql://root:sEcReT@127.0.0.1:1/x?recipe=named&nonsense=%zz")
}

// TestNamedNeedsNoTables: the recipe named works without tables. A holder keeps its lock although the
// store cannot record it.
func TestNamedNeedsNoTables(t *testing.T) {
	s := mariadb.Store(t, mariadb.Bare(t), "recipe=named")
	g, a := sqltest.Must(t, s, "bare", driver.Exclusive, time.Minute)
	for range 2 {
		if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil { // Renew tries to record the holder
			t.Fatal(r[0].Err)
		}
	}
	a.Keeps(t)
	sqltest.Busy(t, s, "bare", driver.Exclusive)
	if _, err := s.Inspect(t.Context(), "bare"); s.Classify(err) != driver.CodeRefused {
		t.Errorf("Inspect: %v", err)
	}
	sqltest.Release(t, s, g)
}
