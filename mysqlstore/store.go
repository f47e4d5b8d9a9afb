package mysqlstore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/contact"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/sqltype"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// schema is the script that Init executes.
//
//go:embed schema.sql
var schema string

// Schema returns the script that creates the tables. It may run again: it
// keeps existing tables and their rows.
func Schema() string { return schema }

// engine implements a recipe.
type engine = sqlkit.Engine

// valueTable implements Get and Put.
type valueTable = sqlkit.Values

// Store is one client of a MySQL or MariaDB server. It implements [driver.Store], Inspector, Breaker, Swapper,
// Values and Exposer.
type Store struct{ *store }

type store struct {
	engine
	*valueTable
	cfg    *config
	where  string
	dial   func(context.Context) (sqlkit.Link, error) // opens a connection
	links  *sqlkit.Pool                               // for Optimistic, for Get and Put, and for commits beside an open transaction
	record *recorder
	dialer *sqlkit.Dialer       // nil if the store takes its connections from the caller's pool
	server *sqlkit.Probe[facts] // of the first server
	opened time.Time

	mu      sync.Mutex
	servers map[string]facts // by serverID
	schema  string           // that of InSchema, or else the default schema of the first connection
}

// Open opens a store on the server of a URL; see the package comment. It returns no error if the
// server cannot be reached at the moment.
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

// OpenConfig opens a store on the server of a go-sql-driver/mysql configuration. The store opens its
// own connections. They have MultiStatements, but no read timeout and no logger.
func OpenConfig(ctx context.Context, my *mysql.Config, o ...Option) (*Store, error) {
	c, err := configure(o)
	if err != nil {
		return nil, err
	}
	if err := c.Protect(protection(my)); err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "mysqlstore: %w", err)
	}
	my = my.Clone()
	my.MultiStatements, my.ParseTime, my.ReadTimeout, my.Logger = true, false, 0, quiet{}
	dialNet := my.DialFunc
	if dialNet == nil {
		dialer := &net.Dialer{Timeout: my.Timeout, KeepAliveConfig: sqlkit.KeepAlive}
		dialNet = dialer.DialContext
	}
	reached := new(contact.Contact)
	dialNet = reached.Through(dialNet)
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
	var refused backoff.Refused
	dialer := sqlkit.NewDialer(func(ctx context.Context) (sqlkit.Link, error) {
		return sqlkit.Login(&refused, func() (sqlkit.Link, error) { return dial(ctx) })
	})
	dialer.Contact = reached
	return open(ctx, c, fmt.Sprintf("mysql://%s/%s", my.Addr, my.DBName), dialer.Dial, dialer)
}

// protection returns how connections are protected. A configuration of TLS that the caller has registered verifies
// the server.
func protection(my *mysql.Config) storeurl.Protection {
	p := storeurl.Protection{Password: my.Passwd != "", How: "give tls=true"}
	if my.Net == "tcp" {
		p.Hosts = []string{my.Addr}
	}
	switch {
	case my.AllowFallbackToPlaintext:
	case my.TLS != nil:
		p.Verified = storeurl.Verifies(my.TLS)
	default:
		p.Verified = !slices.Contains([]string{"", "false", "skip-verify", "preferred"}, my.TLSConfig)
	}
	return p
}

// dialled is the context key under which the dialler stores its connection.
type dialled struct{}

// quiet is a logger that logs nothing, since the driver also returns every problem as an error.
type quiet struct{}

func (quiet) Print(...any) {}

// New opens a store over the caller's pool, which the caller closes. The connections of the pool use
// one schema, which has the tables; give [InSchema] if other code changes it by USE. With Pessimistic and Named, each lock and each waiter takes a
// connection out of the pool and closes it afterwards. The store notices the loss of such a
// connection within a second.
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
	c.Over(func() { sqlkit.EndIdle(db) })
	return open(ctx, c, "mysql (a pool)", dial, nil)
}

func open(ctx context.Context, c *config, where string, dial func(context.Context) (sqlkit.Link, error), dialer *sqlkit.Dialer) (*Store, error) {
	if c.Namespace != "" {
		where += " (namespace " + c.Namespace + ")"
	}
	s := &store{cfg: c, where: where, dial: dial, dialer: dialer, opened: time.Now(), servers: map[string]facts{}, schema: c.schema}
	s.links = sqlkit.NewPool(c.Idle(2), s.connect)
	s.server = sqlkit.NewProbe(func(ctx context.Context) (facts, error) {
		l, err := s.dial(ctx)
		if err != nil {
			return facts{}, err
		}
		defer l.Close()
		return s.know(ctx, l)
	})
	s.record = newRecorder(s)
	s.valueTable = sqlkit.NewValues(c.Namespace, &dialect, faults{}, s.links)
	switch c.Recipe {
	case Optimistic:
		s.engine = sqlkit.NewOptimistic(s.links, &dialect, faults{}, nil, s.skew, c.Namespace)
	case Pessimistic:
		s.engine = c.OnSessions(s.connect, newPessimistic(s), s.links, s.connections)
	case Named:
		s.engine = c.OnSessions(s.connect, named{sessions{s: s}}, s.links, s.connections)
	}
	if err := s.server.Open(ctx); err != nil {
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

// commit runs statements on a connection without a transaction, at a server that accepts writes.
func (s *store) commit(ctx context.Context, statements ...string) (sqlkit.Answers, error) {
	return s.links.RunAtPrimary(ctx, faults{}, &dialect, statements...)
}

// String returns where the locks are, without a password.
func (s *store) String() string { return s.where }

// Exposed implements driver.Exposer for a store that opens its own connections.
func (s *store) Exposed() string { return s.cfg.Exposure }

// Close closes the connections, and so ends the grants of Pessimistic and Named.
func (s *store) Close(ctx context.Context) error {
	err := s.engine.Close(ctx)
	s.record.close()
	s.links.Close()
	if s.dialer != nil {
		s.dialer.Close()
	}
	return err
}

// Init creates the tables, unless they exist. Any number of clients may call it at the same time. It
// needs the right to create tables. The store itself needs only SELECT, INSERT, UPDATE and DELETE on them.
func (s *Store) Init(ctx context.Context) error {
	l, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	for _, statement := range sqlkit.Statements(schema) {
		if err := sqltype.Create(ctx, func() error { _, err := l.Run(ctx, statement); return err }); err != nil {
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
} = (*store)(nil)
