package fencesql

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/servers"
)

var check = servertest.Check

// database is a real database, with the properties in which it differs from others.
type database struct {
	name     string
	dialect  fence.Dialect
	open     func(t *testing.T) *sql.DB
	levels   []sql.IsolationLevel
	isolates bool // other transactions continue while one writes
}

// databases returns the databases for a test. Their open functions start the servers.
func databases(t *testing.T) []database {
	every := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
	maria := func(params string) func(*testing.T) *sql.DB {
		return func(t *testing.T) *sql.DB { return mariadb(t, params) }
	}
	return []database{
		{"SQLite", fence.SQLite, sqlite, []sql.IsolationLevel{sql.LevelDefault}, false},
		{"MariaDB", fence.MySQL, maria(""), every, true},
		// The first setting changes the meaning of affected rows, and the second one the
		// form in which values travel.
		{"MariaDB,clientFoundRows,interpolateParams", fence.MySQL, maria("?clientFoundRows=true&interpolateParams=true"), every, true},
		{"PostgreSQL", fence.PostgreSQL, postgres, every, true},
	}
}

func connect(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	check(t, err)
	t.Cleanup(func() { _ = db.Close() })
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := db.PingContext(t.Context())
		if err == nil {
			return db
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %v", driver, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func sqlite(t *testing.T) *sql.DB {
	path := filepath.Join(t.TempDir(), "db")
	q := url.Values{"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)"}}
	return connect(t, "sqlite", "file:"+path+"?"+q.Encode())
}

// server is one child process for all tests of this package.
type server[S io.Closer] struct {
	once sync.Once
	s    S
	err  error
}

var (
	mariaServer    server[*servers.MySQL]
	postgresServer server[*servers.Postgres]
)

func TestMain(m *testing.M) {
	code := m.Run()
	if mariaServer.s != nil {
		_ = mariaServer.s.Close()
	}
	if postgresServer.s != nil {
		_ = postgresServer.s.Close()
	}
	os.Exit(code)
}

// use returns the server, and starts it at the first call.
func (s *server[S]) use(t *testing.T, start func() (S, error)) S {
	t.Helper()
	s.once.Do(func() { s.s, s.err = start() })
	servertest.Started(t, s.err)
	return s.s
}

func mariadb(t *testing.T, params string) *sql.DB {
	s := mariaServer.use(t, func() (*servers.MySQL, error) { return servers.StartMySQL(context.Background()) })
	admin := connect(t, "mysql", s.DSN("", ""))
	name := schemaName()
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return connect(t, "mysql", s.DSN(name, params))
}

func postgres(t *testing.T) *sql.DB {
	s := postgresServer.use(t, func() (*servers.Postgres, error) { return servers.StartPostgres(context.Background(), "fsync=off") })
	admin := connect(t, "pgx", s.URL("postgres", ""))
	name := schemaName()
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return connect(t, "pgx", s.URL(name, ""))
}

var schemas struct {
	sync.Mutex
	n int
}

func schemaName() string {
	schemas.Lock()
	defer schemas.Unlock()
	schemas.n++
	return fmt.Sprintf("t%d", schemas.n)
}
