package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestDeadlockVictimWaitsAgain: a waiter continues to wait after the server has ended its statement to
// resolve a deadlock. The waiter has the gate and waits for the row. Another transaction has
// the row and requests the gate, and detects deadlocks much later than the waiter.
func TestDeadlockVictimWaitsAgain(t *testing.T) {
	t.Parallel()
	database := postgres.Create(t)
	s := postgres.Store(t, database, "recipe=pessimistic&deadlock_timeout=4s")
	g, _ := sqltest.Must(t, s, "dead", driver.Exclusive, time.Minute) // the name has a row
	sqltest.Release(t, s, g)
	db := postgres.Pool(t, database)
	tx, err := db.Begin()
	check(t, err)
	defer tx.Rollback()
	for _, q := range []string{"SET LOCAL deadlock_timeout = '10min'", "SELECT * FROM holdfast_name FOR UPDATE"} {
		if _, err := tx.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	w := sqltest.Wait(t, t.Context(), s, "dead", driver.Exclusive)
	if _, err := tx.Exec("SELECT pg_advisory_xact_lock((l.classid::bigint << 32) | l.objid::bigint) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted" +
		" AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"); err != nil {
		t.Fatalf("the server ended the statement of the test, not that of the waiter: %v", err)
	}
	w.Pending()
	check(t, tx.Commit())
	sqltest.Release(t, s, w.Granted())
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // the server counts the deadlock later
		var n int
		check(t, db.QueryRow("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&n))
		if n > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("there was no deadlock")
		}
	}
}

// TestTimeoutAtTheGrantLeavesNoLock: the statement of a waiter ends with an error because it has waited too long, although
// the server has just granted the lock to its session. The waiter frees the lock. Otherwise it would wait for the gate of
// another waiter, which would wait for the lock.
func TestTimeoutAtTheGrantLeavesNoLock(t *testing.T) {
	t.Parallel()
	database := postgres.Create(t)
	db := postgres.Pool(t, database)
	const waiting = " FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	// With a TTL of a second the wait would end before the server looks for deadlocks. This one leaves a busy machine time.
	const params, ttl = "recipe=advisory&deadlock_timeout=10min", 3 * time.Second
	holder, first, second := postgres.Store(t, database, params), postgres.Store(t, database, params), postgres.Store(t, database, params)
	g, _ := sqltest.Must(t, holder, "late", driver.Exclusive, requests.Long)
	w := requests.Queue(t, first, requests.New("late", driver.Exclusive, ttl))
	var pid int
	requests.Eventually(t, "the first statement waits", func() bool { return db.QueryRow("SELECT pid"+waiting).Scan(&pid) == nil })
	check(t, syscall.Kill(pid, syscall.SIGSTOP))
	defer syscall.Kill(pid, syscall.SIGCONT)
	other := requests.Queue(t, second, requests.New("late", driver.Exclusive, ttl))
	requests.Eventually(t, "the second statement has waited too long, and so has the first", func() (again bool) {
		check(t, db.QueryRow("SELECT count(DISTINCT (classid, objid)) > 1"+waiting).Scan(&again))
		return again
	})
	sqltest.Release(t, holder, g)
	check(t, syscall.Kill(pid, syscall.SIGCONT))
	for range 2 {
		select {
		case <-w.Done:
			sqltest.Release(t, first, w.Granted())
			w.Done = nil
		case <-other.Done:
			sqltest.Release(t, second, other.Granted())
			other.Done = nil
		case <-time.After(requests.Timeout):
			t.Fatal("no waiter gets the lock, which is free")
		}
	}
}

// TestOneKeyForTwoNames: two names with the same key exclude each other. A process holds the
// first name and waits for the second. It can release the first, and is then granted the second.
func TestOneKeyForTwoNames(t *testing.T) {
	database := postgres.Create(t)
	hashed := postgres.Store(t, database, "recipe=advisory")
	given := postgres.Store(t, database, "recipe=advisory&keys=given")
	const one = "one"
	sum := sha256.Sum256([]byte("\x00" + one))
	other := strconv.FormatInt(int64(binary.BigEndian.Uint64(sum[:8])), 10)
	g, _ := sqltest.Must(t, hashed, one, driver.Exclusive, time.Minute)
	sqltest.Busy(t, given, other, driver.Exclusive)
	sqltest.Busy(t, given, other, driver.Unlimited)
	w := sqltest.Wait(t, t.Context(), given, other, driver.Exclusive)
	again := sqltest.Wait(t, t.Context(), hashed, one, driver.Exclusive)
	sqltest.Release(t, hashed, g)
	next := w.Granted()
	sqltest.Busy(t, hashed, one, driver.Exclusive)
	sqltest.Release(t, given, next)
	sqltest.Release(t, hashed, again.Granted())
}

// TestHeldLockAffectsVacuumAsDocumented: a held lock affects VACUUM as docs/sql.md states, for rows that other clients
// delete while the lock is held. A waiter does not keep VACUUM from removing them.
func TestHeldLockAffectsVacuumAsDocumented(t *testing.T) {
	postgres.Each(t, postgres.Recipes, func(t *testing.T, params, database string) {
		s := postgres.Store(t, database, params)
		postgres.Exec(t, database, "CREATE TABLE rubbish AS SELECT generate_series(1, 1000) AS n")
		defer postgres.Exec(t, database, "DROP TABLE rubbish")
		g, _ := sqltest.Must(t, s, "vacuum", driver.Exclusive, time.Minute)
		if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		r, _ := sqltest.Request("vacuum", driver.Exclusive, time.Second)
		w := requests.QueueWith(t, t.Context(), s, r)
		postgres.Exec(t, database, "DELETE FROM rubbish")
		size := func() (n int) {
			check(t, postgres.Pool(t, database).QueryRow("SELECT pg_relation_size('rubbish')").Scan(&n))
			return n
		}
		removed := func() bool {
			postgres.Exec(t, database, "VACUUM rubbish")
			return size() == 0
		}
		if params == "recipe=pessimistic" {
			if removed() {
				t.Error("deleted rows are removed while the lock is held")
			}
		} else {
			requests.Eventually(t, "deleted rows are removed", removed)
		}
		w.Pending()
		sqltest.Release(t, s, g)
		sqltest.Release(t, s, w.Granted())
		postgres.Exec(t, database, "VACUUM rubbish")
		if n := size(); n > 0 {
			t.Errorf("%d bytes are kept after the release", n)
		}
	})
}

func TestPermitWaitsForOpenInsert(t *testing.T) {
	sqltest.PermitWaitsForOpenInsert(t, postgres, `INSERT INTO holdfast_name (name) VALUES ('\x006672657368')`)
}
