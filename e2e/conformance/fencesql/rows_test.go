package fencesql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/optimistic"
	"github.com/holdfast-go/holdfast/sequence"
)

type balance struct {
	Amount int64
	Note   string
}

func rows(d database, db optimistic.Queryer) optimistic.Rows[balance] {
	return optimistic.Rows[balance]{
		DB: db, Dialect: d.dialect, Table: "balances", Key: "id", Version: "version", Columns: []string{"amount", "note"},
		Fields: func(b *balance) []any { return []any{&b.Amount, &b.Note} },
	}
}

// TestRowsLoseNoUpdate: concurrent updates of a row of a user's table are all applied.
func TestRowsLoseNoUpdate(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			must(t, db, "CREATE TABLE balances (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL, note VARCHAR(99) NOT NULL, version BIGINT NOT NULL)")
			must(t, db, "INSERT INTO balances VALUES (17, 1000, '', 0)")
			accounts := rows(d, db)
			const workers, each = 4, 10
			var conflicts atomic.Int64
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range each {
						err := accounts.Update(t.Context(), 17, func(_ context.Context, b *balance) error {
							b.Amount, b.Note = b.Amount-1, "it's paid"
							return nil
						}, optimistic.OnConflict(func(context.Context, optimistic.Conflict) { conflicts.Add(1) }))
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b, version, err := accounts.Get(t.Context(), 17)
			if err != nil || b != (balance{1000 - workers*each, "it's paid"}) || version != workers*each {
				t.Errorf("%+v, version %d, %v", b, version, err)
			}
			t.Logf("%d conflicts", conflicts.Load())

			// A write of equal content makes a new version. A write of an old version is refused.
			if err := accounts.Put(t.Context(), 17, b, version); err != nil {
				t.Error(err)
			}
			for what, old := range map[string]int64{"old": version, "later": version + 2} {
				if err := accounts.Put(t.Context(), 17, b, old); !errors.Is(err, optimistic.ErrConflict) {
					t.Errorf("%s version: %v, want ErrConflict", what, err)
				}
			}
			if err := accounts.Put(t.Context(), 18, b, 0); !errors.Is(err, optimistic.ErrConflict) {
				t.Errorf("Put of no row: %v, want ErrConflict", err)
			}
			if _, _, err := accounts.Get(t.Context(), 18); !errors.Is(err, optimistic.ErrNotExist) {
				t.Errorf("Get of no row: %v, want ErrNotExist", err)
			}

			// In a transaction of the caller, Put succeeds, and Update is refused.
			tx, err := db.BeginTx(t.Context(), nil)
			check(t, err)
			if err := rows(d, tx).Put(t.Context(), 17, balance{0, "rolled back"}, version+1); err != nil {
				t.Error(err)
			}
			if err := rows(d, tx).Update(t.Context(), 17, nil); !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("Update in a transaction: %v, want ErrInvalid", err)
			}
			check(t, tx.Rollback())
			if b, _, err := accounts.Get(t.Context(), 17); err != nil || b.Note != "it's paid" {
				t.Errorf("after a rollback: %+v, %v", b, err)
			}
		})
	}
}

// TestRowsRefuseBadTables: an unusable table is refused with the reason, and never written.
func TestRowsRefuseBadTables(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			// TEXT has no exact comparison everywhere, and a fraction or a time has no
			// successor.
			for i, kind := range []string{"VARCHAR(20)", "DOUBLE PRECISION", "TIMESTAMP", "DECIMAL(10,2)"} {
				table := fmt.Sprintf("bad%d", i)
				must(t, db, "CREATE TABLE "+table+" (id BIGINT PRIMARY KEY, amount BIGINT, note VARCHAR(99), version "+kind+")")
				bad := rows(d, db)
				bad.Table = table
				err := bad.Update(t.Context(), 1, func(context.Context, *balance) error { t.Error("it ran"); return nil })
				if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "version") || !strings.Contains(err.Error(), "integer") {
					t.Errorf("a version of type %s: %v", kind, err)
				}
			}
			must(t, db, "CREATE TABLE balances (id BIGINT, amount BIGINT, note VARCHAR(99), version BIGINT)")
			must(t, db, "INSERT INTO balances VALUES (1, 1, 'a', NULL), (2, NULL, 'b', 1), (3, 1, 'c', 5), (3, 2, 'd', 5)")
			good := rows(d, db)
			for what, test := range map[string]struct {
				change func(*optimistic.Rows[balance])
				key    any
				says   string
			}{
				"NULL version":    {func(*optimistic.Rows[balance]) {}, 1, "NULL"},
				"NULL column":     {func(*optimistic.Rows[balance]) {}, 2, "NULL"},
				"key not unique":  {func(*optimistic.Rows[balance]) {}, 3, "not unique"},
				"no such table":   {func(r *optimistic.Rows[balance]) { r.Table = "nothing" }, 3, "nothing"},
				"no such column":  {func(r *optimistic.Rows[balance]) { r.Columns[0] = "nothing" }, 3, "nothing"},
				"no such version": {func(r *optimistic.Rows[balance]) { r.Version = "nothing" }, 3, "nothing"},
				"injection":       {func(r *optimistic.Rows[balance]) { r.Table = "balances; DROP TABLE x" }, 3, "letters"},
				"no key":          {func(r *optimistic.Rows[balance]) { r.Key = "" }, 3, "letters"},
				"no dialect":      {func(r *optimistic.Rows[balance]) { r.Dialect = 0 }, 3, "dialect"},
				"no DB":           {func(r *optimistic.Rows[balance]) { r.DB = nil }, 3, "DB"},
				"no columns":      {func(r *optimistic.Rows[balance]) { r.Columns = nil }, 3, "Columns"},
			} {
				r := good
				r.Columns = []string{"amount", "note"}
				test.change(&r)
				err := r.Update(t.Context(), test.key, func(context.Context, *balance) error { return nil })
				if err == nil || errors.Is(err, optimistic.ErrConflict) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("%s: %v, want an error with %q", what, err, test.says)
				}
			}
		})
	}
}

// TestSegmentTableIsShared: the usual table of segments works unchanged, beside another
// program that draws from it.
func TestSegmentTableIsShared(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			must(t, db, "CREATE TABLE segment_id (biz_code VARCHAR(64) PRIMARY KEY, max_id BIGINT NOT NULL, version BIGINT NOT NULL)")
			must(t, db, "INSERT INTO segment_id VALUES ('order', 100, 3)")
			ids, err := sequence.New(sequence.Table{DB: db, Dialect: d.dialect}, "order", sequence.Blocks(10, 10))
			check(t, err)
			if id, err := ids.Next(t.Context()); id != 101 || err != nil {
				t.Errorf("%d, %v; want 101", id, err)
			}
			must(t, db, "UPDATE segment_id SET max_id = max_id + 1000, version = version + 1 WHERE biz_code = 'order'")
			var last int64
			for range 30 {
				id, err := ids.Next(t.Context())
				check(t, err)
				if id > 110 && id <= 1110 || id <= last {
					t.Errorf("%d after %d is not this program's", id, last)
				}
				last = id
			}
			missing, err := sequence.New(sequence.Table{DB: db, Dialect: d.dialect}, "nothing")
			check(t, err)
			if _, err := missing.Next(t.Context()); !errors.Is(err, optimistic.ErrNotExist) {
				t.Errorf("no row: %v, want ErrNotExist", err)
			}
			wrong, err := sequence.New(sequence.Table{DB: db, Dialect: d.dialect, Name: "nothing"}, "order")
			check(t, err)
			if _, err := wrong.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing") {
				t.Errorf("no table: %v", err)
			}
		})
	}
}

// TestRowsRefuseClippingSessions: a session of MySQL may clip numbers or commit nothing. Rows and sequences
// write nothing there, and return the reason. The server's error for a number that its column does not take
// is definite.
func TestRowsRefuseClippingSessions(t *testing.T) {
	strict := mariadb(t, "")
	must(t, strict, "CREATE TABLE segment_id (biz_code VARCHAR(64) PRIMARY KEY, max_id INT NOT NULL, version TINYINT NOT NULL)")
	must(t, strict, "INSERT INTO segment_id VALUES ('large', 2147483640, 0), ('versions', 0, 127), ('order', 0, 0)")
	var schema string
	check(t, strict.QueryRow("SELECT DATABASE()").Scan(&schema))
	table := func(db optimistic.Queryer) sequence.Table { return sequence.Table{DB: db, Dialect: fence.MySQL} }
	for _, name := range []string{"large", "versions"} {
		end, err := table(strict).Reserve(t.Context(), name, 100)
		if !errors.Is(err, holdfast.ErrRefused) || errors.Is(err, optimistic.ErrUnknown) || !strings.Contains(err.Error(), "Out of range") {
			t.Errorf("%s: %d, %v; want refused, out of range", name, end, err)
		}
	}
	s := mariaServer.s
	for params, says := range map[string]string{
		"?sql_mode=%27%27": "sql_mode",
		"?sql_mode=%27NO_ENGINE_SUBSTITUTION,ANSI_QUOTES%27": "sql_mode",
		"?autocommit=0": "autocommit",
	} {
		db := connect(t, "mysql", s.DSN(schema, params))
		for _, name := range []string{"large", "versions", "order"} {
			end, err := table(db).Reserve(t.Context(), name, 100)
			if !errors.Is(err, holdfast.ErrRefused) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s, %s: %d, %v; want refused for %s", params, name, end, err, says)
			}
		}
		conn, err := db.Conn(t.Context())
		check(t, err)
		if end, err := table(conn).Reserve(t.Context(), "order", 100); !errors.Is(err, holdfast.ErrRefused) {
			t.Errorf("%s, a connection: %d, %v; want refused", params, end, err)
		}
		_ = conn.Close()
	}
	var last, version int64
	if err := strict.QueryRow("SELECT SUM(max_id), SUM(version) FROM segment_id").Scan(&last, &version); err != nil || last != 2147483640 || version != 127 {
		t.Errorf("max_id %d, version %d, %v; want them unchanged", last, version, err)
	}

	// In a transaction the caller commits.
	db := connect(t, "mysql", s.DSN(schema, "?autocommit=0"))
	must(t, strict, "CREATE TABLE balances (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL, note VARCHAR(99) NOT NULL, version BIGINT NOT NULL)")
	must(t, strict, "INSERT INTO balances VALUES (17, 1000, '', 0)")
	tx, err := db.BeginTx(t.Context(), nil)
	check(t, err)
	accounts := rows(database{dialect: fence.MySQL}, tx)
	if err := accounts.Put(t.Context(), 17, balance{1, "paid"}, 0); err != nil {
		t.Error(err)
	}
	check(t, tx.Commit())
	if _, version, err := rows(database{dialect: fence.MySQL}, strict).Get(t.Context(), 17); err != nil || version != 1 {
		t.Errorf("version %d, %v; want 1", version, err)
	}
}

// TestGuardRefusesClippedTokens: a table of tokens whose column clips them, outside of strict mode, is an
// error. Otherwise every token would pass.
func TestGuardRefusesClippedTokens(t *testing.T) {
	db := mariadb(t, "?sql_mode=%27%27")
	must(t, db, "CREATE TABLE holdfast_fence (resource VARBINARY(512) NOT NULL PRIMARY KEY, token INT NOT NULL, checks BIGINT NOT NULL DEFAULT 0)")
	guard := fence.SQL{Dialect: fence.MySQL}.Guard(db, nil)
	if err := guard.Raise(t.Context(), "r", 1<<50); !errors.Is(err, fence.ErrUnavailable) {
		t.Errorf("%v; want ErrUnavailable", err)
	}
}
