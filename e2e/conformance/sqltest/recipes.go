package sqltest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// OtherProgramsAreExcluded requires that SELECT ... FOR UPDATE of another program and holdfast exclude each other
// on the rows of the program's table. create makes the table fu_distribute_lock with the column
// lock_name; alias is another spelling of "new" for the column.
func OtherProgramsAreExcluded(t *testing.T, d *Database, create, alias string) {
	database := d.Create(t)
	d.Exec(t, database, create)
	d.Exec(t, database, "INSERT INTO fu_distribute_lock (lock_name) VALUES ('report')")
	s := d.Store(t, database, "recipe=pessimistic&table=fu_distribute_lock&column=lock_name")
	db := d.Pool(t, database)
	tx, err := db.Begin()
	check(t, err)
	var id int
	const lock = "SELECT id FROM fu_distribute_lock WHERE lock_name = 'report' FOR UPDATE"
	check(t, tx.QueryRow(lock).Scan(&id))
	Busy(t, s, "report", driver.Exclusive)
	Busy(t, s, "report", driver.Unlimited)
	w := Wait(t, t.Context(), s, "report", driver.Exclusive)
	check(t, tx.Commit())
	g := w.Granted()
	tx, err = db.Begin()
	check(t, err)
	if err := tx.QueryRow(lock + " SKIP LOCKED").Scan(&id); err == nil {
		t.Error("two clients hold the row")
	}
	Release(t, s, g)
	must.Report(t, tx.QueryRow(lock).Scan(&id))
	_ = tx.Rollback()
	// The store creates a missing row. A permit has no row.
	g, _ = Must(t, s, "new", driver.Exclusive, time.Minute)
	// Two names for the same row exclude each other.
	Busy(t, s, alias, driver.Exclusive)
	w = Wait(t, t.Context(), s, alias, driver.Exclusive)
	Release(t, s, g)
	Release(t, s, w.Granted())
	r, _ := Request("new", 3, time.Minute)
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeUnsupported {
		t.Errorf("a semaphore: %v", err)
	}
}

// OtherLock is a lock of the database's own that another program takes. Take reports whether it is free, and Free
// whether the program had it.
type OtherLock struct{ Take, Free string }

// OtherLocksExclude requires that a lock of holdfast and the lock that another program takes with the database's own
// functions exclude each other, by name. A waiter of either gets the lock after the release of the other. shown is the
// client that an inspection shows, and invalid are names that cannot be such a lock.
func OtherLocksExclude(t *testing.T, d *Database, params, shown string, locks map[string]OtherLock, invalid ...string) {
	database := d.Create(t)
	s := d.Store(t, database, params)
	c, err := d.Pool(t, database).Conn(t.Context())
	check(t, err)
	defer c.Close()
	query := func(statement string) (result bool) {
		t.Helper()
		check(t, c.QueryRowContext(t.Context(), statement).Scan(&result))
		return result
	}
	for name, other := range locks {
		if !query(other.Take) {
			t.Fatal("not free")
		}
		Busy(t, s, name, driver.Exclusive)
		st, err := s.Inspect(t.Context(), name)
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Note == "" || st.Holders[0].Client() != shown || st.Holders[0].TTL != 0 {
			t.Errorf("the lock of another program is shown as %+v, %v", st, err)
		}
		w := Wait(t, t.Context(), s, name, driver.Exclusive)
		if !query(other.Free) {
			t.Fatal("not held")
		}
		g := w.Granted()
		if query(other.Take) {
			t.Error("the lock has two holders")
		}
		Release(t, s, g)
		if !query(other.Take) || !query(other.Free) {
			t.Error("the lock was not released")
		}
	}
	for _, name := range invalid {
		r, _ := Request(name, driver.Exclusive, time.Minute)
		if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeInvalid {
			t.Errorf("the name %q: %v", name, err)
		}
	}
}

// UncommittedRowIsBusy requires that a name is busy while another program's open transaction has
// inserted its row, for requests with and without waiting.
func UncommittedRowIsBusy(t *testing.T, d *Database, create string) {
	database := d.Create(t)
	d.Exec(t, database, create)
	s := d.Store(t, database, "recipe=pessimistic&table=fu_distribute_lock&column=lock_name")
	db := d.Pool(t, database)
	for i, commit := range []bool{false, true, false} {
		name, limit := fmt.Sprintf("fresh-%d", i), driver.Exclusive
		if i == 2 {
			limit = driver.Unlimited
		}
		tx, err := db.Begin()
		check(t, err)
		defer tx.Rollback()
		if _, err := tx.Exec("INSERT INTO fu_distribute_lock (lock_name) VALUES ('" + name + "')"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		for _, limit := range []int{driver.Exclusive, driver.Unlimited} {
			r, _ := Request(name, limit, time.Minute)
			if _, err := s.Acquire(ctx, r); s.Classify(err) != driver.CodeBusy {
				t.Fatalf("%s: %v; want busy", name, err)
			}
		}
		w := Wait(t, t.Context(), s, name, limit)
		w.Pending()
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		check(t, end())
		Release(t, s, w.Granted())
	}
}

// TokenIsReadAfterTheWait requires that the token is read when the lock is granted, not when it is
// requested.
func TokenIsReadAfterTheWait(t *testing.T, s driver.Store, limits ...int) {
	for _, limit := range limits {
		g, _ := Must(t, s, "token", driver.Exclusive, time.Minute)
		w := Wait(t, t.Context(), s, "token", limit)
		between, _ := Must(t, s, "another", driver.Exclusive, time.Minute) // its token is the server's present time
		Release(t, s, g)
		next := w.Granted()
		if next.Token <= between.Token {
			t.Errorf("token %d was read before the wait was over: it was %d then", next.Token, between.Token)
		}
		Release(t, s, next)
		Release(t, s, between)
		// The token is the time of day, in every time zone.
		if d := time.Since(time.UnixMicro(int64(g.Token))); d < -time.Minute || d > time.Minute {
			t.Errorf("the token is %s old", d)
		}
	}
}

// SettingsMakeNoDifference requires that settings by parameters, a DSN or the server make no difference.
func SettingsMakeNoDifference(t *testing.T, d *Database, set string) {
	d.Each(t, d.Recipes, func(t *testing.T, params, database string) {
		s := d.Store(t, database, params+"&"+set)
		g, a := Must(t, s, "settings", driver.Exclusive, time.Minute)
		Busy(t, s, "settings", driver.Exclusive)
		if params != "recipe=optimistic" {
			w := Wait(t, t.Context(), s, "settings", driver.Exclusive)
			select { // for longer than each of the timeouts
			case <-w.Done:
				t.Fatalf("the wait ended: %+v, %v", w.Grant, w.Err)
			case c := <-a.Losses:
				t.Fatalf("lost: %s", c)
			case <-time.After(2500 * time.Millisecond):
			}
			Release(t, s, g)
			g = w.Granted()
		}
		Release(t, s, g)
		if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.CodeNotHeld {
			t.Errorf("a second release: %v", err)
		}
	})
}

// durableTokensRise requires that tokens rise above a high-water mark in the future, as after the clock
// was set back. The store must not repeat a token when the holder's transaction is rolled back.
func durableTokensRise(t *testing.T, d *Database) {
	const ahead = uint64(4e15)
	d.Each(t, d.Recipes, func(t *testing.T, params, database string) {
		if params != "recipe=optimistic" {
			params += "&tokens=durable"
		}
		d.Exec(t, database, fmt.Sprintf("UPDATE holdfast_floor SET token = GREATEST(token, %d)", ahead))
		s := d.Store(t, database, params)
		last := ahead
		for range 3 {
			g, _ := Must(t, s, "durable", driver.Exclusive, time.Minute)
			if g.Token <= last {
				t.Errorf("token %d after %d", g.Token, last)
			}
			Shown(t, s, g)
			last = g.Token
			Release(t, s, g)
		}
		if params == "recipe=optimistic" {
			return
		}
		g, a := Must(t, s, "durable", driver.Exclusive, time.Minute)
		d.Terminate(t, d.Pool(t, database), s, g)
		a.AwaitLoss(t)
		// MySQL closes a connection before it releases what the session held.
		r, _ := Request("durable", driver.Exclusive, time.Minute)
		r.Wait = true
		next, err := s.Acquire(t.Context(), r)
		check(t, err)
		if next.Token <= g.Token {
			t.Errorf("token %d after %d, whose holder was killed", next.Token, g.Token)
		}
		Release(t, s, next)
	})
}

// leasesExpireAfterClockSetBack requires that leases of a dead client expire although the server's clock was set back
// by an hour meanwhile.
func leasesExpireAfterClockSetBack(t *testing.T, d *Database) {
	database := d.Create(t)
	s := d.Store(t, database, "recipe=optimistic")
	gone := d.Store(t, database, "recipe=optimistic")
	Must(t, gone, "back", 2, time.Second)
	g, _ := Must(t, gone, "back", 2, time.Minute)
	check(t, gone.Release(t.Context(), g, time.Second)) // the grant stands for a second
	Close(t, gone)
	d.moveDeadlines(t, database, 2, time.Hour)
	freed(t, s, "back")
}

// Refuses requires that the store refuses missing tables, and that no error shows a password; bad is
// a malformed URL with the password sEcReT.
func Refuses(t *testing.T, d *Database, bad string) {
	// The database has no tables.
	s := d.Store(t, d.Bare(t), "recipe=optimistic")
	r, _ := Request("x", driver.Exclusive, time.Minute)
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), "holdfast init") {
		t.Errorf("without tables: %v", err)
	}
	if _, err := s.Put(t.Context(), "k", nil, ""); s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), "holdfast init") {
		t.Errorf("a value without tables: %v", err)
	}
	// The error must not show the password.
	if _, err := d.Open(context.Background(), bad, ""); err == nil || strings.Contains(err.Error(), "sEcReT") {
		t.Errorf("a bad URL: %v", err)
	}
}

// rowsAreRemoved requires that the optimistic recipe removes rows of unused names, and that tokens of
// a name rise through the removal.
func rowsAreRemoved(t *testing.T, d *Database) {
	database := d.Create(t)
	s := d.Store(t, database, "recipe=optimistic")
	last := map[string]uint64{}
	for i := range 250 {
		name := fmt.Sprintf("row-%d", i)
		g, _ := Must(t, s, name, driver.Exclusive, time.Minute)
		last[name] = g.Token
		Release(t, s, g)
	}
	kept, _ := Must(t, s, "kept", driver.Exclusive, time.Minute)
	check(t, s.Sweep(t.Context(), 0))
	var n int
	if err := d.Pool(t, database).QueryRow("SELECT COUNT(*) FROM holdfast_row").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows are left (%v), want only the held row", n, err)
	}
	for name, token := range last {
		g, _ := Must(t, s, name, driver.Exclusive, time.Minute)
		if g.Token <= token {
			t.Errorf("%s: token %d after %d", name, g.Token, token)
		}
		Release(t, s, g)
	}
	Release(t, s, kept)
}
