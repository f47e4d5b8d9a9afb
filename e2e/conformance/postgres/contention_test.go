package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestDeadlockVictim: a wait that the server ends to undo a deadlock goes on. The
// waiter has the gate and waits for the row; another transaction has the row and asks
// for the gate, and looks for deadlocks much later than the waiter does.
func TestDeadlockVictim(t *testing.T) {
	database := schema(t)
	s := open(t, postgres(t).Address, database, "recipe=pessimistic&deadlock_timeout=4s")
	defer closeStore(t, s)
	g, _ := must(t, s, "dead", driver.Exclusive, time.Minute) // the name has a row
	release(t, s, g)
	db := plain(t, database)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, q := range []string{"SET LOCAL deadlock_timeout = '10min'", "SELECT * FROM holdfast_name FOR UPDATE"} {
		if _, err := tx.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	w := wait(t, t.Context(), s, "dead", driver.Exclusive)
	if _, err := tx.Exec("SELECT pg_advisory_xact_lock((l.classid::bigint << 32) | l.objid::bigint) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted" +
		" AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"); err != nil {
		t.Fatalf("the other one was the victim: %v", err)
	}
	select {
	case <-w.done:
		t.Fatalf("the victim's wait ended: %+v, %v", w.g, w.err)
	default:
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	release(t, s, w.granted())
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // it is counted later
		var n int
		if err := db.QueryRow("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("there was no deadlock")
		}
	}
}

// TestOneKeyForTwoNames: two names that have the same key exclude each other; one
// process that holds the one and waits for the other can give the one back, and is
// granted the other then.
func TestOneKeyForTwoNames(t *testing.T) {
	database := schema(t)
	hashed := open(t, postgres(t).Address, database, "recipe=advisory")
	defer closeStore(t, hashed)
	given := open(t, postgres(t).Address, database, "recipe=advisory&keys=given")
	defer closeStore(t, given)
	const one = "one"
	sum := sha256.Sum256([]byte("\x00" + one))
	other := strconv.FormatInt(int64(binary.BigEndian.Uint64(sum[:8])), 10)
	g, _ := must(t, hashed, one, driver.Exclusive, time.Minute)
	busy(t, given, other, driver.Exclusive)
	busy(t, given, other, driver.Unlimited)
	w := wait(t, t.Context(), given, other, driver.Exclusive)
	again := wait(t, t.Context(), hashed, one, driver.Exclusive)
	release(t, hashed, g)
	next := w.granted()
	busy(t, hashed, one, driver.Exclusive)
	release(t, given, next)
	release(t, hashed, again.granted())
}

// TestInsertRace: of those who ask at once for a name that has no row, all who wait
// are granted it in turn, and none is told that it is busy.
func TestInsertRace(t *testing.T) {
	each(t, []pgstore.Recipe{pgstore.Pessimistic}, func(t *testing.T, params, database string) {
		const waiters, tries, rounds = 3, 2, 40
		var stores [waiters + tries]*pgstore.Store
		for i := range stores {
			stores[i] = open(t, postgres(t).Address, database, params)
			defer closeStore(t, stores[i])
		}
		for round := range rounds {
			name := fmt.Sprintf("race-%d", round)
			begin := make(chan struct{})
			var all sync.WaitGroup
			for i, s := range stores {
				all.Go(func() {
					r, _ := request(name, driver.Exclusive, time.Minute)
					r.Wait = i < waiters
					<-begin
					g, err := s.Acquire(t.Context(), r)
					switch {
					case err == nil:
						if err := s.Release(t.Context(), g, 0); err != nil {
							t.Error(err)
						}
					case r.Wait || s.Classify(err) != driver.Busy:
						t.Errorf("%s, wait %t: %v", name, r.Wait, err)
					}
				})
			}
			close(begin)
			all.Wait()
		}
	})
}

// TestInterruptedWait: a wait whose statement is ended from outside, and one that
// outlasts the server's limit for waits, is never taken for a grant.
func TestInterruptedWait(t *testing.T) {
	each(t, sessionRecipes, func(t *testing.T, params, database string) {
		s := open(t, postgres(t).Address, database, params)
		defer closeStore(t, s)
		g, _ := must(t, s, "interrupted", driver.Exclusive, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, a := request("interrupted", driver.Exclusive, time.Minute)
		r.Wait = true
		done := make(chan error, 1)
		var got driver.Grant
		go func() {
			var err error
			got, err = s.Acquire(ctx, r)
			done <- err
		}()
		<-a.queued
		var ended bool
		if err := plain(t, database).QueryRow("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&ended); err != nil || !ended {
			t.Fatalf("nothing was ended: %v", err)
		}
		// It may wait again, or say that it does not know.
		busy(t, s, "interrupted", driver.Exclusive)
		cancel()
		err := <-done
		if err == nil {
			t.Fatalf("granted while it is held: %+v", got)
		}
		if s.Classify(err) == driver.Unknown {
			undo(t, s, r)
		}
		release(t, s, g)
		next, _ := must(t, s, "interrupted", driver.Exclusive, time.Minute)
		release(t, s, next)
	})
	t.Run("optimistic", func(t *testing.T) {
		database := schema(t)
		s := open(t, postgres(t).Address, database, "recipe=optimistic&lock_timeout=200ms")
		defer closeStore(t, s)
		g, _ := must(t, s, "interrupted", driver.Exclusive, time.Minute) // the name has a row
		release(t, s, g)
		tx, err := plain(t, database).Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec("SELECT * FROM holdfast_row FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // at least one wait runs out
		defer cancel()
		r, _ := request("interrupted", driver.Exclusive, time.Minute)
		got, err := s.Acquire(ctx, r)
		if err == nil {
			t.Fatalf("granted although the row could not be written: %+v", got)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if s.Classify(err) == driver.Unknown {
			undo(t, s, r)
		}
		next, _ := must(t, s, "interrupted", driver.Exclusive, time.Minute)
		release(t, s, next)
	})
}

// TestVacuum: what the documentation says of a held lock and of the rows that others
// delete meanwhile.
func TestVacuum(t *testing.T) {
	each(t, pgstore.Recipes(), func(t *testing.T, params, database string) {
		s := open(t, postgres(t).Address, database, params)
		defer closeStore(t, s)
		admin(t, database, "CREATE TABLE rubbish AS SELECT generate_series(1, 1000) AS n")
		defer admin(t, database, "DROP TABLE rubbish")
		g, _ := must(t, s, "vacuum", driver.Exclusive, time.Minute)
		if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		admin(t, database, "DELETE FROM rubbish")
		admin(t, database, "VACUUM rubbish")
		size := func() (n int) {
			if err := plain(t, database).QueryRow("SELECT pg_relation_size('rubbish')").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if kept := size() > 0; kept != (params == "recipe=pessimistic") {
			t.Errorf("deleted rows are kept while the lock is held: %t", kept)
		}
		release(t, s, g)
		admin(t, database, "VACUUM rubbish")
		if n := size(); n > 0 {
			t.Errorf("%d bytes are kept after the release", n)
		}
	})
}
