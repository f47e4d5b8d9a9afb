package pgstore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// schema is the script of Init.
//
//go:embed schema.sql
var schema string

// Schema returns the script that creates the tables. Each statement may be executed again.
func Schema() string { return schema }

// engine implements a recipe.
type engine = sqlkit.Engine

// valueTable implements Get and Put.
type valueTable = sqlkit.Values

// Store is one client of a PostgreSQL server.
type Store struct {
	engine
	*valueTable
	cfg    *config
	where  string
	dial   dialer
	links  *sqlkit.Pool // for Get and Put, and for commits beside an open transaction
	own    *sql.DB      // over the caller's pgxpool; nil without one
	server *sqlkit.Probe[facts]

	oneHost bool // the store opens its own connections, to one server
}

// dialer opens a connection.
type dialer func(context.Context) (sqlkit.Link, error)

// Open opens a store on the server of a URL; see the package comment. It returns no error if the
// server cannot be reached at the moment.
func Open(ctx context.Context, rawURL string, o ...Option) (*Store, error) {
	u, err := storeurl.Parse(rawURL, "postgres", "postgresql")
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "pgstore: %w", err)
	}
	cfg, fromURL, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	return OpenConfig(ctx, cfg, append(fromURL, o...)...)
}

// OpenConfig opens a store on the server of a pgx configuration. The store opens its own connections.
func OpenConfig(ctx context.Context, pg *pgconn.Config, o ...Option) (*Store, error) {
	c, err := configure(o)
	if err != nil {
		return nil, err
	}
	pg = pg.Copy()
	onlyPrimary(pg)
	if !oneHost(pg) && pg.ConnectTimeout == 0 {
		pg.ConnectTimeout = hostTimeout
	}
	dial := func(ctx context.Context) (sqlkit.Link, error) {
		l, err := dialLink(ctx, pg)
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	s := &Store{cfg: c, where: fmt.Sprintf("postgres://%s:%d/%s", pg.Host, pg.Port, pg.Database), dial: dial, oneHost: oneHost(pg)}
	return s.open(ctx, newListener(pg))
}

// hostTimeout limits the time for a connection to one of several hosts. So a host that does not
// answer, such as a primary that has lost its power, does not keep clients from the other hosts.
const hostTimeout = 2 * time.Second

// New opens a store over the caller's pool of the driver pgx or lib/pq, which the caller closes. With
// Advisory and Pessimistic, each lock and each waiter takes a connection out of the pool and closes it
// afterwards. The store notices the loss of such a connection within a second. Optimistic cannot
// listen through a pool, and polls.
func New(ctx context.Context, db *sql.DB, o ...Option) (*Store, error) {
	c, err := configure(o)
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, driver.Errorf(driver.CodeInvalid, "pgstore: the pool is nil")
	}
	if db.Stats().MaxOpenConnections == 1 && c.Recipe != Optimistic {
		return nil, errPoolOfOne(c.Recipe)
	}
	c.MaxIdle = 0 // the pool keeps its own idle connections
	s := &Store{cfg: c, where: "postgres (a pool)", dial: lend(db)}
	return s.open(ctx, nil)
}

// NewPool opens a store over the caller's pgxpool, as New does over a sql.DB.
func NewPool(ctx context.Context, pool *pgxpool.Pool, o ...Option) (*Store, error) {
	c, err := configure(o)
	if err != nil {
		return nil, err
	}
	if pool == nil {
		return nil, driver.Errorf(driver.CodeInvalid, "pgstore: the pool is nil")
	}
	if pool.Config().MaxConns == 1 && c.Recipe != Optimistic {
		return nil, errPoolOfOne(c.Recipe)
	}
	db := stdlib.OpenDBFromPool(pool)
	c.MaxIdle = 0 // the pool keeps its own idle connections
	s := &Store{cfg: c, where: "postgres (a pool)", dial: lend(db), own: db}
	return s.open(ctx, nil)
}

func errPoolOfOne(r Recipe) error {
	return driver.Errorf(driver.CodeInvalid, "pgstore: recipe %s: the pool has one connection, which a lock keeps while it is held or waited for. The store needs another one to end a wait or to show a holder: allow two or more connections, or use recipe=optimistic", r)
}

// lend returns a dialer that takes connections out of a caller's pool.
func lend(db *sql.DB) dialer {
	toLink := wrap
	if _, pgx := db.Driver().(*stdlib.Driver); !pgx {
		toLink = nil // lib/pq queries without preparing
	}
	return func(ctx context.Context) (sqlkit.Link, error) {
		l, err := sqlkit.Lend(ctx, db, toLink)
		if err != nil {
			return nil, unreached(err)
		}
		return l, nil
	}
}

// open makes the engine of the recipe, and probes the server. listen is nil for a caller's pool.
func (s *Store) open(ctx context.Context, listen *listener) (*Store, error) {
	if s.cfg.Namespace != "" {
		s.where += " (namespace " + s.cfg.Namespace + ")"
	}
	s.links, s.server = sqlkit.NewPool(s.cfg.Idle(2), s.dial), sqlkit.NewProbe(s.probe)
	s.valueTable = newValues(s)
	switch s.cfg.Recipe {
	case Optimistic:
		var w sqlkit.Waker
		if listen != nil {
			w = listen
		}
		s.engine = sqlkit.NewOptimistic(sqlkit.NewPool(s.cfg.Idle(2), s.dial), table{}, faults{}, w, s.cfg.Namespace)
	case Pessimistic:
		s.engine = sqlkit.NewSessions(s.dial, pessimistic{sessions{s: s}}, s.cfg.Idle(4), s.cfg.Namespace)
	case Advisory:
		s.engine = sqlkit.NewSessions(s.dial, advisory{sessions{s: s}}, s.cfg.Idle(4), s.cfg.Namespace)
	}
	if err := s.server.Open(ctx); err != nil {
		_ = s.Close(ctx)
		return nil, err
	}
	return s, nil
}

// String returns where the locks are, without a password.
func (s *Store) String() string { return s.where }

// Close closes the connections, and so ends the grants of Advisory and Pessimistic.
func (s *Store) Close(ctx context.Context) error {
	err := s.engine.Close(ctx)
	s.links.Close()
	if s.own != nil {
		_ = s.own.Close()
	}
	return err
}

// Init creates the tables, unless they exist. It needs the right to create tables. The store
// itself needs only SELECT, INSERT, UPDATE and DELETE on them.
func (s *Store) Init(ctx context.Context) error {
	l, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	// The connection has no other use, so the setting affects nothing else.
	script := append([]string{"SET synchronous_commit = on"}, sqlkit.Statements(schema)...)
	if _, err := l.Run(ctx, script...); err != nil {
		coded, _ := faults{}.Sort(err)
		return coded
	}
	return nil
}

var _ interface {
	driver.Store
	driver.Inspector
	driver.Breaker
} = (*Store)(nil)
