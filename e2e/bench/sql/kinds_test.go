package sql

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/mysqlstore"
	"github.com/holdfast-go/holdfast/pgstore"
)

// locker locks and unlocks one name.
type locker struct {
	pair  func() error
	close func()
}

// kind is a recipe of a store, and the same lock in plain SQL.
type kind struct {
	name     string
	postgres bool
	serial   bool // measured in one process only
	params   string
	hand     func(address, name string) (*locker, error)
}

var kinds = []kind{
	{name: "MariaDB/GET_LOCK", params: "recipe=named", hand: handNamed},
	{name: "MariaDB/FOR-UPDATE", params: "recipe=pessimistic", hand: handMyRow},
	{name: "PostgreSQL/advisory", postgres: true, params: "recipe=advisory", hand: handAdvisory},
	{name: "PostgreSQL/FOR-UPDATE", postgres: true, params: "recipe=pessimistic", hand: handPgRow},
	{name: "MariaDB/GET_LOCK,durable-tokens", serial: true, params: "recipe=named&tokens=durable", hand: handNamed},
	{name: "MariaDB/FOR-UPDATE,durable-tokens", serial: true, params: "recipe=pessimistic&tokens=durable", hand: handMyRow},
	{name: "PostgreSQL/advisory,durable-tokens", postgres: true, serial: true, params: "recipe=advisory&tokens=durable", hand: handAdvisory},
	{name: "PostgreSQL/FOR-UPDATE,durable-tokens", postgres: true, serial: true, params: "recipe=pessimistic&tokens=durable", hand: handPgRow},
	{name: "MariaDB/optimistic-beside-GET_LOCK", serial: true, params: "recipe=optimistic", hand: handNamed},
	{name: "PostgreSQL/optimistic-beside-advisory", postgres: true, serial: true, params: "recipe=optimistic", hand: handAdvisory},
}

func myDSN(address string) string { return "root@tcp(" + address + ")/test?interpolateParams=true" }

func pgURL(address string) string {
	return "postgres://postgres@" + address + "/postgres?sslmode=disable"
}

// prepare creates the tables of the store and of the plain SQL.
func prepare(b *testing.B, k kind, address string) {
	b.Helper()
	ctx := b.Context()
	if k.postgres {
		s, err := pgstore.Open(ctx, pgURL(address))
		must.Succeed(b, err)
		defer s.Close(ctx)
		must.Succeed(b, s.Init(ctx))
		c, err := pgx.Connect(ctx, pgURL(address))
		must.Succeed(b, err)
		defer c.Close(ctx)
		if _, err := c.Exec(ctx, "CREATE TABLE IF NOT EXISTS by_hand (name text PRIMARY KEY); INSERT INTO by_hand SELECT 'bench' UNION SELECT 'bench' || n FROM generate_series(0, 63) n ON CONFLICT DO NOTHING"); err != nil {
			b.Fatal(err)
		}
		return
	}
	s, err := mysqlstore.Open(ctx, "mysql://root@"+address+"/test")
	must.Succeed(b, err)
	defer s.Close(ctx)
	must.Succeed(b, s.Init(ctx))
	db, err := sql.Open("mysql", myDSN(address))
	must.Succeed(b, err)
	defer db.Close()
	for _, q := range []string{"CREATE TABLE IF NOT EXISTS by_hand (name VARBINARY(100) PRIMARY KEY) ENGINE=InnoDB", "INSERT IGNORE INTO by_hand SELECT 'bench' UNION SELECT CONCAT('bench', seq) FROM seq_0_to_63"} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			b.Fatal(err)
		}
	}
}

// ours returns a locker that uses the whole library, from Lock to Unlock.
func (k kind) ours(address string) (*locker, error) {
	ctx := context.Background()
	l, err := k.open(address)
	if err != nil {
		return nil, err
	}
	return &locker{
		pair: func() error {
			k, err := l.Lock(ctx, "bench")
			if err != nil {
				return err
			}
			return k.Unlock()
		},
		close: func() { _ = l.Close(ctx) },
	}, nil
}

func (k kind) open(address string) (*holdfast.Locker, error) {
	raw := "mysql://root@" + address + "/test?" + k.params
	if k.postgres {
		raw = pgURL(address) + "&" + k.params
	}
	return holdfast.Open(context.Background(), raw)
}

func handNamed(address, name string) (*locker, error) {
	ctx := context.Background()
	db, err := sql.Open("mysql", myDSN(address))
	if err != nil {
		return nil, err
	}
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	call := func(query string) error {
		var yes sql.NullBool
		if err := c.QueryRowContext(ctx, query, "by hand "+name).Scan(&yes); err != nil {
			return err
		}
		if !yes.Bool {
			return errors.New("the server returned false: " + query)
		}
		return nil
	}
	return &locker{
		pair: func() error {
			if err := call("SELECT GET_LOCK(?, 60)"); err != nil {
				return err
			}
			return call("SELECT RELEASE_LOCK(?)")
		},
		close: func() { c.Close(); db.Close() },
	}, nil
}

func handMyRow(address, name string) (*locker, error) {
	ctx := context.Background()
	db, err := sql.Open("mysql", myDSN(address))
	if err != nil {
		return nil, err
	}
	var found string
	return &locker{
		pair: func() error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := tx.QueryRowContext(ctx, "SELECT name FROM by_hand WHERE name = ? FOR UPDATE", name).Scan(&found); err != nil {
				return err
			}
			return tx.Commit()
		},
		close: func() { db.Close() },
	}, nil
}

func handAdvisory(address, name string) (*locker, error) {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, pgURL(address))
	if err != nil {
		return nil, err
	}
	return &locker{
		pair: func() error {
			if _, err := c.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", name); err != nil {
				return err
			}
			var ok bool
			if err := c.QueryRow(ctx, "SELECT pg_advisory_unlock(hashtext($1))", name).Scan(&ok); err != nil {
				return err
			}
			if !ok {
				return errors.New("the lock was not held")
			}
			return nil
		},
		close: func() { c.Close(ctx) },
	}, nil
}

func handPgRow(address, name string) (*locker, error) {
	ctx := context.Background()
	c, err := pgx.Connect(ctx, pgURL(address))
	if err != nil {
		return nil, err
	}
	var found string
	return &locker{
		pair: func() error {
			tx, err := c.Begin(ctx)
			if err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, "SELECT name FROM by_hand WHERE name = $1 FOR UPDATE", name).Scan(&found); err != nil {
				return err
			}
			return tx.Commit(ctx)
		},
		close: func() { c.Close(ctx) },
	}, nil
}
