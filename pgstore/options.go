package pgstore

import (
	"context"
	"net"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Recipe selects how a store keeps locks.
type Recipe string

// The recipes. A lock of one recipe does not exclude a lock of another.
const (
	// Advisory takes session-level advisory locks.
	Advisory Recipe = "advisory"
	// Pessimistic locks a row of a table in an open transaction.
	Pessimistic Recipe = "pessimistic"
	// Optimistic keeps a lease in a row that is replaced by compare-and-set.
	Optimistic Recipe = "optimistic"
)

// Recipes lists the recipes. The first is the default.
func Recipes() []Recipe { return []Recipe{Advisory, Pessimistic, Optimistic} }

// Option changes how a store is opened.
type Option func(*config)

type config struct {
	sqlkit.Options[Recipe]
	givenKeys bool
	schemas   []string // that may have the tables; none for any
	// renew reads the URL, and the files that it names; nil without a URL.
	renew func() (*pgconn.Config, error)
}

func defaults() config {
	return config{Options: sqlkit.Options[Recipe]{Recipe: Advisory, MaxIdle: sqlkit.DefaultMaxIdle}}
}

// With selects the recipe. The default is Advisory.
func With(r Recipe) Option { return func(c *config) { c.Recipe = r } }

// Namespace separates the names of this store from the names in other namespaces. The
// default is empty.
func Namespace(ns string) Option { return func(c *config) { c.Namespace = ns } }

// DurableTokens commits each token before its grant is returned, so that tokens rise even if
// the server's clock is set back. It is for Advisory and Pessimistic, and costs a commit
// per grant; tokens of Optimistic are always durable.
func DurableTokens() Option { return func(c *config) { c.Durable = true } }

// GivenKeys makes Advisory use names as keys, to share them with other programs that call
// pg_advisory_lock. A name is the decimal form of a signed 64-bit number, or of two signed
// 32-bit numbers with a comma between, as in "42" or "7,1". A store with given keys has no
// namespaces.
func GivenKeys() Option { return func(c *config) { c.givenKeys = true } }

// InSchema names the schema that has holdfast's tables, and a table of [Table] without a schema. It is the name as the
// server keeps it, without quotes. By default, and if the name is empty, the store uses the only schema that has the
// tables, and [Store.Init] creates them in the schema public. A store never uses the search path of a session, which
// other code may have changed. If several schemas have the tables, the store is refused without InSchema. Locks of
// Pessimistic and Optimistic in different schemas do not exclude each other. The schema does not affect the locks of
// Advisory, which are those of the database.
func InSchema(name string) Option {
	return func(c *config) {
		if c.schemas = nil; name != "" {
			c.schemas = []string{name}
		}
	}
}

// MaxIdle sets how many idle connections the store keeps at most, for callers that lock
// many names at once. The store closes connections beyond four that were not needed for 5
// s. For 10 s after the server has refused a client, it keeps no more than four. The
// default is 64, and the range is 1 to 10,000. MaxIdle has no effect on a user's pool.
func MaxIdle(n int) Option { return func(c *config) { c.MaxIdle = n } }

// MaxConns limits the connections of Advisory and Pessimistic: one for each held lock and each waiter. Further
// requests wait in the process, in the order in which they came; one that does not wait fails as unavailable when
// its time has passed, or at once as busy if this process holds its lock. Up to eight more connections are used for
// a moment. The default is a quarter of what the server allows this user. MaxConns has no effect on a user's pool,
// which has its own limit.
func MaxConns(n int) Option { return func(c *config) { c.MaxConns = n } }

// Table makes Pessimistic lock the rows of an existing table, to share them with other
// programs that lock those rows. column holds the names, is of type text, varchar or bytea,
// and has a unique index. The store inserts missing rows, with the column alone. The store
// has no semaphores then.
func Table(table, column string) Option {
	return func(c *config) { c.Table, c.Column = table, column }
}

// maxIdentifier is the length of the longest identifier, in characters.
const maxIdentifier = 63

// configure applies options to the defaults and checks the result.
func configure(options []Option) (*config, error) {
	c := defaults()
	for _, o := range options {
		o(&c)
	}
	bad := func(format string, args ...any) (*config, error) {
		return nil, driver.Errorf(driver.CodeInvalid, "pgstore: "+format, args...)
	}
	if err := c.Check(Recipes(), maxIdentifier); err != nil {
		return bad("%w", err)
	}
	for _, name := range c.schemas {
		if len(name) > maxIdentifier || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
			return bad("schema %q: want at most %d bytes of UTF-8 without NUL", name, maxIdentifier)
		}
	}
	switch {
	case c.givenKeys && c.Recipe != Advisory:
		return bad("given keys are for the recipe advisory, not %s", c.Recipe)
	case c.givenKeys && c.Namespace != "":
		return bad("given keys have no namespace, and %q is given", c.Namespace)
	}
	return &c, nil
}

func init() {
	driver.Register("postgres", openURL)
	driver.Register("postgresql", openURL)
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

// parseURL reads postgres://user:pass@host:port/database?recipe=... . All other parameters
// belong to pgx or the server.
func parseURL(u *url.URL) (*pgconn.Config, []Option, error) {
	bad := func(format string, args ...any) (*pgconn.Config, []Option, error) {
		return nil, nil, driver.Errorf(driver.CodeInvalid, "pgstore: URL: "+format, args...)
	}
	query, err := storeurl.Query(u, "postgres://user:password@host:port/database?recipe=...")
	if err != nil {
		return bad("%w", err)
	}
	fromURL := defaults()
	fromURL.Take(query)
	fromURL.givenKeys = query.Choose("keys", "hashed", "given")
	InSchema(query.Take("schema"))(&fromURL)
	o := []Option{func(c *config) { *c = fromURL }}
	password := query.Password(u)
	others, err := query.Rest()
	if err != nil {
		return bad("%w", err)
	}
	if _, err := configure(o); err != nil {
		return nil, nil, err
	}
	rest := *u
	if strings.Contains(u.Host, "[") && strings.Contains(u.Host, ",") { // net/url, and so pgx, refuses this list
		var hosts, ports []string
		for address := range strings.SplitSeq(u.Host, ",") {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				host, port = strings.Trim(address, "[]"), "5432"
			}
			hosts, ports = append(hosts, host), append(ports, port)
		}
		others.Set("host", strings.Join(hosts, ","))
		others.Set("port", strings.Join(ports, ","))
		rest.Host = ""
	}
	rest.RawQuery = strings.ReplaceAll(others.Encode(), "+", "%20") // pgx does not decode a plus
	fromURL.renew = func() (*pgconn.Config, error) {
		cfg, err := pgconn.ParseConfig(rest.String())
		if err == nil && password() != "" {
			cfg.Password = password()
		}
		return cfg, err
	}
	cfg, err := fromURL.renew()
	if err != nil {
		// The text quotes the URL without the password.
		return bad("%w", err)
	}
	return cfg, o, nil
}
