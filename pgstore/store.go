package pgstore

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/contact"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/sqltype"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// sqlScript is the script of Init.
//
//go:embed schema.sql
var sqlScript string

// Schema returns the script that creates the tables. Each statement may be executed again.
func Schema() string { return sqlScript }

// engine implements a recipe.
type engine = sqlkit.Engine

// valueTable implements Get and Put.
type valueTable = sqlkit.Values

// Store is one client of a PostgreSQL server. It implements [driver.Store], Inspector, Breaker, Watcher, Swapper,
// Values and Exposer.
type Store struct{ *store }

type store struct {
	engine
	*valueTable
	cfg    *config
	where  string
	dial   dialer
	links  *sqlkit.Pool // for Optimistic, for Get and Put, and for commits beside an open transaction
	own    io.Closer    // makes the connections: a dialer, or a pool over the caller's pgxpool; nil on a caller's pool
	server *sqlkit.Probe[facts]
	schema *sqlkit.Probe[string] // of holdfast's tables
	wanted *watches
	// wantedMark returns the mark of a watched name.
	wantedMark func(key []byte) mark

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
	if err := c.Protect(protection(pg)); err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "pgstore: %w", err)
	}
	pg = pg.Copy()
	if len(c.schemas) == 0 {
		c.schemas = pathSchemas(pg.RuntimeParams[searchPath])
	}
	if c.Table == "" { // a trigger of a user's table may need the search path
		delete(pg.RuntimeParams, searchPath) // a pooler refuses it
	}
	onlyPrimary(pg)
	if !oneHost(pg) && pg.ConnectTimeout == 0 {
		pg.ConnectTimeout = hostTimeout
	}
	s := &store{cfg: c, where: fmt.Sprintf("postgres://%s:%d/%s", pg.Host, pg.Port, pg.Database), oneHost: oneHost(pg)}
	last := &lastHost{renew: c.renew}
	dialer := sqlkit.NewDialer(func(ctx context.Context) (sqlkit.Link, error) {
		l, err := dialLink(ctx, pg, last)
		if err != nil {
			return nil, err
		}
		return l, nil
	})
	dialer.Contact = new(contact.Contact)
	pg.DialFunc = dialer.Contact.Through(pg.DialFunc)
	s.dial, s.own = dialer.Dial, dialer
	return s.open(ctx, &listener{pg, last})
}

// searchPath is the name of a setting.
const searchPath = "search_path"

// protection returns how the least protected connection is protected.
func protection(pg *pgconn.Config) storeurl.Protection {
	p := storeurl.Protection{Password: pg.Password != "", How: "give sslmode=verify-full"}
	for _, f := range append([]*pgconn.FallbackConfig{{Host: pg.Host, TLSConfig: pg.TLSConfig}}, pg.Fallbacks...) {
		if !storeurl.Verifies(f.TLSConfig) {
			p.Hosts = append(p.Hosts, f.Host)
		}
	}
	return p
}

// hostTimeout limits the time for a connection to one of several hosts. So a host that does not
// answer, such as a primary that has lost its power, does not keep clients from the other hosts.
const hostTimeout = 2 * time.Second

// New opens a store over the caller's pool of the driver pgx or lib/pq, which the caller closes. With
// Advisory and Pessimistic, each lock and each waiter takes a connection out of the pool and closes it
// afterwards. The store notices the loss of such a connection within a second. Optimistic cannot
// listen through a pool, and polls.
func New(ctx context.Context, db *sql.DB, o ...Option) (*Store, error) {
	if db == nil {
		return nil, errNoPool
	}
	return openOver(ctx, o, db.Stats().MaxOpenConnections, func() { sqlkit.EndIdle(db) }, func() (*sql.DB, io.Closer) { return db, nil })
}

// NewPool opens a store over the caller's pgxpool, as New does over a sql.DB.
func NewPool(ctx context.Context, pool *pgxpool.Pool, o ...Option) (*Store, error) {
	if pool == nil {
		return nil, errNoPool
	}
	return openOver(ctx, o, int(pool.Config().MaxConns), pool.Reset, func() (*sql.DB, io.Closer) {
		db := stdlib.OpenDBFromPool(pool)
		return db, db
	})
}

var errNoPool = driver.Errorf(driver.CodeInvalid, "pgstore: the pool is nil")

// openOver opens a store over a caller's pool of at most so many connections. lender returns what lends them, and what
// the store closes.
func openOver(ctx context.Context, o []Option, most int, endIdle func(), lender func() (db *sql.DB, own io.Closer)) (*Store, error) {
	c, err := configure(o)
	if err != nil {
		return nil, err
	}
	if most == 1 && c.Recipe != Optimistic {
		return nil, driver.Errorf(driver.CodeInvalid, "pgstore: recipe %s: the pool has one connection, which a lock keeps while it is held or waited for. The store needs another one to end a wait or to show a holder: allow two or more connections, or use recipe=optimistic", c.Recipe)
	}
	c.Over(endIdle)
	db, own := lender()
	s := &store{cfg: c, where: "postgres (a pool)", dial: lend(db), own: own}
	return s.open(ctx, nil)
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
func (s *store) open(ctx context.Context, listen *listener) (*Store, error) {
	if s.cfg.Namespace != "" {
		s.where += " (namespace " + s.cfg.Namespace + ")"
	}
	s.links, s.server = sqlkit.NewPool(s.cfg.Idle(2), s.dial), sqlkit.NewProbe(s.probe)
	s.schema = sqlkit.NewProbe(s.findSchema)
	d := s.dialect()
	s.valueTable = sqlkit.NewValues(s.cfg.Namespace, d, rowFaults{}, s.links)
	s.wanted, s.wantedMark = newWatches(listen), wantedMark
	switch s.cfg.Recipe {
	case Optimistic:
		var w record.Watcher
		if listen != nil {
			w = listen
		}
		s.wanted = newWatches(nil) // not those of waiters
		s.engine = sqlkit.NewOptimistic(s.links, d, rowFaults{}, w, nil, s.cfg.Namespace)
	case Pessimistic:
		r := newPessimistic(s)
		s.engine, s.wantedMark = s.cfg.OnSessions(s.dial, r, s.links, s.connections), r.wanted
	case Advisory:
		s.engine = s.cfg.OnSessions(s.dial, advisory{sessions{s: s}}, s.links, s.connections)
	}
	err := s.server.Open(ctx)
	if _, reached := s.server.Facts(); reached && s.usesTables() {
		if err = s.schema.Open(ctx); errors.Is(err, errNoTables) { // Init may create them
			err = nil
		}
	}
	if err != nil {
		_ = s.Close(ctx)
		return nil, err
	}
	return &Store{s}, nil
}

// connections returns how many connections the server accepts of the user.
func (s *store) connections(ctx context.Context) (int64, error) {
	f, err := s.server.Read(ctx)
	return f.connections, err
}

// String returns where the locks are, without a password.
func (s *store) String() string { return s.where }

// Watch implements driver.Watcher for waiters only. For recipe Optimistic, behind a pooler and on a caller's pool it returns
// an error of code CodeUnsupported.
func (s *store) Watch(ctx context.Context, name string, changed func()) error {
	if name == "" {
		return errNoNotifications
	}
	f, err := s.server.Read(ctx)
	if err != nil {
		return err
	}
	if err := (sessions{s: s}).findRows(ctx); err != nil {
		return err
	}
	return s.wanted.watch(ctx, s.wantedMark(slices.Concat(sqlkit.NamePrefix(s.cfg.Namespace), []byte(name))), f.direct, changed)
}

// Exposed implements driver.Exposer for a store that opens its own connections.
func (s *store) Exposed() string { return s.cfg.Exposure }

// Close closes the connections, and so ends the grants of Advisory and Pessimistic.
func (s *store) Close(ctx context.Context) error {
	s.wanted.close()
	err := s.engine.Close(ctx)
	s.links.Close()
	if s.own != nil {
		_ = s.own.Close()
	}
	return err
}

// Init creates the tables, unless they exist: in the schema of [InSchema], or else in the schema public. Any number of
// clients may call it at the same time. It needs the right to create tables. The store itself needs only SELECT, INSERT,
// UPDATE and DELETE on them. Init refuses to create tables beside those of another schema, unless InSchema chooses one.
func (s *Store) Init(ctx context.Context) error {
	l, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	schema, err := s.locateTables(ctx, l)
	if err != nil {
		return err
	}
	if schema == "" {
		schema = initSchema
		if len(s.cfg.schemas) > 0 {
			schema = s.cfg.schemas[0]
		}
	}
	// The connection has no other use, so the setting affects nothing else.
	script := []string{"SET synchronous_commit = on"}
	for _, statement := range sqlkit.Statements(sqlScript) {
		script = append(script, strings.ReplaceAll(statement, "holdfast_", quoted(schema)+".holdfast_"))
	}
	if err := sqltype.Create(ctx, func() error { _, err := l.Run(ctx, script...); return err }); err != nil {
		coded, _ := faults{}.Sort(err)
		return driver.Errorf(driver.CodeOf(coded), "pgstore: creating the tables in schema %s: %w", schema, coded)
	}
	_, err = s.locateTables(ctx, l) // another client may have created the tables in another schema meanwhile
	return err
}

var _ interface {
	driver.Store
	driver.Inspector
	driver.Breaker
	driver.Watcher
} = (*store)(nil)
