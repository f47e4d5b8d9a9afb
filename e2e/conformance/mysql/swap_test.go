package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// TestSwapHandsTheLockOff: if no client waits, a swap is one statement that reads. A release and a
// request take at least two statements.
func TestSwapHandsTheLockOff(t *testing.T) {
	mariadb.Each(t, mariadb.Sessions, func(t *testing.T, params, schema string) {
		s := mariadb.Store(t, schema, params)
		db := mariadb.Pool(t, schema)
		var name string
		var before, after int
		count := func(n *int) {
			check(t, db.QueryRow("SHOW GLOBAL STATUS LIKE 'Com_select'").Scan(&name, n))
		}
		count(&before) // dials
		sqltest.SwapUntil(t, s, "passed", func() { count(&before) }, func(released, err error) bool {
			if released != nil || err != nil {
				t.Fatal(released, err)
			}
			// The count includes the last release of SwapUntil.
			count(&after)
			return after-before <= 2
		})
	})
}

// pessimisticSwap begins the first statement of a swap.
const pessimisticSwap = "SELECT @hf_now :="

// TestSwapNoticesLossOfTheLock: a session loses its lock before the statement of a swap, because
// its transaction, its named lock or its connection ends. The release returns an error, and the request gets a
// new lock.
func TestSwapNoticesLossOfTheLock(t *testing.T) {
	schema := mariadb.Create(t)
	for _, test := range []struct {
		recipe      mysqlstore.Recipe
		swaps, ends string
	}{
		{mysqlstore.Pessimistic, pessimisticSwap, "ROLLBACK"},
		{mysqlstore.Pessimistic, pessimisticSwap, "COMMIT"},
		{mysqlstore.Pessimistic, pessimisticSwap, "KILL CONNECTION_ID()"},
		{mysqlstore.Named, "SELECT CASE WHEN", "DO RELEASE_ALL_LOCKS()"},
		{mysqlstore.Named, "SELECT CASE WHEN", "KILL CONNECTION_ID()"},
	} {
		t.Run(string(test.recipe)+" "+test.ends, func(t *testing.T) {
			s, inject := injected(t, schema, test.recipe)
			sqltest.SwapUntil(t, s, "lost", func() { inject(test.swaps, test.ends) }, func(released, err error) bool {
				inject("", "")
				if err != nil {
					t.Fatalf("the request: %v", err)
				}
				return released != nil
			})
		})
	}
}

// TestSwapNoticesDeadlock: before the first or the second statement of a swap, the server makes the
// session's transaction the victim of a deadlock. Another program gets the row. The release returns an
// error, and the request gets a lock when that program has ended its transaction.
func TestSwapNoticesDeadlock(t *testing.T) {
	schema := mariadb.Create(t)
	mariadb.Exec(t, schema, "CREATE TABLE victim (id INT PRIMARY KEY, n INT)")
	mariadb.Exec(t, schema, "INSERT INTO victim SELECT slot, 0 FROM (SELECT 1 AS slot UNION SELECT 2 UNION SELECT 3 UNION SELECT 4) v")
	watcher := mariadb.Store(t, schema, "recipe=pessimistic")
	db := mariadb.Pool(t, schema)
	for _, before := range []string{pessimisticSwap, "ROLLBACK TO SAVEPOINT"} {
		t.Run(before[:6], func(t *testing.T) {
			var other sync.WaitGroup // the other program
			t.Cleanup(other.Wait)
			s, inject := injected(t, schema, mysqlstore.Pessimistic)
			var held atomic.Bool // by the other program
			sqltest.SwapUntil(t, s, "victim", func() {
				tx, err := db.Begin()
				check(t, err)
				// The server chooses the transaction that has changed less.
				if _, err := tx.Exec("UPDATE victim SET n = n + 1"); err != nil {
					t.Fatal(err)
				}
				other.Go(func() {
					defer tx.Rollback()
					if _, err := tx.Exec("SELECT name FROM holdfast_name FOR UPDATE"); err != nil {
						t.Error(err)
						return
					}
					held.Store(true)
					defer held.Store(false)
					r, _ := sqltest.Request("victim", driver.Exclusive, time.Minute)
					if _, err := watcher.Acquire(t.Context(), r); watcher.Classify(err) != driver.CodeBusy {
						t.Errorf("while another program has locked the row: %v, want busy", err)
					}
				})
				inject(before, "SELECT n FROM victim WHERE id = 1 FOR UPDATE")
			}, func(released, err error) bool {
				if err == nil && held.Load() {
					t.Error("granted while another program has locked the row")
				}
				inject("", "")
				other.Wait()
				if err != nil {
					t.Fatalf("the request: %v", err)
				}
				return released != nil
			})
		})
	}
}

// TestSwapAtReadOnlyServer: the server becomes read-only before a swap. The session does not pass
// its lock on, but releases it.
func TestSwapAtReadOnlyServer(t *testing.T) {
	mariadb.Each(t, mariadb.Sessions, func(t *testing.T, params, schema string) {
		s := mariadb.Store(t, schema, params)
		db := mariadb.Pool(t, schema)
		set := func(on int) {
			if _, err := db.Exec(fmt.Sprintf("SET GLOBAL read_only = %d", on)); err != nil {
				t.Error(err)
			}
		}
		set(0) // dials
		defer set(0)
		for range 10 {
			// The server may still end the session of the request that was refused.
			r, _ := sqltest.Request("read-only", driver.Exclusive, time.Minute)
			r.Wait = true
			g, err := s.Acquire(t.Context(), r)
			check(t, err)
			set(1)
			next, released, err := sqltest.Swap(t, s, g)
			set(0)
			// A ping of the session may have found the server read-only before the swap.
			if released != nil && !sqltest.Soon(func() bool { return s.Classify(s.Release(t.Context(), g, 0)) == driver.CodeNotHeld }) {
				t.Errorf("the release: %v", released)
			}
			if err == nil || s.Classify(err) != driver.CodeRefused {
				t.Fatalf("a read-only server answers %+v, %v", next, err)
			}
		}
	})
}

func TestSwapServesGetLock(t *testing.T) {
	sqltest.SwapServesStatement(t, mariadb, "recipe=named&names=exact", "by-hand", "DO GET_LOCK('by-hand', 120) + RELEASE_LOCK('by-hand')")
}

// gateOfWaiter returns the name of the gate that the only waiter has.
func gateOfWaiter(t *testing.T, db *sql.DB) (gate string) {
	t.Helper()
	check(t, db.QueryRowContext(t.Context(), "SELECT REGEXP_SUBSTR(info, 'hfw[^'']*') FROM information_schema.processlist WHERE info LIKE 'SELECT /*hf1.%'").Scan(&gate))
	return gate
}

// TestGatesReachAsFarAsTheirLocks: a waiter for a row does not keep out the locks of the same name in another schema, nor
// those of recipe Named.
func TestGatesReachAsFarAsTheirLocks(t *testing.T) {
	t.Parallel()
	const name = "gates of rows"
	here, there := mariadb.Create(t), mariadb.Create(t)
	s := mariadb.Store(t, here, "recipe=pessimistic")
	held, _ := sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
	w := sqltest.Wait(t, t.Context(), s, name, driver.Exclusive)
	for _, other := range []sqltest.Store{mariadb.Store(t, there, "recipe=pessimistic"), mariadb.Store(t, here, "recipe=named")} {
		g, _ := sqltest.Must(t, other, name, driver.Exclusive, time.Minute)
		sqltest.Release(t, other, g)
	}
	sqltest.Release(t, s, held)
	sqltest.Release(t, s, w.Granted())
}

// TestTryDoesNotOvertakeTheGate: the first waiter has the gate, and its server thread has not requested the
// lock yet. A request that does not wait must not take the lock meanwhile.
func TestTryDoesNotOvertakeTheGate(t *testing.T) {
	schema := mariadb.Create(t)
	s := mariadb.Store(t, schema, "recipe=named")
	const name = "gate"
	g, _ := sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
	w := sqltest.Wait(t, t.Context(), s, name, driver.Exclusive)
	db := mariadb.Pool(t, schema)
	gate := gateOfWaiter(t, db)
	sqltest.Release(t, s, g)
	sqltest.Release(t, s, w.Granted())
	c, err := db.Conn(t.Context())
	check(t, err)
	defer c.Close()
	var entered int
	if err := c.QueryRowContext(t.Context(), "SELECT GET_LOCK(?, 0)", gate).Scan(&entered); err != nil || entered != 1 {
		t.Fatal(entered, err)
	}
	r, _ := sqltest.Request(name, driver.Exclusive, time.Minute)
	if g, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeBusy {
		t.Fatalf("a request that does not wait got %+v, %v while the gate %q was taken", g, err, gate)
	}
	if _, err := c.ExecContext(t.Context(), "DO RELEASE_LOCK(?)", gate); err != nil {
		t.Fatal(err)
	}
	g, _ = sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
	sqltest.Release(t, s, g)
}

// TestDeadClientLeavesTheGate: the client of a waiter dies. A client behind it in the queue gets the lock
// when the server has ended the dead client's session. While that session has the gate, a request that does
// not wait ends busy, although the lock is free.
func TestDeadClientLeavesTheGate(t *testing.T) {
	schema := mariadb.Create(t)
	const name = "dead"
	s := mariadb.Store(t, schema, "recipe=named")
	proxy, err := servers.NewProxy(mariadb.Server(t).Address)
	check(t, err)
	defer proxy.Close()
	dead := mariadb.StoreAt(t, proxy.Address(), schema, "recipe=named")
	db := mariadb.Pool(t, schema)

	g, _ := sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := sqltest.Wait(t, ctx, dead, name, driver.Exclusive)
	gate := gateOfWaiter(t, db)
	second := sqltest.Wait(t, t.Context(), s, name, driver.Exclusive)
	proxy.Cut()
	cancel()
	sqltest.Release(t, s, g)
	g = second.Granted()
	if r, err := first.Failed(); dead.Classify(err) == driver.CodeUnknown {
		check(t, proxy.Heal())
		requests.Undone(t, dead, r)
	}
	sqltest.Release(t, s, g)

	// A session that has the gate requests the lock at once. The test stops a session in between by
	// requesting only the gate. The client is silent, so the server ends the session by its timer.
	check(t, proxy.Heal())
	c, err := mariadb.PoolAt(t, proxy.Address(), schema).Conn(t.Context())
	check(t, err)
	defer c.Close()
	var session int64
	if _, err := c.ExecContext(t.Context(), "SET SESSION wait_timeout = 2"); err != nil {
		t.Fatal(err)
	}
	if err := c.QueryRowContext(t.Context(), "SELECT CONNECTION_ID() * GET_LOCK(?, 60)", gate).Scan(&session); err != nil || session == 0 {
		t.Fatal(session, err)
	}
	check(t, proxy.Silence())
	defer func() { _ = proxy.Heal() }()
	tries := 0
	if !sqltest.Soon(func() bool {
		r, _ := sqltest.Request(name, driver.Exclusive, time.Minute)
		g, err := s.Acquire(t.Context(), r)
		var owner sql.NullInt64
		check(t, db.QueryRowContext(t.Context(), "SELECT IS_USED_LOCK(?)", gate).Scan(&owner))
		switch {
		case err == nil && owner.Int64 == session:
			t.Fatalf("granted %+v while a session has the gate %q", g, gate)
		case err == nil:
			sqltest.Release(t, s, g)
			return true
		case s.Classify(err) != driver.CodeBusy:
			t.Fatalf("a request that does not wait: %v, want busy", err)
		}
		tries++
		return false
	}) {
		t.Fatalf("%d requests ended busy, although the server has ended the session that has the gate", tries)
	}
}
