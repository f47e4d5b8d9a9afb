package mysqlstore

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// schema is what Init runs.
//
//go:embed schema.sql
var schema string

// Schema is the script that creates the tables: every statement can be run again.
func Schema() string { return schema }

// engine is what a recipe is made of.
type engine = sqlkit.Engine

// valueTable is the promoted Get and Put.
type valueTable = sqlkit.Values

// Store is one client of a MySQL or MariaDB server.
type Store struct {
	engine
	*valueTable
	cfg    *config
	where  string
	dial   func(context.Context) (sqlkit.Link, error) // a connection that nobody else uses
	links  *sqlkit.Pool                               // for what is committed beside an open transaction
	record *recorder
	lent   bool // the connections are of a user's pool
	server *sqlkit.Probe[facts]
}

// Open opens the server that a URL names; see the package comment. It is not an
// error if the server cannot be reached just now.
func Open(ctx context.Context, rawURL string, o ...Option) (*Store, error) {
	u, err := storeurl.Parse(rawURL, "mysql", "mariadb")
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "mysqlstore: %w", err)
	}
	cfg, fromURL, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	return OpenConfig(ctx, cfg, append(fromURL, o...)...)
}

// OpenConfig opens a server by the configuration of go-sql-driver/mysql. The store
// dials by itself; it sets MultiStatements, no read timeout and no logger.
func OpenConfig(ctx context.Context, my *mysql.Config, o ...Option) (*Store, error) {
	c, err := configure(o)
	if err != nil {
		return nil, err
	}
	my = my.Clone()
	my.MultiStatements, my.ParseTime, my.ReadTimeout, my.Logger = true, false, 0, quiet{}
	dialNet := my.DialFunc
	if dialNet == nil {
		dialer := &net.Dialer{Timeout: my.Timeout, KeepAliveConfig: sqlkit.KeepAlive}
		dialNet = dialer.DialContext
	}
	my.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialNet(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w := sqlkit.NewConn(c)
		*ctx.Value(dialled{}).(**sqlkit.Conn) = w
		return w, nil
	}
	connector, err := mysql.NewConnector(my)
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "mysqlstore: %w", err)
	}
	dial := func(ctx context.Context) (sqlkit.Link, error) {
		var w *sqlkit.Conn
		dc, err := connector.Connect(context.WithValue(ctx, dialled{}, &w))
		if err != nil {
			if w != nil {
				w.Close()
			}
			return nil, unreached(err)
		}
		return sqlkit.SQLLink(dc, true, w), nil
	}
	return open(ctx, c, fmt.Sprintf("mysql://%s/%s", my.Addr, my.DBName), dial)
}

// dialled is the key of the place where a dialler puts its connection.
type dialled struct{}

// quiet is a logger: what goes wrong is an error's business.
type quiet struct{}

func (quiet) Print(...any) {}

// New makes a store over a user's pool, which stays the user's to close. Locks of
// Pessimistic and Named each take a connection out of it, for as long as they are
// held or waited for, and end it instead of giving it back; that it was lost is
// noticed within a second. The pool's connections are of one schema, where the
// tables are.
func New(ctx context.Context, db *sql.DB, o ...Option) (*Store, error) {
	c, err := configure(o)
	if err != nil {
		return nil, err
	}
	if db == nil {
		return nil, driver.Errorf(driver.CodeInvalid, "mysqlstore: the pool is nil")
	}
	dial := func(ctx context.Context) (sqlkit.Link, error) {
		l, err := sqlkit.Lend(ctx, db, nil)
		if err != nil {
			return nil, unreached(err)
		}
		return l, nil
	}
	c.MaxIdle = 0 // the pool keeps its own
	return open(ctx, c, "mysql (a pool)", dial)
}

func open(ctx context.Context, c *config, where string, dial func(context.Context) (sqlkit.Link, error)) (*Store, error) {
	if c.Namespace != "" {
		where += " (namespace " + c.Namespace + ")"
	}
	s := &Store{cfg: c, where: where, dial: dial, links: sqlkit.NewPool(c.Idle(2), dial), lent: c.MaxIdle == 0}
	s.server = sqlkit.NewProbe(s.probe)
	s.record = newRecorder(s)
	s.valueTable = newValues(s)
	switch c.Recipe {
	case Optimistic:
		s.engine = sqlkit.NewOptimistic(sqlkit.NewPool(c.Idle(2), dial), table{}, faults{}, nil, c.Namespace)
	case Pessimistic:
		s.engine = sqlkit.NewSessions(dial, pessimistic{sessions{s: s}}, c.Idle(4), c.Namespace)
	case Named:
		s.engine = sqlkit.NewSessions(dial, named{sessions{s: s}}, c.Idle(4), c.Namespace)
	}
	// A server that does not answer is no error, and is not waited for: see driver.Opener.
	bounded, cancel := context.WithTimeout(ctx, sqlkit.OpenTime)
	defer cancel()
	if err := s.server.Ask(bounded); driver.CodeOf(err) == driver.CodeRefused || driver.CodeOf(err) == driver.CodeInvalid {
		_ = s.Close(ctx)
		return nil, err
	}
	return s, nil
}

// commit runs statements on a connection that has no transaction, at a server that takes
// writes. Connections to a server that was demoted are ended: a new one may lead to its
// successor.
func (s *Store) commit(ctx context.Context, statements ...string) (sqlkit.Answers, error) {
	script := append([]string{"SELECT @@global.read_only"}, statements...)
	for fresh := false; ; fresh = true {
		a, err := s.links.Run(ctx, script...)
		coded, _ := faults{}.Sort(err)
		demoted := errors.Is(coded, sqlkit.ErrReadOnly) || err == nil && isReadOnly(a.First(0).Text(0))
		switch {
		case demoted && fresh:
			return nil, sqlkit.ErrReadOnly
		case demoted:
			s.links.Flush()
		case err != nil:
			return nil, err
		default:
			return a[1:], nil
		}
	}
}

// String says where the locks are, without a password.
func (s *Store) String() string { return s.where }

// Classify finds the code that every error of the store carries.
func (s *Store) Classify(err error) driver.Code { return driver.CodeOf(err) }

// Close ends the store's connections, and with them the grants that live on them.
func (s *Store) Close(ctx context.Context) error {
	err := s.engine.Close(ctx)
	s.record.close()
	s.links.Close()
	return err
}

// Init creates the tables, unless they are there. It needs the right to create
// tables; the store itself then needs only SELECT, INSERT, UPDATE and DELETE on them.
func (s *Store) Init(ctx context.Context) error {
	l, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	for _, statement := range sqlkit.Statements(schema) {
		if _, err := l.Run(ctx, statement); err != nil {
			coded, _ := faults{}.Sort(err)
			return coded
		}
	}
	return nil
}

var _ interface {
	driver.Store
	driver.Inspector
	driver.Breaker
} = (*Store)(nil)

// Sweep removes rows of the optimistic recipe that nobody has used for a while, as
// the store does by itself when they have been idle for a minute. With less, a late
// request may find its row gone: it is for tests and for who has stopped every
// client. Other recipes have nothing to remove.
func (s *Store) Sweep(ctx context.Context, idle time.Duration) error {
	o, ok := s.engine.(*sqlkit.Optimistic)
	if !ok {
		return nil
	}
	return o.Sweep(ctx, idle)
}
