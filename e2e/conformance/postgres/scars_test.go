package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestSharesAdvisory: another program's advisory lock excludes holdfast and is
// excluded by it, and who waits for the other gets it.
func TestSharesAdvisory(t *testing.T) {
	database := schema(t)
	s := open(t, postgres(t).Address, database, "keys=given")
	defer closeStore(t, s)
	c, err := plain(t, database).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(query string) (yes bool) {
		t.Helper()
		if err := c.QueryRowContext(t.Context(), query).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		return yes
	}
	for name, args := range map[string]string{"42": "42", "-9223372036854775808": "-9223372036854775808", "7,-1": "7, -1"} {
		if !ask("SELECT pg_try_advisory_lock(" + args + ")") {
			t.Fatal("not free")
		}
		busy(t, s, name, driver.Exclusive)
		busy(t, s, name, driver.Unlimited)
		st, err := s.Inspect(t.Context(), name)
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Note == "" {
			t.Errorf("a stranger's lock shows as %+v, %v", st, err)
		}
		w := wait(t, t.Context(), s, name, driver.Exclusive)
		if !ask("SELECT pg_advisory_unlock(" + args + ")") {
			t.Fatal("not held")
		}
		g := w.granted()
		if ask("SELECT pg_try_advisory_lock(" + args + ")") {
			t.Error("two hold it")
		}
		release(t, s, g)
		g, _ = must(t, s, name, driver.Unlimited, time.Minute)
		if ask("SELECT pg_try_advisory_lock("+args+")") || !ask("SELECT pg_try_advisory_lock_shared("+args+")") {
			t.Error("a shared lock is not shared")
		}
		release(t, s, g)
	}
	for _, name := range []string{"x", "042", "1,2,3", "+1", "9223372036854775808", "1, 2"} {
		r, _ := request(name, driver.Exclusive, time.Minute)
		if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.Invalid {
			t.Errorf("the key %q: %v", name, err)
		}
	}
}

// TestSharesRows: another program's SELECT ... FOR UPDATE on the same row of its own
// table excludes holdfast and is excluded by it.
func TestSharesRows(t *testing.T) {
	schema := schema(t)
	admin(t, schema, "CREATE TABLE fu_distribute_lock (id bigserial PRIMARY KEY, lock_name varchar(100) NOT NULL UNIQUE)")
	admin(t, schema, "INSERT INTO fu_distribute_lock (lock_name) VALUES ('report')")
	s := open(t, postgres(t).Address, schema, "recipe=pessimistic&table=fu_distribute_lock&column=lock_name")
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
	busy(t, s, "new", driver.Exclusive)
	release(t, s, g)
	r, _ := request("new", 3, time.Minute)
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.Unsupported {
		t.Errorf("a semaphore: %v", err)
	}
}

// TestTokenAfterTheWait: the token is read when the lock is granted, not when it was
// asked for.
func TestTokenAfterTheWait(t *testing.T) {
	each(t, sessionRecipes, func(t *testing.T, params, database string) {
		s := open(t, postgres(t).Address, database, params)
		defer closeStore(t, s)
		for _, limit := range []int{driver.Exclusive, driver.Unlimited} {
			g, _ := must(t, s, "token", driver.Exclusive, time.Minute)
			w := wait(t, t.Context(), s, "token", limit)
			between, _ := must(t, s, "another", driver.Exclusive, time.Minute) // the server's clock, now
			release(t, s, g)
			next := w.granted()
			if next.Token <= between.Token {
				t.Errorf("token %d was read before the wait was over: it was %d then", next.Token, between.Token)
			}
			release(t, s, next)
			release(t, s, between)
			if d := time.Since(time.UnixMicro(int64(g.Token))); d < -time.Minute || d > time.Minute {
				t.Errorf("the token is %s old", d)
			}
		}
	})
}

// TestSettings: what a DSN or a server may set makes no difference.
func TestSettings(t *testing.T) {
	each(t, pgstore.Recipes(), func(t *testing.T, params, schema string) {
		q := url.Values{"options": {"-c statement_timeout=500ms -c lock_timeout=500ms -c idle_in_transaction_session_timeout=500ms -c idle_session_timeout=500ms " +
			"-c default_transaction_isolation=serializable -c standard_conforming_strings=off -c timezone=Asia/Kolkata -c datestyle=German"}}
		s := open(t, postgres(t).Address, schema, params+"&"+strings.ReplaceAll(q.Encode(), "+", "%20"))
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
		s := open(t, postgres(t).Address, schema, params)
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
	each(t, []pgstore.Recipe{pgstore.Pessimistic, pgstore.Advisory}, func(t *testing.T, params, schema string) {
		s := open(t, postgres(t).Address, schema, params)
		defer closeStore(t, s)
		overlap(t, s, 4)
	})
}

// TestWritersInOrder: who waits alone is served in the order of asking.
func TestWritersInOrder(t *testing.T) {
	each(t, sessionRecipes, func(t *testing.T, params, schema string) {
		s := open(t, postgres(t).Address, schema, params)
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
	each(t, pgstore.Recipes(), func(t *testing.T, params, schema string) {
		if params != "recipe=optimistic" {
			params += "&tokens=durable"
		}
		admin(t, schema, fmt.Sprintf("UPDATE holdfast_floor SET token = GREATEST(token, %d)", ahead))
		s := open(t, postgres(t).Address, schema, params)
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
	database := schema(t)
	admin(t, database, "CREATE ROLE narrow LOGIN CONNECTION LIMIT 1")
	defer admin(t, database, "DROP OWNED BY narrow; DROP ROLE narrow")
	admin(t, database, "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO narrow")
	s, err := pgstore.Open(t.Context(), fmt.Sprintf("postgres://narrow@%s/%s?sslmode=disable&recipe=pessimistic&tokens=durable", postgres(t).Address, database))
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	db, n := plain(t, database), 1 // the connection that looked at the server goes
	for end := time.Now().Add(20 * time.Second); n > 0; time.Sleep(5 * time.Millisecond) {
		if err := db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE usename = 'narrow'").Scan(&n); err != nil || time.Now().After(end) {
			t.Fatal(n, err)
		}
	}
	r, _ := request("narrow", driver.Exclusive, time.Minute)
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.Unknown {
		t.Errorf("%v (%v)", err, s.Classify(err))
	}
	undo(t, s, r)
	wide := open(t, postgres(t).Address, database, "recipe=pessimistic")
	defer closeStore(t, wide)
	g, _ := must(t, wide, "narrow", driver.Exclusive, time.Minute)
	release(t, wide, g)
}

// TestRefuses what would not hold, and says why.
func TestRefuses(t *testing.T) {
	admin(t, "postgres", "CREATE DATABASE bare")
	s := open(t, postgres(t).Address, "bare", "recipe=optimistic")
	defer closeStore(t, s)
	r, _ := request("x", driver.Exclusive, time.Minute)
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.Refused || !strings.Contains(err.Error(), "holdfast init") {
		t.Errorf("without tables: %v", err)
	}
	// Advisory locks need none.
	a := open(t, postgres(t).Address, "bare", "")
	defer closeStore(t, a)
	g, _ := must(t, a, "x", driver.Exclusive, time.Minute)
	release(t, a, g)
	for _, recipe := range []pgstore.Recipe{pgstore.Pessimistic, pgstore.Optimistic} {
		_, err := pgstore.Open(t.Context(), fmt.Sprintf("postgres://postgres@%s/bare?sslmode=disable&default_transaction_read_only=on&recipe=%s", postgres(t).Address, recipe))
		if driver.CodeOf(err) != driver.Refused || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s, read-only: %v", recipe, err)
		}
	}
	// No password in any error.
	_, err := pgstore.Open(t.Context(), "postgres://root:sEcReT@127.0.0.1:1/x?recipe=advisory&sslmode=nonsense")
	if err == nil || strings.Contains(err.Error(), "sEcReT") {
		t.Errorf("a bad URL: %v", err)
	}
}

// TestPgBouncer: sessions are refused behind a pooler in transaction mode, with the
// reason, and leases pass the whole suite there.
func TestPgBouncer(t *testing.T) {
	database := schema(t)
	start := func(mode string) *servers.PgBouncer {
		b, err := servers.StartPgBouncer(t.Context(), postgres(t).Address, mode, 8)
		if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	pooler := start("transaction")
	for _, r := range sessionRecipes {
		_, err := pgstore.Open(t.Context(), pooler.URL(database, "&recipe="+string(r)))
		if driver.CodeOf(err) != driver.Refused || !strings.Contains(err.Error(), "transaction mode") {
			t.Errorf("%s in transaction mode: %v", r, err)
		}
		db, err := sql.Open("pgx", pooler.URL(database, "&default_query_exec_mode=simple_protocol"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pgstore.New(t.Context(), db, pgstore.With(r)); driver.CodeOf(err) != driver.Refused {
			t.Errorf("%s on a user's pool in transaction mode: %v", r, err)
		}
		db.Close()
	}
	session := start("session")
	s := open(t, session.Address, database, "")
	g, _ := must(t, s, "bouncer", driver.Exclusive, time.Minute)
	release(t, s, g)
	closeStore(t, s)

	drivertest.Run(t, drivertest.Harness{Open: func(t testing.TB, ns string) driver.Store {
		return open(t, pooler.Address, database, "recipe=optimistic", pgstore.Namespace(ns))
	}})
}

// TestRowsAreRemoved: the optimistic recipe leaves no row per name for ever, and the
// tokens of a name rise through its removal.
func TestRowsAreRemoved(t *testing.T) {
	schema := schema(t)
	s := open(t, postgres(t).Address, schema, "recipe=optimistic")
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
