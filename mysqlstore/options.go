package mysqlstore

import (
	"context"
	"net"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Recipe is how a store writes locks down.
type Recipe string

// The recipes. They do not exclude one another.
const (
	// Pessimistic locks a row of a table in an open transaction.
	Pessimistic Recipe = "pessimistic"
	// Optimistic keeps a lease in a row that is replaced by compare-and-set.
	Optimistic Recipe = "optimistic"
	// Named takes GET_LOCK.
	Named Recipe = "named"
)

// Recipes lists them; the first is the default.
func Recipes() []Recipe { return []Recipe{Pessimistic, Optimistic, Named} }

// Option changes how a store is opened.
type Option func(*config)

type config struct {
	sqlkit.Options[Recipe]
	exact bool
}

func defaults() config {
	return config{Options: sqlkit.Options[Recipe]{Recipe: Pessimistic, MaxIdle: sqlkit.DefaultMaxIdle}}
}

// With chooses the recipe. The default is Pessimistic.
func With(r Recipe) Option { return func(c *config) { c.Recipe = r } }

// Namespace keeps the names of this store apart from those of stores opened with
// another namespace. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.Namespace = ns } }

// DurableTokens writes each token into a row, and commits it, before the grant is
// given, so that tokens rise even if the server's clock is set back. It is for
// Pessimistic and Named and costs a committed write per grant; Optimistic tokens are
// durable anyway. A server on which a crash forgets commits, one that has
// innodb_flush_log_at_trx_commit other than 1, is refused.
func DurableTokens() Option { return func(c *config) { c.Durable = true } }

// ExactNames makes Named give GET_LOCK the names as they are, to share them with
// others who use GET_LOCK. Names that the server would cut or fold are refused: at
// most 64 characters, none of them upper case on MySQL, which does not tell cases
// apart; at most 192 bytes on MariaDB. It has no namespaces.
func ExactNames() Option { return func(c *config) { c.exact = true } }

// MaxIdle sets how many idle connections the store keeps at most, for callers that lock
// many names at once. Those beyond four are closed when they were not needed for 5 s, and
// no more than four are kept for 10 s after the server has refused a client. Default 64,
// from 1 to 10,000. It has no effect on a user's pool.
func MaxIdle(n int) Option { return func(c *config) { c.MaxIdle = n } }

// Table makes Pessimistic lock the rows of a table that is there already, to share
// them with others who lock those rows: column has a unique index and holds the
// names. Rows that are missing are inserted, with the column alone. Semaphores are
// not supported on it.
func Table(table, column string) Option {
	return func(c *config) { c.Table, c.Column = table, column }
}

// longest is that of an identifier, in characters.
const longest = 64

func configure(options []Option) (*config, error) {
	c := defaults()
	for _, o := range options {
		o(&c)
	}
	bad := func(format string, args ...any) (*config, error) {
		return nil, driver.Errorf(driver.CodeInvalid, "mysqlstore: "+format, args...)
	}
	if err := c.Check(Recipes(), longest); err != nil {
		return bad("%w", err)
	}
	switch {
	case c.exact && c.Recipe != Named:
		return bad("exact names are for the recipe named, not %s", c.Recipe)
	case c.exact && c.Namespace != "":
		return bad("exact names have no namespace, and %q is given", c.Namespace)
	}
	return &c, nil
}

func init() {
	driver.Register("mysql", openURL)
	driver.Register("mariadb", openURL)
}

func openURL(ctx context.Context, u *url.URL, namespace string) (driver.Store, error) {
	cfg, o, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	s, err := OpenConfig(ctx, cfg, append(o, Namespace(namespace))...)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// parseURL understands mysql://user:pass@host:port/schema?recipe=... . What is not
// ours is a parameter of go-sql-driver/mysql.
func parseURL(u *url.URL) (*mysql.Config, []Option, error) {
	bad := func(format string, args ...any) (*mysql.Config, []Option, error) {
		return nil, nil, driver.Errorf(driver.CodeInvalid, "mysqlstore: URL: "+format, args...)
	}
	query, err := storeurl.Query(u, "mysql://user:password@host:port/schema?recipe=...")
	if err != nil {
		return bad("%w", err)
	}
	schema := strings.TrimPrefix(u.Path, "/")
	if schema == "" || strings.Contains(schema, "/") {
		return bad("schema %q: give one behind the host, as in mysql://host/schema", schema)
	}
	given := defaults()
	if err := given.Take(query); err != nil {
		return bad("%w", err)
	}
	if given.exact, err = query.Choose("names", "hashed", "exact"); err != nil {
		return bad("%w", err)
	}
	o := []Option{func(c *config) { *c = given }}
	socket := query.Take("socket")
	theirs, err := query.Rest()
	if err != nil {
		return bad("%w", err)
	}
	cfg, err := mysql.ParseDSN("/?" + theirs.Encode())
	if err != nil {
		return bad("parameters: %w", err)
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = schema
	switch {
	case socket != "" && u.Host != "":
		return bad("host %q and socket %q: give one", u.Host, socket)
	case socket != "":
		cfg.Net, cfg.Addr = "unix", socket
	default:
		port := u.Port()
		if port == "" {
			port = "3306"
		}
		host := u.Hostname()
		if host == "" {
			host = "127.0.0.1"
		}
		cfg.Net, cfg.Addr = "tcp", net.JoinHostPort(host, port)
	}
	if _, err := configure(o); err != nil {
		return nil, nil, err
	}
	return cfg, o, nil
}
