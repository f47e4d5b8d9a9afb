package mysql

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// TestSharesGetLock: another program's GET_LOCK excludes holdfast and is excluded by
// it, and who waits for the other gets it.
func TestSharesGetLock(t *testing.T) {
	schema := schema(t)
	s := open(t, mariadb(t).Address, schema, "recipe=named&names=exact")
	defer closeStore(t, s)
	c, err := plain(t, schema).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(query string) (n int) {
		t.Helper()
		if err := c.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if ask("SELECT GET_LOCK('Shared name', 0)") != 1 {
		t.Fatal("not free")
	}
	busy(t, s, "Shared name", driver.Exclusive)
	st, err := s.Inspect(t.Context(), "Shared name")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Note == "" {
		t.Errorf("a stranger's lock shows as %+v, %v", st, err)
	}
	w := wait(t, t.Context(), s, "Shared name", driver.Exclusive)
	if ask("SELECT RELEASE_LOCK('Shared name')") != 1 {
		t.Fatal("not held")
	}
	g := w.granted()
	if ask("SELECT GET_LOCK('Shared name', 0)") != 0 {
		t.Error("two hold it")
	}
	release(t, s, g)
	if ask("SELECT GET_LOCK('Shared name', 10)") != 1 {
		t.Error("not given back")
	}
	for _, name := range []string{strings.Repeat("x", 193)} {
		r, _ := request(name, driver.Exclusive, time.Minute)
		if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.Invalid {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
	}
}

// TestSharesRows: another program's SELECT ... FOR UPDATE on the same row of its own
// table excludes holdfast and is excluded by it.
func TestSharesRows(t *testing.T) {
	schema := schema(t)
	admin(t, schema, "CREATE TABLE fu_distribute_lock (id BIGINT AUTO_INCREMENT PRIMARY KEY, lock_name VARCHAR(100) NOT NULL, UNIQUE KEY (lock_name)) ENGINE=InnoDB")
	admin(t, schema, "INSERT INTO fu_distribute_lock (lock_name) VALUES ('report')")
	s := open(t, mariadb(t).Address, schema, "recipe=pessimistic&table=fu_distribute_lock&column=lock_name")
	defer closeStore(t, s)
	db := plain(t, schema)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	var id int
	const lock = "SELECT id FROM fu_distribute_lock WHERE lock_name = 'report' FOR UPDATE"
	if err := tx.QueryRow(lock).Scan(&id); err != nil {
		t.Fatal(err)
	}
	busy(t, s, "report", driver.Exclusive)
	busy(t, s, "report", driver.Unlimited)
	w := wait(t, t.Context(), s, "report", driver.Exclusive)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	g := w.granted()
	tx, err = db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(lock + " SKIP LOCKED").Scan(&id); err == nil {
		t.Error("two hold the row")
	}
	release(t, s, g)
	if err := tx.QueryRow(lock).Scan(&id); err != nil {
		t.Error(err)
	}
	_ = tx.Rollback()
	// A row that is missing is made; a permit has none.
	g, _ = must(t, s, "new", driver.Exclusive, time.Minute)
	// The column folds case: two names of one row exclude each other.
	busy(t, s, "NEW", driver.Exclusive)
	w = wait(t, t.Context(), s, "NEW", driver.Exclusive)
	release(t, s, g)
	release(t, s, w.granted())
	r, _ := request("new", 3, time.Minute)
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.Unsupported {
		t.Errorf("a semaphore: %v", err)
	}
}

// TestTokenAfterTheWait: the token is read when the lock is granted, not when it was
// asked for, also where SYSDATE is the same as NOW.
func TestTokenAfterTheWait(t *testing.T) {
	odd, err := servers.StartMariaDB(t.Context(), "--sysdate-is-now", "--default-time-zone=+09:00")
	if err != nil {
		mariadb(t) // skips, or fails
		t.Fatal(err)
	}
	defer odd.Close()
	for name, server := range map[string]*servers.MariaDB{"plain": mariadb(t), "sysdate-is-now": odd} {
		for _, recipe := range sessionRecipes {
			t.Run(name+"/"+string(recipe), func(t *testing.T) {
				s := open(t, server.Address, "test", "recipe="+string(recipe))
				defer closeStore(t, s)
				if err := s.Init(t.Context()); err != nil {
					t.Fatal(err)
				}
				g, _ := must(t, s, "token", driver.Exclusive, time.Minute)
				w := wait(t, t.Context(), s, "token", driver.Exclusive)
				between, _ := must(t, s, "another", driver.Exclusive, time.Minute) // the server's clock, now
				release(t, s, g)
				if next := w.granted(); next.Token <= between.Token {
					t.Errorf("token %d was read before the wait was over: it was %d then", next.Token, between.Token)
				} else {
					release(t, s, next)
				}
				release(t, s, between)
				// It is the time of day, whatever the time zones.
				if d := time.Since(time.UnixMicro(int64(g.Token))); d < -time.Minute || d > time.Minute {
					t.Errorf("the token is %s old", d)
				}
			})
		}
	}
}

// TestSettings: what a DSN or a server may set makes no difference.
func TestSettings(t *testing.T) {
	each(t, mysqlstore.Recipes(), func(t *testing.T, params, schema string) {
		q := url.Values{"clientFoundRows": {"true"}, "interpolateParams": {"true"}, "parseTime": {"true"}, "loc": {"Asia/Tokyo"}, "readTimeout": {"100ms"},
			"time_zone": {"'Europe/Berlin'"}, "tx_isolation": {"'SERIALIZABLE'"}, "innodb_lock_wait_timeout": {"1"}, "lock_wait_timeout": {"1"},
			"wait_timeout": {"1"}, "max_statement_time": {"1"}, "idle_transaction_timeout": {"1"}, "sql_mode": {"'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,TRADITIONAL'"}}
		q.Set("time_zone", "'+05:30'")
		s := open(t, mariadb(t).Address, schema, params+"&"+q.Encode())
		defer closeStore(t, s)
		g, a := must(t, s, "settings", driver.Exclusive, time.Minute)
		busy(t, s, "settings", driver.Exclusive)
		if params != "recipe=optimistic" {
			w := wait(t, t.Context(), s, "settings", driver.Exclusive)
			select { // longer than each of the timeouts
			case <-w.done:
				t.Fatalf("the wait ended: %+v, %v", w.g, w.err)
			case c := <-a.lost:
				t.Fatalf("lost: %s", c)
			case <-time.After(2500 * time.Millisecond):
			}
			release(t, s, g)
			g = w.granted()
		}
		release(t, s, g)
		if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.NotHeld {
			t.Errorf("a second release: %v", err)
		}
	})
}

// TestCancelledWaitStrandsNothing: neither a session nor a place is left at the
// server.
func TestCancelledWaitStrandsNothing(t *testing.T) {
	each(t, sessionRecipes, func(t *testing.T, params, schema string) {
		s := open(t, mariadb(t).Address, schema, params)
		defer closeStore(t, s)
		g, _ := must(t, s, "cancel", driver.Exclusive, time.Minute)
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			w := wait(t, ctx, s, "cancel", driver.Exclusive)
			cancel()
			<-w.done
			if c := s.Classify(w.err); c != driver.Withdrawn {
				t.Errorf("a cancelled wait answers %v: %v", c, w.err)
			}
			st, err := s.Inspect(t.Context(), "cancel")
			if err != nil || len(st.Waiters) != 0 {
				t.Errorf("after a cancelled wait: %+v, %v", st, err)
			}
		}
		release(t, s, g)
		next, _ := must(t, s, "cancel", driver.Exclusive, time.Minute)
		release(t, s, next)
	})
}

// TestReadersDoNotStarveAWriter although they overlap all the time.
func TestReadersDoNotStarveAWriter(t *testing.T) {
	each(t, []mysqlstore.Recipe{mysqlstore.Pessimistic}, func(t *testing.T, params, schema string) {
		s := open(t, mariadb(t).Address, schema, params)
		defer closeStore(t, s)
		overlap(t, s, 4)
	})
}

// TestWritersInOrder: who waits alone is served in the order of asking.
func TestWritersInOrder(t *testing.T) {
	each(t, sessionRecipes, func(t *testing.T, params, schema string) {
		s := open(t, mariadb(t).Address, schema, params)
		defer closeStore(t, s)
		g, _ := must(t, s, "order", driver.Exclusive, time.Minute)
		var queue []*waiter
		for range 8 {
			queue = append(queue, wait(t, t.Context(), s, "order", driver.Exclusive))
		}
		for _, w := range queue {
			release(t, s, g)
			next := w.granted()
			if next.Token <= g.Token {
				t.Errorf("token %d after %d", next.Token, g.Token)
			}
			g = next
		}
		release(t, s, g)
	})
}

// overlap reads without a gap until a writer was granted.
func overlap(t *testing.T, s driver.Store, readers int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	turn := make(chan struct{}, readers)
	for range readers - 1 {
		turn <- struct{}{}
	}
	for range readers {
		all.Go(func() {
			for ctx.Err() == nil {
				r, _ := request("overlap", driver.Unlimited, time.Minute)
				r.Wait = true
				g, err := s.Acquire(ctx, r)
				if err != nil {
					if s.Classify(err) == driver.Unknown {
						undo(t, s, r)
					}
					return
				}
				turn <- struct{}{} // another reads before this one ends
				<-turn
				if err := s.Release(context.WithoutCancel(ctx), g, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	r, _ := request("overlap", driver.Exclusive, time.Minute)
	r.Wait = true
	g, err := s.Acquire(writing, r)
	if err != nil {
		t.Errorf("a writer among readers: %v", err)
		if s.Classify(err) == driver.Unknown {
			undo(t, s, r)
		}
		return
	}
	release(t, s, g)
}

// TestDurableTokens rise above a floor that the clock has not reached, as after it
// was set back.
func TestDurableTokens(t *testing.T) {
	const ahead = uint64(4e15)
	each(t, mysqlstore.Recipes(), func(t *testing.T, params, schema string) {
		if params != "recipe=optimistic" {
			params += "&tokens=durable"
		}
		admin(t, schema, fmt.Sprintf("UPDATE holdfast_floor SET token = GREATEST(token, %d)", ahead))
		s := open(t, mariadb(t).Address, schema, params)
		defer closeStore(t, s)
		last := ahead
		for range 3 {
			g, _ := must(t, s, "durable", driver.Exclusive, time.Minute)
			if g.Token <= last {
				t.Errorf("token %d after %d", g.Token, last)
			}
			st, err := s.Inspect(t.Context(), "durable")
			if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != g.Token {
				t.Errorf("Inspect: %+v, %v; want token %d", st, err, g.Token)
			}
			last = g.Token
			release(t, s, g)
		}
		if params == "recipe=optimistic" {
			return
		}
		// Nor is a token given again because its holder's transaction was undone.
		g, a := must(t, s, "durable", driver.Exclusive, time.Minute)
		terminate(t, plain(t, schema), s, g)
		hear(t, a, 20*time.Second)
		next, _ := must(t, s, "durable", driver.Exclusive, time.Minute)
		if next.Token <= g.Token {
			t.Errorf("token %d after %d, whose holder was killed", next.Token, g.Token)
		}
		release(t, s, next)
	})
}

// TestDurableTokenFails: the name is locked when its token cannot be written down, for
// want of a second connection; that is no answer of which nothing stands.
func TestDurableTokenFails(t *testing.T) {
	schema := schema(t)
	admin(t, schema, "CREATE USER narrow@'%' WITH MAX_USER_CONNECTIONS 1")
	defer admin(t, schema, "DROP USER narrow@'%'")
	admin(t, schema, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+schema+".* TO narrow@'%'")
	s, err := mysqlstore.Open(t.Context(), fmt.Sprintf("mysql://narrow@%s/%s?recipe=pessimistic&tokens=durable", mariadb(t).Address, schema))
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	db, n := plain(t, schema), 1 // the connection that looked at the server goes
	for end := time.Now().Add(20 * time.Second); n > 0; time.Sleep(5 * time.Millisecond) {
		if err := db.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'narrow'").Scan(&n); err != nil || time.Now().After(end) {
			t.Fatal(n, err)
		}
	}
	r, _ := request("narrow", driver.Exclusive, time.Minute)
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.Unknown {
		t.Errorf("%v (%v)", err, s.Classify(err))
	}
	undo(t, s, r)
	wide := open(t, mariadb(t).Address, schema, "recipe=pessimistic")
	defer closeStore(t, wide)
	g, _ := must(t, wide, "narrow", driver.Exclusive, time.Minute)
	release(t, wide, g)
}

// TestRefuses what would not hold, and says why.
func TestRefuses(t *testing.T) {
	schema := schema(t)
	if _, err := mysqlstore.Open(t.Context(), fmt.Sprintf("mysql://root@%s/%s?autocommit=0", mariadb(t).Address, schema)); err == nil || driver.CodeOf(err) != driver.Refused {
		t.Errorf("autocommit off: %v", err)
	}
	admin(t, "test", "SET GLOBAL read_only = 1")
	_, err := mysqlstore.Open(t.Context(), fmt.Sprintf("mysql://root@%s/%s", mariadb(t).Address, schema))
	admin(t, "test", "SET GLOBAL read_only = 0")
	if err == nil || driver.CodeOf(err) != driver.Refused || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a read-only server: %v", err)
	}
	// Without its tables.
	admin(t, "test", "CREATE DATABASE IF NOT EXISTS bare")
	s := open(t, mariadb(t).Address, "bare", "recipe=optimistic")
	defer closeStore(t, s)
	r, _ := request("x", driver.Exclusive, time.Minute)
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.Refused || !strings.Contains(err.Error(), "holdfast init") {
		t.Errorf("without tables: %v", err)
	}
	// No password in any error.
	_, err = mysqlstore.Open(t.Context(), "mysql://root:sEcReT@127.0.0.1:1/x?recipe=named&nonsense=%zz")
	if err == nil || strings.Contains(err.Error(), "sEcReT") {
		t.Errorf("a bad URL: %v", err)
	}
}

// TestNamedNeedsNoTables: GET_LOCK holds where nothing can be written down, beyond the
// moment at which that is tried.
func TestNamedNeedsNoTables(t *testing.T) {
	admin(t, "test", "CREATE DATABASE IF NOT EXISTS bare")
	s := open(t, mariadb(t).Address, "bare", "recipe=named")
	defer closeStore(t, s)
	g, a := must(t, s, "bare", driver.Exclusive, time.Minute)
	for range 2 {
		if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil { // writes, or cannot
			t.Fatal(r[0].Err)
		}
	}
	select {
	case c := <-a.lost:
		t.Fatalf("lost: %s", c)
	default:
	}
	busy(t, s, "bare", driver.Exclusive)
	if _, err := s.Inspect(t.Context(), "bare"); s.Classify(err) != driver.Refused {
		t.Errorf("Inspect: %v", err)
	}
	release(t, s, g)
}

// TestRowsAreRemoved: the optimistic recipe leaves no row per name for ever, and the
// tokens of a name rise through its removal.
func TestRowsAreRemoved(t *testing.T) {
	schema := schema(t)
	s := open(t, mariadb(t).Address, schema, "recipe=optimistic")
	defer closeStore(t, s)
	last := map[string]uint64{}
	for i := range 250 {
		name := fmt.Sprintf("row-%d", i)
		g, _ := must(t, s, name, driver.Exclusive, time.Minute)
		last[name] = g.Token
		release(t, s, g)
	}
	kept, _ := must(t, s, "kept", driver.Exclusive, time.Minute)
	if err := s.Sweep(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := plain(t, schema).QueryRow("SELECT COUNT(*) FROM holdfast_row").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows are left (%v), want the one that is held", n, err)
	}
	for name, token := range last {
		g, _ := must(t, s, name, driver.Exclusive, time.Minute)
		if g.Token <= token {
			t.Errorf("%s: token %d after %d", name, g.Token, token)
		}
		release(t, s, g)
	}
	release(t, s, kept)
}
