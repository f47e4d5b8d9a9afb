//go:build linux || darwin

package lab

import (
	"database/sql"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/servers"
)

var onPostgres = holdfastOn(func(s *stage) { s.postgres() }, long)

// postgres starts PostgreSQL, and makes it the store of the clients' Lockers. It returns a pool
// of connections with a table that has one row.
func (s *stage) postgres() *sql.DB {
	start := func(string) (*servers.Postgres, error) { return servers.StartPostgres(s.ctx, "fsync=off") }
	p := sharedServer(s, "postgres", start, func(p *servers.Postgres) { _ = p.Close() })
	s.url = func(a Actor) string {
		return "postgres://postgres@" + s.link(a, p.Address) + "/postgres?sslmode=disable&recipe=advisory"
	}
	return s.table("pgx", p.URL("postgres", ""), "(1, 'tea', 5)")
}

// mariadb starts MariaDB as postgres starts PostgreSQL. The table has three rows.
func (s *stage) mariadb() *sql.DB {
	start := func(string) (*servers.MySQL, error) {
		return servers.StartMariaDB(s.ctx, "--innodb-flush-log-at-trx-commit=0")
	}
	m := sharedServer(s, "mariadb", start, func(m *servers.MySQL) { _ = m.Close() })
	s.url = func(a Actor) string { return "mysql://root@" + s.link(a, m.Address) + "/test?recipe=named" }
	return s.table("mysql", m.DSN("test", ""), "(1, 'tea', 5), (2, 'mug', 5), (3, 'pot', 5)")
}

// table returns a pool of connections with a new table.
func (s *stage) table(driver, dsn, rows string) *sql.DB {
	db, err := sql.Open(driver, dsn)
	s.must(err)
	s.cleanUp(func() { _ = db.Close() })
	for _, q := range []string{"DROP TABLE IF EXISTS item", "CREATE TABLE item (id int PRIMARY KEY, name varchar(9), stock int)", "INSERT INTO item VALUES " + rows} {
		_, err := db.ExecContext(s.ctx, q)
		s.must(err)
	}
	return db
}

// lockRow starts a transaction that locks the row of a name. It returns the transaction's
// commit, and a channel for the error of the request, which may have to wait.
func (s *stage) lockRow(db *sql.DB, name string) (commit func() error, locked <-chan error) {
	tx, err := db.BeginTx(s.ctx, nil)
	s.must(err)
	s.cleanUp(func() { _ = tx.Rollback() })
	done := make(chan error, 1)
	go func() {
		var stock int
		done <- tx.QueryRowContext(s.ctx, "SELECT stock FROM item WHERE name = '"+name+"' FOR UPDATE").Scan(&stock)
	}()
	return tx.Commit, done
}

// otherRows plays a story in which A locks the row tea and B the row mug, both by the
// column name.
func otherRows(s *stage) {
	db := s.mariadb()
	commit, locked := s.lockRow(db, "tea")
	s.must(<-locked)
	s.step(A, "name = 'tea' FOR UPDATE", "1 row")
	s.enter(A, nil)
	s.until("A has locked all rows, and the end of the table", func() bool {
		return s.transactions(db, "COALESCE(MAX(trx_rows_locked), 0)") == 4
	})
	s.note(Server, "locks all 3 rows")
	_, locked = s.lockRow(db, "mug")
	waits := false
	s.until("B has its row, or waits", func() bool {
		select {
		case err := <-locked:
			s.expect(err == nil, fmt.Sprintf("B locks its row: %v", err))
			return true
		default:
		}
		waits = s.transactions(db, "COUNT(CASE WHEN trx_state = 'LOCK WAIT' THEN 1 END)") > 0
		return waits
	})
	if !waits {
		s.step(B, "name = 'mug' FOR UPDATE", "1 row")
		return
	}
	s.step(B, "name = 'mug' FOR UPDATE", "waits for A")
	s.leave(A)
	s.must(commit())
	s.step(A, "COMMIT", "done")
	err := <-locked
	s.expect(err == nil, fmt.Sprintf("B locks its row after A: %v", err)) // InnoDB waits for at most 50 s
	s.note(B, "has its row at last")
	s.violate("B needs another row than A, and waits until A is done.")
}

// transactions returns a number about InnoDB's transactions. The server reads their list
// anew only if no client has read it for 0.1 s, so transactions first waits.
func (s *stage) transactions(db *sql.DB, number string) (n int) {
	_, err := db.ExecContext(s.ctx, "DO SLEEP(0.2)")
	s.must(err)
	s.must(db.QueryRowContext(s.ctx, "SELECT "+number+" FROM information_schema.innodb_trx").Scan(&n))
	return n
}

// conn takes a connection out of the pool until the play ends.
func (s *stage) conn(db *sql.DB) *sql.Conn {
	c, err := db.Conn(s.ctx)
	s.must(err)
	s.cleanUp(func() { _ = c.Close() })
	return c
}

// query sends a query and returns its answer of one value. It records both, with text in
// place of the query.
func (s *stage) query(a Actor, text string, c *sql.Conn, query string) string {
	var v any
	s.must(c.QueryRowContext(s.ctx, query).Scan(&v))
	s.step(a, text, v)
	return fmt.Sprint(v)
}

// sellItem starts the sale of one item: the client reads the stock. The returned write writes
// the stock less one.
func (s *stage) sellItem(a Actor, c *sql.Conn) (write func()) {
	stock := s.query(a, "SELECT stock", c, "SELECT stock FROM item WHERE id = 1")
	return func() {
		var left int
		_, err := fmt.Sscan(stock, &left)
		s.must(err)
		_, err = c.ExecContext(s.ctx, "UPDATE item SET stock = $1 WHERE id = 1", left-1)
		s.must(err)
		s.step(a, fmt.Sprintf("UPDATE: stock is %d", left-1), "1 row")
	}
}

// checkStock records a violation unless the table shows that two of five items are sold.
func (s *stage) checkStock(c *sql.Conn) {
	var left int
	s.must(c.QueryRowContext(s.ctx, "SELECT stock FROM item").Scan(&left))
	if left != 3 {
		s.violate("Two items are sold, but the stock is only one less.")
	}
}

// unlockElsewhere plays a client that unlocks on another connection of its pool.
func unlockElsewhere(s *stage) {
	db := s.postgres()
	one, two, other := s.conn(db), s.conn(db), s.conn(db)
	const lock = "SELECT pg_try_advisory_lock(1)"
	s.expect(s.query(A, "pg_try_advisory_lock(1)", one, lock) == "true", "A gets the lock")
	s.enter(A, nil)
	s.note(A, "is done; takes another conn")
	s.leave(A)
	s.query(A, "pg_advisory_unlock(1)", two, "SELECT pg_advisory_unlock(1)")
	if s.query(B, "pg_try_advisory_lock(1)", other, lock) == "false" {
		s.violate("A's pool keeps the lock, which no client has: B never gets it.")
	}
}

// unlockElsewhereRight plays the same story with holdfast.
func unlockElsewhereRight(s *stage) {
	onPostgres.on(s)
	s.expect(s.tryLock(A, long), "A gets the lock")
	s.note(A, "is done")
	s.unlock(A)
	if !s.tryLock(B, long) {
		s.violate("A has released the lock, and B does not get it.")
	}
	s.survive("The lock has one connection from its grant to its release.")
}

// updateAlone plays two clients that lock a row outside a transaction.
func updateAlone(s *stage) {
	db := s.postgres()
	for _, a := range []Actor{A, B} {
		c := s.conn(db)
		// With NOWAIT the server returns an error for a locked row.
		_, err := c.ExecContext(s.ctx, "SELECT id FROM item WHERE id = 1 FOR UPDATE NOWAIT")
		s.must(err)
		s.step(a, "SELECT ... FOR UPDATE", "1 row")
		s.enter(a, nil)
		if a == A {
			s.note(Server, "the lock ends")
		}
	}
}

// otherRowsRight plays the same story with holdfast.
func otherRowsRight(s *stage) {
	s.mariadb()
	s.run.Apart = true
	if !s.tryLockName(A, "tea", long) || !s.tryLockName(B, "mug", long) {
		s.violate("A and B need different names, and one waits for the other.")
	}
	s.survive("Each name is a lock of its own: B does not wait for A.")
}

// loseUpdate plays two clients that change one value without a lock.
func loseUpdate(s *stage) {
	db := s.postgres()
	a, b := s.conn(db), s.conn(db)
	writeA, writeB := s.sellItem(A, a), s.sellItem(B, b)
	writeA()
	writeB()
	s.checkStock(a)
}

// loseUpdateRight plays the same story with holdfast.
func loseUpdateRight(s *stage) {
	db := s.postgres()
	a, b := s.conn(db), s.conn(db)
	s.expect(s.tryLock(A, long), "A gets the lock")
	write := s.sellItem(A, a)
	s.expect(!s.tryLock(B, long), "B waits")
	write()
	s.unlock(A)
	s.expect(s.tryLock(B, long), "B gets the lock")
	s.sellItem(B, b)()
	s.checkStock(a)
	s.survive("B reads what A wrote: two are sold, and the stock is two less.")
}
