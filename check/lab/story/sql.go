//go:build linux || darwin

package story

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-go/holdfast/check/servers"
)

// onPostgres is holdfast on PostgreSQL.
var onPostgres = holdfastOn(func(s *Stage) { s.postgres() }, long)

// postgres starts PostgreSQL, and makes it the store of the clients' Lockers. It returns a pool
// of connections with a table that has one row.
func (s *Stage) postgres() *sql.DB {
	p := server(s, "postgres", func(ctx context.Context, _ string) (*servers.Postgres, func(), error) {
		p, err := servers.StartPostgres(ctx, "fsync=off")
		if err != nil {
			return nil, nil, err
		}
		return p, func() { _ = p.Close() }, nil
	})
	s.url = func(a Actor) string {
		return "postgres://postgres@" + s.Link(a, p.Address) + "/postgres?sslmode=disable&recipe=advisory"
	}
	db, err := sql.Open("pgx", p.URL("postgres", ""))
	s.Must(err)
	s.Defer(func() { _ = db.Close() })
	for _, q := range []string{"DROP TABLE IF EXISTS item", "CREATE TABLE item (id int PRIMARY KEY, stock int)", "INSERT INTO item VALUES (1, 5)"} {
		_, err := db.ExecContext(s.ctx, q)
		s.Must(err)
	}
	return db
}

// conn returns a connection of its own.
func (s *Stage) conn(db *sql.DB) *sql.Conn {
	c, err := db.Conn(s.ctx)
	s.Must(err)
	s.Defer(func() { _ = c.Close() })
	return c
}

// query sends a query with one value as its answer, and records it as text.
func (s *Stage) query(a Actor, text string, c *sql.Conn, query string) string {
	var v any
	s.Must(c.QueryRowContext(s.ctx, query).Scan(&v))
	s.Step(a, text, v)
	return fmt.Sprint(v)
}

// sell is a client's way to sell one item: it reads the stock and writes what it computed.
func (s *Stage) sell(a Actor, c *sql.Conn) (write func()) {
	stock := s.query(a, "SELECT stock", c, "SELECT stock FROM item WHERE id = 1")
	return func() {
		var left int
		_, err := fmt.Sscan(stock, &left)
		s.Must(err)
		_, err = c.ExecContext(s.ctx, "UPDATE item SET stock = $1 WHERE id = 1", left-1)
		s.Must(err)
		s.Step(a, fmt.Sprintf("UPDATE: stock is %d", left-1), "1 row")
	}
}

// count expects that two of five items are sold.
func (s *Stage) count(c *sql.Conn) {
	var left int
	s.Must(c.QueryRowContext(s.ctx, "SELECT stock FROM item").Scan(&left))
	if left != 3 {
		s.Violate("Two items are sold, but the stock is only one less.")
	}
}

var sqlStories = []Story{
	{
		Name: "pooled-unlock", Title: "an unlock on another connection of the pool", Mistake: "frees-elsewhere", Server: "PostgreSQL",
		Code:   "db.Query(pg_try_advisory_lock); db.Query(pg_advisory_unlock)",
		Tale:   "The database gives this lock to a connection. Client A has a pool of connections, and the pool takes any of them for each query. The unlock arrives on a connection that does not have the lock, and the one that has it rests in the pool, with the lock.",
		Lesson: "Lock and unlock on one connection, and check what the unlock returns.",
		Wrong: func(s *Stage) {
			db := s.postgres()
			one, two, other := s.conn(db), s.conn(db), s.conn(db)
			const lock = "SELECT pg_try_advisory_lock(1)"
			s.Expect(s.query(A, "pg_try_advisory_lock(1)", one, lock) == "true", "A gets the lock")
			s.Enter(A, nil)
			s.Note(A, "is done; takes another conn")
			s.Leave(A)
			s.query(A, "pg_advisory_unlock(1)", two, "SELECT pg_advisory_unlock(1)")
			if s.query(B, "pg_try_advisory_lock(1)", other, lock) == "false" {
				s.Violate("A's pool keeps the lock, which no client has: B never gets it.")
			}
		},
		Right: func(s *Stage) {
			onPostgres.on(s)
			s.Expect(s.TryLock(A, long), "A gets the lock")
			s.Note(A, "is done")
			s.Unlock(A)
			if !s.TryLock(B, long) {
				s.Violate("A has released the lock, and B does not get it.")
			}
			s.Survive("The lock has one connection from its grant to its release.")
		},
	},
	{
		Name: "for-update-alone", Title: "SELECT ... FOR UPDATE outside a transaction", Mistake: "ends-at-once", Server: "PostgreSQL",
		Code:   "db.Query(SELECT ... FOR UPDATE); work",
		Tale:   "FOR UPDATE locks a row until the transaction ends. Client A has not begun one, so the database makes one of the single query, and the lock ends with it, before A's work begins. Nothing reports that.",
		Lesson: "A row lock lasts as long as its transaction: begin one, work, commit.",
		Wrong: func(s *Stage) {
			db := s.postgres()
			for _, a := range []Actor{A, B} {
				c := s.conn(db)
				// With NOWAIT a locked row is an error.
				s.query(a, "SELECT id ... FOR UPDATE", c, "SELECT id FROM item WHERE id = 1 FOR UPDATE NOWAIT")
				s.Enter(a, nil)
				if a == A {
					s.Note(Server, "ends the lock")
				}
			}
		},
		Right: race(onPostgres, "comes while A works", "A has the lock until it releases it, and B finds it held."),
	},
	{
		Name: "lost-update", Title: "an update that does not check the version", Mistake: "check-then-act", Server: "PostgreSQL",
		Code:   "SELECT stock; UPDATE item SET stock = what I computed",
		Tale:   "Two shops sell one item each. Both read that five are left, and both write that four are left. Two items are sold, and one is missing in the books.",
		Lesson: "Update only the version that was read, or read and write under a lock.",
		Wrong: func(s *Stage) {
			db := s.postgres()
			a, b := s.conn(db), s.conn(db)
			writeA, writeB := s.sell(A, a), s.sell(B, b)
			writeA()
			writeB()
			s.count(a)
		},
		Right: func(s *Stage) {
			db := s.postgres()
			a, b := s.conn(db), s.conn(db)
			s.Expect(s.TryLock(A, long), "A gets the lock")
			write := s.sell(A, a)
			s.Expect(!s.TryLock(B, long), "B waits")
			write()
			s.Unlock(A)
			s.Expect(s.TryLock(B, long), "B gets the lock")
			s.sell(B, b)()
			s.count(a)
			s.Survive("B reads what A has written: two items are sold, two are missing.")
		},
	},
}
