package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

func number(t testing.TB, db *sql.DB, query string) (n int) {
	t.Helper()
	var name string
	err := db.QueryRow(query).Scan(&name, &n)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// TestDeadlockVictim: a wait that the server ends to undo a deadlock goes on. Who
// locks a row by a column that is not the primary key locks its entry in the index
// first and then the row; another transaction comes the other way round, and has
// written more, so that it is spared.
func TestDeadlockVictim(t *testing.T) {
	schema := schema(t)
	admin(t, schema, "CREATE TABLE locks (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL, UNIQUE KEY (name)) ENGINE=InnoDB")
	admin(t, schema, "CREATE TABLE weight (n INT) ENGINE=InnoDB")
	admin(t, schema, "INSERT INTO locks (name) VALUES ('dead')")
	s := open(t, mariadb(t).Address, schema, "recipe=pessimistic&table=locks&column=name")
	defer closeStore(t, s)
	db := plain(t, schema)
	const deadlocks = "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"
	before := number(t, db, deadlocks)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, q := range []string{"INSERT INTO weight VALUES (1), (2), (3), (4), (5), (6), (7), (8)", "UPDATE locks SET id = id WHERE id = 1", "SELECT id FROM locks WHERE id = 1 FOR UPDATE"} {
		if _, err := tx.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	w := wait(t, t.Context(), s, "dead", driver.Exclusive)
	if _, err := tx.Exec("SELECT id FROM locks WHERE name = 'dead' FOR UPDATE"); err != nil {
		t.Fatalf("the other one was the victim: %v", err)
	}
	if after := number(t, db, deadlocks); after <= before {
		t.Fatal("there was no deadlock")
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
}

// TestInsertRace: of those who ask at once for a name that has no row, all who wait
// are granted it in turn, and none is told that it is busy.
func TestInsertRace(t *testing.T) {
	each(t, []mysqlstore.Recipe{mysqlstore.Pessimistic}, func(t *testing.T, params, schema string) {
		const waiters, tries, rounds = 3, 2, 40
		var stores [waiters + tries]*mysqlstore.Store
		for i := range stores {
			stores[i] = open(t, mariadb(t).Address, schema, params)
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
	each(t, sessionRecipes, func(t *testing.T, params, schema string) {
		s := open(t, mariadb(t).Address, schema, params)
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
		db := plain(t, schema)
		var conn int64
		if err := db.QueryRow("SELECT id FROM information_schema.processlist WHERE info LIKE '%" + r.ID + "%' AND id <> CONNECTION_ID()").Scan(&conn); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(fmt.Sprintf("KILL QUERY %d", conn)); err != nil {
			t.Fatal(err)
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
		schema := schema(t)
		s := open(t, mariadb(t).Address, schema, "recipe=optimistic&innodb_lock_wait_timeout=1")
		defer closeStore(t, s)
		g, _ := must(t, s, "interrupted", driver.Exclusive, time.Minute) // the name has a row
		release(t, s, g)
		tx, err := plain(t, schema).Begin()
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
