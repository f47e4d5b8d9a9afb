package pgstore

import (
	"context"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
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
	recipe    Recipe
	namespace string
	durable   bool
	given     bool
	table     string
	column    string
}

// With chooses the recipe. The default is Advisory.
func With(r Recipe) Option { return func(c *config) { c.recipe = r } }

// Namespace keeps the names of this store apart from those of stores opened with
// another namespace. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// DurableTokens writes each token into a row, and commits it, before the grant is
// given, so that tokens rise even if the server's clock is set back. It is for
// Advisory and Pessimistic and costs a committed write per grant; Optimistic tokens
// are durable anyway.
func DurableTokens() Option { return func(c *config) { c.durable = true } }

// GivenKeys makes Advisory take names as keys, to share them with others who call
// pg_advisory_lock: a name is the decimal form of a signed 64-bit number, or two of
// signed 32-bit numbers with a comma between, as in "42" or "7,1". It has no
// namespaces.
func GivenKeys() Option { return func(c *config) { c.given = true } }

// Table makes Pessimistic lock the rows of a table that is there already, to share
// them with others who lock those rows: column, of type text, varchar or bytea, has
// a unique index and holds the names. Rows that are missing are inserted, with the
// column alone. Semaphores are not supported on it.
func Table(table, column string) Option {
	return func(c *config) { c.table, c.column = table, column }
}

var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

func configure(options []Option) (*config, error) {
	c := &config{recipe: Advisory}
	for _, o := range options {
		o(c)
	}
	bad := func(format string, args ...any) (*config, error) {
		return nil, driver.Errorf(driver.Invalid, "pgstore: "+format, args...)
	}
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return bad("%w", err)
	}
	switch {
	case !slices.Contains(Recipes(), c.recipe):
		return bad("recipe %q: give one of advisory, pessimistic, optimistic", c.recipe)
	case c.durable && c.recipe == Optimistic:
		return bad("durable tokens: the optimistic recipe's are durable already")
	case c.given && c.recipe != Advisory:
		return bad("given keys are for the recipe advisory, not %s", c.recipe)
	case c.given && c.namespace != "":
		return bad("given keys have no namespace, and %q is given", c.namespace)
	case (c.table != "" || c.column != "") && c.recipe != Pessimistic:
		return bad("a table of one's own is for the recipe pessimistic, not %s", c.recipe)
	case (c.table == "") != (c.column == ""):
		return bad("table %q and column %q: give both or none", c.table, c.column)
	case c.table != "" && c.namespace != "":
		return bad("a table of one's own has no namespaces, and %q is given", c.namespace)
	}
	for what, id := range map[string]string{"table": c.table, "column": c.column} {
		if id != "" && !identifier.MatchString(id) {
			return bad("%s %q: want 1 to 63 letters, digits and '_', a table also after a schema and a dot", what, id)
		}
	}
	return c, nil
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
		return nil, nil, driver.Errorf(driver.Invalid, "pgstore: URL: "+format, args...)
	}
	query, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return bad("the parameters cannot be read")
	case u.Opaque != "" || u.Fragment != "":
		return bad("want postgres://user:password@host:port/database?recipe=...; special characters in a password are written as %%XX")
	}
	for key, values := range query {
		if len(values) != 1 {
			return bad("%s is given more than once", key)
		}
	}
	take := func(key string) string {
		v := query.Get(key)
		query.Del(key)
		return v
	}
	var o []Option
	if r := take("recipe"); r != "" {
		o = append(o, With(Recipe(r)))
	}
	switch v := take("tokens"); v {
	case "", "clock":
	case "durable":
		o = append(o, DurableTokens())
	default:
		return bad("tokens %q: give clock or durable", v)
	}
	switch v := take("keys"); v {
	case "", "hashed":
	case "given":
		o = append(o, GivenKeys())
	default:
		return bad("keys %q: give hashed or given", v)
	}
	if t, c := take("table"), take("column"); t != "" || c != "" {
		o = append(o, Table(t, c))
	}
	if _, err := configure(o); err != nil {
		return nil, nil, err
	}
	rest := *u
	rest.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus as it is
	cfg, err := pgconn.ParseConfig(rest.String())
	if err != nil {
		// Its text quotes the URL, without the password.
		return bad("%w", err)
	}
	return cfg, o, nil
}

// parseRaw never quotes what it was given: it may hold a password.
func parseRaw(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, driver.Errorf(driver.Invalid, "pgstore: not a URL of scheme postgres or postgresql; special characters in a password are written as %%XX")
	}
	return u, nil
}
