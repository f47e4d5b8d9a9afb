package fencesql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	msqlite "modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
)

// subject is a guard under test: SQL and Column behave in the same way.
type subject struct {
	name  string
	check func(ctx context.Context, tx *sql.Tx, resource string, token uint64) error
}

func each(t *testing.T, run func(t *testing.T, d database, db *sql.DB, s subject)) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			table := fence.SQL{Dialect: d.dialect}
			for range 2 { // the statements are idempotent
				check(t, table.CreateTable(t.Context(), db))
			}
			must(t, db, accounts(d.dialect))
			column := fence.Column{Dialect: d.dialect, Table: "accounts", Key: "id", Column: "fence"}
			for _, s := range []subject{
				{"SQL", table.Check},
				{"Column", func(ctx context.Context, tx *sql.Tx, resource string, token uint64) error {
					return column.Check(ctx, tx, []byte(resource), token)
				}},
			} {
				t.Run(s.name, func(t *testing.T) {
					must(t, db, "DELETE FROM accounts")
					run(t, d, db, s)
				})
			}
		})
	}
}

// accounts returns the statement for a user's table with a column for the token.
func accounts(d fence.Dialect) string {
	kind := map[fence.Dialect]string{fence.MySQL: "VARBINARY(512)", fence.PostgreSQL: "BYTEA", fence.SQLite: "BLOB"}[d]
	return "CREATE TABLE accounts (id " + kind + " PRIMARY KEY, fence BIGINT)"
}

// account creates the row that Column guards. The guard SQL creates its own row, so this also tests the
// first write of a resource.
func account(t *testing.T, d database, db *sql.DB, resource string) {
	t.Helper()
	must(t, db, "INSERT INTO accounts (id) VALUES ("+arg(d, 1)+")", []byte(resource))
}

func arg(d database, n int) string {
	if d.dialect == fence.PostgreSQL {
		return fmt.Sprintf("$%d", n)
	}
	return "?"
}

func must(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func begin(t *testing.T, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	check(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// again reports whether the database requests a repetition of the whole transaction.
func again(err error) bool {
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	var lite *msqlite.Error
	switch {
	case errors.As(err, &my):
		return my.Number == 1213 || my.Number == 1020 // deadlock; the record has changed
	case errors.As(err, &pg):
		return pg.Code == "40001" || pg.Code == "40P01"
	case errors.As(err, &lite):
		return lite.Code()&0xff == 5 // SQLITE_BUSY
	}
	return false
}

func stale(err error, token, newest uint64) error {
	var s *fence.StaleError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &s) {
		return fmt.Errorf("got error %v, want ErrStale", err)
	}
	if s.Token != token || s.Newest != newest {
		return fmt.Errorf("got token %d, newest %d; want %d, %d", s.Token, s.Newest, token, newest)
	}
	return nil
}

func TestStaleTokensAreRefusedInSequence(t *testing.T) {
	each(t, func(t *testing.T, d database, db *sql.DB, s subject) {
		account(t, d, db, "r")
		for _, step := range []struct {
			what          string
			token, newest uint64 // newest of the refusal; 0: accepted
			commit        bool
		}{
			{"rolled back", 9, 0, false},
			{"first", 5, 0, true},
			{"equal", 5, 0, true},
			{"smaller", 4, 5, true},
			{"larger", 6, 0, true},
			{"rolled back", 8, 0, false},
			{"smaller than what was rolled back", 7, 0, true},
			{"largest", 1<<63 - 1, 0, true},
			{"any other", 1<<63 - 2, 1<<63 - 1, true},
		} {
			tx := begin(t, db, sql.LevelDefault)
			err := s.check(t.Context(), tx, "r", step.token)
			if step.newest != 0 {
				if err := stale(err, step.token, step.newest); err != nil {
					t.Fatalf("%s: %v", step.what, err)
				}
			} else if err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
			end := tx.Rollback
			if step.commit { // a committed refusal changes nothing
				end = tx.Commit
			}
			check(t, end())
		}
	})
}

// TestNamesCompareByteByByte uses names that are equal in text collations, and the longest name.
func TestNamesCompareByteByByte(t *testing.T) {
	each(t, func(t *testing.T, d database, db *sql.DB, s subject) {
		names := []string{"a", "A", "a ", " a", "ä", "a\u0308", "a/b", "%", strings.Repeat("x", 511), strings.Repeat("x", 512), "日本"}
		for i, name := range names {
			account(t, d, db, name)
			tx := begin(t, db, sql.LevelDefault)
			// The tokens fall, so the check fails if the database treats two names as
			// equal.
			if err := s.check(t.Context(), tx, name, uint64(100-i)); err != nil {
				t.Errorf("%q: %v", name, err)
			}
			check(t, tx.Commit())
		}
	})
}

func TestColumnWithoutRowIsRefused(t *testing.T) {
	each(t, func(t *testing.T, d database, db *sql.DB, s subject) {
		err := s.check(t.Context(), begin(t, db, sql.LevelDefault), "nothing", 5)
		if s.name == "Column" != errors.Is(err, fence.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
}

// TestOpenTransactionHoldsOthers: a second transaction waits while the first one is open,
// and then finds its result. That is also true if the second one has taken its snapshot
// before.
func TestOpenTransactionHoldsOthers(t *testing.T) {
	each(t, func(t *testing.T, d database, db *sql.DB, s subject) {
		if !d.isolates {
			t.Skip("one writer at a time")
		}
		n := 0
		for _, level := range d.levels {
			for _, test := range []struct {
				what                  string
				before, first, second uint64 // before: 0 is a resource never written
				commit, snapshot      bool
				newest                uint64 // of the second's refusal
			}{
				{"larger commits", 5, 10, 7, true, false, 10},
				{"larger commits, equal waits", 5, 10, 5, true, false, 10},
				{"larger commits, snapshot", 5, 10, 7, true, true, 10},
				{"larger commits, equal waits, snapshot", 5, 10, 5, true, true, 10},
				{"equal commits", 5, 5, 5, true, false, 0},
				{"larger waits", 5, 10, 11, true, false, 0},
				{"larger rolls back", 5, 10, 7, false, false, 0},
				{"larger rolls back, snapshot", 5, 10, 7, false, true, 0},
				{"first of all commits", 0, 10, 7, true, false, 10},
				{"first of all commits, snapshot", 0, 10, 7, true, true, 10},
				{"first of all rolls back", 0, 10, 7, false, false, 0},
			} {
				t.Run(fmt.Sprintf("%v/%s", level, test.what), func(t *testing.T) {
					n++
					r := fmt.Sprintf("open %d", n)
					account(t, d, db, r)
					if test.before != 0 {
						tx := begin(t, db, level)
						check(t, s.check(t.Context(), tx, r, test.before))
						check(t, tx.Commit())
					}
					second := begin(t, db, level)
					if test.snapshot {
						// A careless program reads before the check.
						var rows int
						for _, table := range []string{"accounts", fence.DefaultTable} {
							if level == sql.LevelSerializable && d.dialect == fence.MySQL {
								continue // a read takes locks there, and the first transaction would wait
							}
							check(t, second.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&rows))
						}
					}
					first := begin(t, db, level)
					check(t, s.check(t.Context(), first, r, test.first))
					done := make(chan error, 1)
					go func() { done <- s.check(t.Context(), second, r, test.second) }()
					select {
					case err := <-done:
						t.Fatalf("the second did not wait: %v", err)
					case <-time.After(100 * time.Millisecond):
					}
					end := first.Rollback
					if test.commit {
						end = first.Commit
					}
					check(t, end())
					err := <-done
					if err == nil {
						err = second.Commit()
					}
					switch {
					case test.commit && again(err) && level != sql.LevelReadCommitted:
						// The database refuses the check with another error. The next try
						// finds the token.
						t.Logf("the database requests a retry: %v", err)
						if !errors.Is(err, fence.ErrUnavailable) && test.newest != 0 {
							t.Errorf("it does not wrap ErrUnavailable: %v", err)
						}
					case test.newest != 0:
						if err := stale(err, test.second, test.newest); err != nil {
							t.Error(err)
						}
					case err != nil:
						t.Error(err)
					}
				})
			}
		}
	})
}

// TestConcurrentTransactionsKeepTokenOrder: many holders have tokens of all ages, and some
// roll back. Each accepted transaction records its token under the next number of its
// resource, which it reads itself. Two overlapping transactions would use the same number,
// and so would one that does not see the last entry. In the order of the numbers, tokens
// never fall.
func TestConcurrentTransactionsKeepTokenOrder(t *testing.T) {
	each(t, func(t *testing.T, d database, db *sql.DB, s subject) {
		if s.name == "SQL" {
			must(t, db, "CREATE TABLE journal (resource VARCHAR(99), n BIGINT, token BIGINT, PRIMARY KEY (resource, n))")
		}
		for _, level := range d.levels {
			t.Run(level.String(), func(t *testing.T) {
				resources := []string{fmt.Sprintf("%s %v 0", s.name, level), fmt.Sprintf("%s %v 1", s.name, level)}
				for _, r := range resources {
					account(t, d, db, r)
				}
				var accepted, refused, repeated atomic.Int64
				var clock atomic.Uint64 // the last token; holders lag behind it
				clock.Store(10)
				one := func(r string) error {
					tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
					if err != nil {
						return err
					}
					defer func() { _ = tx.Rollback() }()
					token := clock.Add(uint64(rand.IntN(2))) - uint64(rand.IntN(4))
					if err := s.check(t.Context(), tx, r, token); err != nil {
						return err
					}
					var last sql.NullInt64
					if err := tx.QueryRowContext(t.Context(), "SELECT MAX(n) FROM journal WHERE resource = "+arg(d, 1), r).Scan(&last); err != nil {
						return err
					}
					if rand.IntN(4) == 0 {
						time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
					}
					if _, err := tx.ExecContext(t.Context(), "INSERT INTO journal VALUES ("+arg(d, 1)+", "+arg(d, 2)+", "+arg(d, 3)+")", r, last.Int64+1, int64(token)); err != nil {
						return err
					}
					if rand.IntN(8) == 0 {
						return nil // rolled back
					}
					if err := tx.Commit(); err != nil {
						return err
					}
					accepted.Add(1)
					return nil
				}
				var wg sync.WaitGroup
				for worker := range 8 {
					wg.Go(func() {
						for i := range 60 {
							err := one(resources[(worker+i)%2])
							switch {
							case err == nil:
							case errors.Is(err, fence.ErrStale):
								refused.Add(1)
							case again(err):
								repeated.Add(1)
							default:
								t.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				for _, r := range resources {
					rows, err := db.QueryContext(t.Context(), "SELECT n, token FROM journal WHERE resource = "+arg(d, 1)+" ORDER BY n", r)
					check(t, err)
					var want, n, last, token int64
					for rows.Next() {
						check(t, rows.Scan(&n, &token))
						if want++; n != want || token < last {
							t.Errorf("%s: entry %d, want %d; token %d after %d", r, n, want, token, last)
						}
						last = token
					}
					check(t, errors.Join(rows.Err(), rows.Close()))
				}
				t.Logf("%d accepted, %d stale, %d to be tried again", accepted.Load(), refused.Load(), repeated.Load())
				if accepted.Load() < 20 || refused.Load() == 0 {
					t.Error("too few transactions to prove anything")
				}
			})
		}
	})
}

// TestGuardRunsTransaction: the guard begins a transaction, checks the token, and commits or rolls back.
func TestGuardRunsTransaction(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			table := fence.SQL{Dialect: d.dialect, Table: "tokens"}
			check(t, table.CreateTable(t.Context(), db))
			must(t, db, "CREATE TABLE notes (what VARCHAR(99))")
			guard := table.Guard(db, nil)
			note := func(what string, fail error) func(context.Context) error {
				return func(ctx context.Context) error {
					if _, err := fence.Tx(ctx).ExecContext(ctx, "INSERT INTO notes VALUES ("+arg(d, 1)+")", what); err != nil {
						t.Error(err)
					}
					return fail
				}
			}
			failed := errors.New("failed")
			check(t, guard.Write(t.Context(), "r", 5, note("kept", nil)))
			if err := guard.Write(t.Context(), "r", 9, note("failed", failed)); err != failed {
				t.Errorf("got %v, want the write's own error", err)
			}
			func() {
				defer func() { _ = recover() }()
				_ = guard.Write(t.Context(), "r", 9, func(ctx context.Context) error { _ = note("panicked", nil)(ctx); panic("boom") })
			}()
			ctx, cancel := context.WithCancel(t.Context())
			err := guard.Write(ctx, "r", 9, func(ctx context.Context) error { _ = note("cancelled", nil)(ctx); cancel(); return nil })
			if !errors.Is(err, context.Canceled) || !errors.Is(err, fence.ErrUnavailable) {
				t.Errorf("the context ended before the commit: %v", err)
			}
			if err := stale(guard.Write(t.Context(), "r", 4, note("stale", nil)), 4, 5); err != nil {
				t.Error(err)
			}
			if err := guard.Write(t.Context(), "r", 6, nil); err != nil {
				t.Errorf("without a write: %v", err)
			}
			if n, err := table.Newest(t.Context(), db, "r"); n != 6 || err != nil {
				t.Errorf("newest is %d, %v", n, err)
			}
			if n, err := table.Newest(t.Context(), db, "other"); n != 0 || err != nil {
				t.Errorf("newest of a resource never written is %d, %v", n, err)
			}
			var n int
			var what string
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*), MIN(what) FROM notes").Scan(&n, &what); err != nil || n != 1 || what != "kept" {
				t.Errorf("%d notes, %q, %v; want 1, kept", n, what, err)
			}
		})
	}
}

// TestGuardPassesFencetest tests both guards, and two processes that use them.
func TestGuardPassesFencetest(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			table := fence.SQL{Dialect: d.dialect}
			check(t, table.CreateTable(t.Context(), db))
			column := fence.Column{Dialect: d.dialect, Table: "accounts", Key: "name", Column: "fence"}
			for name, guard := range map[string]fence.Guard[fence.Func]{"SQL": table.Guard(db, nil), "Column": column.Guard(db, nil)} {
				t.Run(name, func(t *testing.T) {
					must(t, db, "DROP TABLE IF EXISTS accounts")
					must(t, db, "CREATE TABLE accounts (name VARCHAR(99) PRIMARY KEY, fence BIGINT, content VARCHAR(999) NOT NULL)")
					made := map[string]bool{}
					fencetest.Run(t, fencetest.Harness[fence.Func]{
						Guard: guard,
						Resource: func(t testing.TB, n int) string {
							r := fmt.Sprint(name, n)
							if !made[r] {
								if _, err := db.ExecContext(t.Context(), "INSERT INTO accounts VALUES ("+arg(d, 1)+", NULL, '')", r); err != nil {
									t.Fatal(err)
								}
								made[r] = true
							}
							return r
						},
						Write: func(resource, content string) fence.Func {
							return func(ctx context.Context) error {
								_, err := fence.Tx(ctx).ExecContext(ctx, "UPDATE accounts SET content = "+arg(d, 1)+" WHERE name = "+arg(d, 2), content, resource)
								return err
							}
						},
						Read: func(t testing.TB, resource string) string {
							var content string
							check(t, db.QueryRowContext(t.Context(), "SELECT content FROM accounts WHERE name = "+arg(d, 1), resource).Scan(&content))
							return content
						},
						Retry: again,
					})
				})
			}
		})
	}
}

// TestGuardNamesMissingTableOrColumn: a missing table, column or row is an error with the
// statement's reason.
func TestGuardNamesMissingTableOrColumn(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			must(t, db, "CREATE TABLE accounts (id VARCHAR(99) PRIMARY KEY, fence BIGINT)")
			column := fence.Column{Dialect: d.dialect, Table: "accounts", Key: "id", Column: "fence"}
			noTable, noColumn := column, column
			noTable.Table, noColumn.Column = "nothing", "nothing"
			for what, test := range map[string]struct {
				guard fence.Guard[fence.Func]
				want  error
				says  string
			}{
				"no table of tokens": {fence.SQL{Dialect: d.dialect}.Guard(db, nil), fence.ErrUnavailable, "CreateTable of fence.SQL creates the table " + fence.DefaultTable},
				"no table":           {noTable.Guard(db, nil), fence.ErrUnavailable, "nothing"},
				"no column":          {noColumn.Guard(db, nil), fence.ErrUnavailable, "nothing"},
				"no row":             {column.Guard(db, nil), fence.ErrNotExist, "id=r"},
			} {
				_, newest := test.guard.Newest(t.Context(), "r")
				for how, err := range map[string]error{"Raise": test.guard.Raise(t.Context(), "r", 5), "Newest": newest} {
					if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
						t.Errorf("%s: %s: got %v, want %v with %q", what, how, err, test.want, test.says)
					}
				}
			}
		})
	}
}

// TestColumnMustHoldIntegers: the guard refuses a column type that has another order, or in
// which two tokens may be equal. The column stays unchanged.
func TestColumnMustHoldIntegers(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			for i, kind := range []string{"VARCHAR(20)", "DOUBLE PRECISION", "DECIMAL(30,2)"} {
				table := fmt.Sprintf("bad%d", i)
				must(t, db, "CREATE TABLE "+table+" (id VARCHAR(99) PRIMARY KEY, fence "+kind+")")
				must(t, db, "INSERT INTO "+table+" VALUES ('r', 10)")
				guard := fence.Column{Dialect: d.dialect, Table: table, Key: "id", Column: "fence"}.Guard(db, nil)
				_, newest := guard.Newest(t.Context(), "r")
				for how, err := range map[string]error{"Raise(9)": guard.Raise(t.Context(), "r", 9), "Raise(11)": guard.Raise(t.Context(), "r", 11), "Newest": newest} {
					if d.dialect == fence.PostgreSQL && i == 0 && how != "Newest" {
						// The client library sends no integer for such a column.
						if err == nil {
							t.Errorf("a token of type %s: %s is accepted", kind, how)
						}
						continue
					}
					if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), "fence") || !strings.Contains(err.Error(), "integer") {
						t.Errorf("a token of type %s: %s: %v", kind, how, err)
					}
				}
				var content float64
				if err := db.QueryRowContext(t.Context(), "SELECT fence FROM "+table).Scan(&content); err != nil || content != 10 {
					t.Errorf("a token of type %s is %v, %v after the refusals", kind, content, err)
				}
			}
		})
	}
}

// TestCheckWaitEndsWithContext: a check that waits ends with its context. Its error wraps
// the error of the context.
func TestCheckWaitEndsWithContext(t *testing.T) {
	each(t, func(t *testing.T, d database, db *sql.DB, s subject) {
		if !d.isolates {
			t.Skip("one writer at a time")
		}
		account(t, d, db, "wait")
		check(t, s.check(t.Context(), begin(t, db, sql.LevelDefault), "wait", 5))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := s.check(ctx, begin(t, db, sql.LevelDefault), "wait", 6)
		if !errors.Is(err, fence.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// TestManyClientsCreateTheTable requires that CreateTable succeeds although many clients call it at the same
// time.
func TestManyClientsCreateTheTable(t *testing.T) {
	for _, d := range databases(t) {
		t.Run(d.name, func(t *testing.T) {
			db := d.open(t)
			for i := range 5 {
				guard := fence.SQL{Dialect: d.dialect, Table: fmt.Sprintf("tokens_%d", i)}
				sqltest.AtOnce(t, 30, func(ctx context.Context, _ int) error { return guard.CreateTable(ctx, db) })
			}
		})
	}
}
