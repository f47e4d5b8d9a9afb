package mysqlstore

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Recipe selects how a store keeps locks.
type Recipe string

// The recipes. A lock of one recipe does not exclude a lock of another.
const (
	// Pessimistic locks a row of a table in an open transaction.
	Pessimistic Recipe = "pessimistic"
	// Optimistic keeps a lease in a row that is replaced by compare-and-set.
	Optimistic Recipe = "optimistic"
	// Named takes GET_LOCK.
	Named Recipe = "named"
)

// Recipes lists the recipes. The first is the default.
func Recipes() []Recipe { return []Recipe{Pessimistic, Optimistic, Named} }

// Option changes how a store is opened.
type Option func(*config)

type config struct {
	sqlkit.Options[Recipe]
	exact  bool
	skew   time.Duration
	schema string // that the connections must have
}

const (
	defaultSkew      = time.Second
	minSkew, maxSkew = 0, 10 * time.Second
)

func defaults() config {
	return config{Options: sqlkit.Options[Recipe]{Recipe: Pessimistic, MaxIdle: sqlkit.DefaultMaxIdle}, skew: defaultSkew}
}

// With selects the recipe. The default is Pessimistic.
func With(r Recipe) Option { return func(c *config) { c.Recipe = r } }

// Namespace separates the names of this store from the names in other namespaces. The
// default is empty.
func Namespace(ns string) Option { return func(c *config) { c.Namespace = ns } }

// DurableTokens commits each token before its grant is returned, so that tokens rise even if
// the server's clock is set back. It is for Pessimistic and Named, and costs a commit per
// grant; tokens of Optimistic are always durable. The store refuses a server that forgets
// commits in a crash, where innodb_flush_log_at_trx_commit is not 1.
func DurableTokens() Option { return func(c *config) { c.Durable = true } }

// ExactNames makes Named pass the names to GET_LOCK unchanged, to share them with other
// programs that use GET_LOCK. The store refuses names that the server would change. On
// MySQL these are names with more than 64 characters or upper case, on MariaDB names with
// more than 192 bytes. A store with exact names has no namespaces.
func ExactNames() Option { return func(c *config) { c.exact = true } }

// InSchema names the default database that each connection of a caller's pool must have, which has the tables. The
// store refuses a connection to which other code has given another one by USE. By default it is that of the first
// connection, which may be the changed one.
func InSchema(name string) Option { return func(c *config) { c.schema = name } }

// MaxIdle sets how many idle connections the store keeps at most, for callers that lock
// many names at once. The store closes connections beyond four that were not needed for 5 s.
// For 10 s after the server has refused a client, it keeps no more than four. The
// default is 64, and the range is 1 to 10,000. MaxIdle has no effect on a user's pool.
func MaxIdle(n int) Option { return func(c *config) { c.MaxIdle = n } }

// Skew sets by how much the clocks of the servers may differ, for Optimistic on Galera and on group replication
// with several primaries. A grant lasts that much longer than its TTL. The store refuses a server whose clock
// differs by more from that of another one. The default is 1 s, and the range is 0 to 10 s. Skew has no effect
// with one primary.
func Skew(d time.Duration) Option { return func(c *config) { c.skew = d } }

// MaxConns limits the connections of Pessimistic and Named: one for each held lock and each waiter. Further
// requests wait in the process, in the order in which they came; one that does not wait fails as unavailable when
// its time has passed, or at once as busy if this process holds its lock. Up to eight more connections are used for
// a moment. The default is a quarter of what the server allows this user. MaxConns has no effect on a user's pool,
// which has its own limit.
func MaxConns(n int) Option { return func(c *config) { c.MaxConns = n } }

// Table makes Pessimistic lock the rows of an existing table, to share them with other
// programs that lock those rows. column holds the names and has a unique index. The store
// inserts missing rows, with the column alone. The store has no semaphores then.
func Table(table, column string) Option {
	return func(c *config) { c.Table, c.Column = table, column }
}

// longest is the limit of an identifier, in characters.
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
	case c.skew < minSkew || c.skew > maxSkew:
		return bad("skew %s: give %s to %s", c.skew, time.Duration(minSkew), maxSkew)
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

// parseURL reads mysql://user:pass@host:port/schema?recipe=... . All other parameters
// belong to go-sql-driver/mysql.
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
	given.Take(query)
	given.exact = query.Choose("names", "hashed", "exact")
	given.skew = query.Duration("skew", given.skew)
	o := []Option{func(c *config) { *c = given }}
	socket := query.Take("socket")
	verify, _ := strconv.ParseBool(u.Query().Get("tls")) // the driver has further values
	t, password := query.TLS(verify, "give tls=true"), query.Password(u)
	theirs, err := query.Rest()
	if err != nil {
		return bad("%w", err)
	}
	address := net.JoinHostPort(cmp.Or(u.Hostname(), "127.0.0.1"), cmp.Or(u.Port(), "3306"))
	// With tls=true, ParseDSN configures the name to verify.
	cfg, err := mysql.ParseDSN("tcp(" + address + ")/?" + theirs.Encode())
	if err != nil {
		return bad("parameters: %w", err)
	}
	cfg.User = u.User.Username()
	cfg.Passwd = password()
	_ = cfg.Apply(mysql.BeforeConnect(func(_ context.Context, c *mysql.Config) error {
		c.Passwd = password()
		if t != nil {
			c.TLS.RootCAs = t().RootCAs
		}
		return nil
	}))
	cfg.DBName = schema
	if t != nil {
		cfg.TLS = t()
	}
	switch {
	case socket != "" && u.Host != "":
		return bad("host %q and socket %q: give one", u.Host, socket)
	case socket != "":
		cfg.Net, cfg.Addr = "unix", socket
	}
	if _, err := configure(o); err != nil {
		return nil, nil, err
	}
	return cfg, o, nil
}
