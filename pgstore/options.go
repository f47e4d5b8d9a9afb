package pgstore

import (
	"context"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Recipe is how a store writes locks down.
type Recipe string

// The recipes. They do not exclude one another.
const (
	// Advisory takes session-level advisory locks.
	Advisory Recipe = "advisory"
	// Pessimistic locks a row of a table in an open transaction.
	Pessimistic Recipe = "pessimistic"
	// Optimistic keeps a lease in a row that is replaced by compare-and-set.
	Optimistic Recipe = "optimistic"
)

// Recipes lists them; the first is the default.
func Recipes() []Recipe { return []Recipe{Advisory, Pessimistic, Optimistic} }

// Option changes how a store is opened.
type Option func(*config)

type config struct {
	sqlkit.Options[Recipe]
	given bool
}

func defaults() config {
	return config{Options: sqlkit.Options[Recipe]{Recipe: Advisory, MaxIdle: sqlkit.DefaultMaxIdle}}
}

// With chooses the recipe. The default is Advisory.
func With(r Recipe) Option { return func(c *config) { c.Recipe = r } }

// Namespace keeps the names of this store apart from those of stores opened with
// another namespace. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.Namespace = ns } }

// DurableTokens writes each token into a row, and commits it, before the grant is
// given, so that tokens rise even if the server's clock is set back. It is for
// Advisory and Pessimistic and costs a committed write per grant; Optimistic tokens
// are durable anyway.
func DurableTokens() Option { return func(c *config) { c.Durable = true } }

// GivenKeys makes Advisory take names as keys, to share them with others who call
// pg_advisory_lock: a name is the decimal form of a signed 64-bit number, or two of
// signed 32-bit numbers with a comma between, as in "42" or "7,1". It has no
// namespaces.
func GivenKeys() Option { return func(c *config) { c.given = true } }

// MaxIdle sets how many idle connections the store keeps at most, for callers that lock
// many names at once. Those beyond four are closed when they were not needed for 5 s, and
// no more than four are kept for 10 s after the server has refused a client. Default 64,
// from 1 to 10,000. It has no effect on a user's pool.
func MaxIdle(n int) Option { return func(c *config) { c.MaxIdle = n } }

// Table makes Pessimistic lock the rows of a table that is there already, to share
// them with others who lock those rows: column, of type text, varchar or bytea, has
// a unique index and holds the names. Rows that are missing are inserted, with the
// column alone. Semaphores are not supported on it.
func Table(table, column string) Option {
	return func(c *config) { c.Table, c.Column = table, column }
}

// longest is that of an identifier, in characters.
const longest = 63

func configure(options []Option) (*config, error) {
	c := defaults()
	for _, o := range options {
		o(&c)
	}
	bad := func(format string, args ...any) (*config, error) {
		return nil, driver.Errorf(driver.CodeInvalid, "pgstore: "+format, args...)
	}
	if err := c.Check(Recipes(), longest); err != nil {
		return bad("%w", err)
	}
	switch {
	case c.given && c.Recipe != Advisory:
		return bad("given keys are for the recipe advisory, not %s", c.Recipe)
	case c.given && c.Namespace != "":
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

// parseURL understands postgres://user:pass@host:port/database?recipe=... . What is
// not ours is a parameter of pgx and of the server.
func parseURL(u *url.URL) (*pgconn.Config, []Option, error) {
	bad := func(format string, args ...any) (*pgconn.Config, []Option, error) {
		return nil, nil, driver.Errorf(driver.CodeInvalid, "pgstore: URL: "+format, args...)
	}
	query, err := storeurl.Query(u, "postgres://user:password@host:port/database?recipe=...")
	if err != nil {
		return bad("%w", err)
	}
	given := defaults()
	if err := given.Take(query); err != nil {
		return bad("%w", err)
	}
	if given.given, err = query.Choose("keys", "hashed", "given"); err != nil {
		return bad("%w", err)
	}
	o := []Option{func(c *config) { *c = given }}
	if _, err := configure(o); err != nil {
		return nil, nil, err
	}
	theirs, err := query.Rest()
	if err != nil {
		return bad("%w", err)
	}
	rest := *u
	rest.RawQuery = strings.ReplaceAll(theirs.Encode(), "+", "%20") // pgx takes a plus as it is
	cfg, err := pgconn.ParseConfig(rest.String())
	if err != nil {
		// Its text quotes the URL, without the password.
		return bad("%w", err)
	}
	return cfg, o, nil
}
