package mysqlstore

import (
	"context"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
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

var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,63}\.)?[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// Recipes lists them; the first is the default.
func Recipes() []Recipe { return []Recipe{Pessimistic, Optimistic, Named} }

// Option changes how a store is opened.
type Option func(*config)

type config struct {
	recipe    Recipe
	namespace string
	durable   bool
	exact     bool
	table     string
	column    string
}

// With chooses the recipe. The default is Pessimistic.
func With(r Recipe) Option { return func(c *config) { c.recipe = r } }

// Namespace keeps the names of this store apart from those of stores opened with
// another namespace. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// DurableTokens writes each token into a row, and commits it, before the grant is
// given, so that tokens rise even if the server's clock is set back. It is for
// Pessimistic and Named and costs a committed write per grant; Optimistic tokens are
// durable anyway.
func DurableTokens() Option { return func(c *config) { c.durable = true } }

// ExactNames makes Named give GET_LOCK the names as they are, to share them with
// others who use GET_LOCK. Names that the server would cut or fold are refused: at
// most 64 characters, none of them upper case on MySQL, which does not tell cases
// apart; at most 192 bytes on MariaDB. It has no namespaces.
func ExactNames() Option { return func(c *config) { c.exact = true } }

// Table makes Pessimistic lock the rows of a table that is there already, to share
// them with others who lock those rows: column has a unique index and holds the
// names. Rows that are missing are inserted, with the column alone. Semaphores are
// not supported on it.
func Table(table, column string) Option {
	return func(c *config) { c.table, c.column = table, column }
}

func configure(options []Option) (*config, error) {
	c := &config{recipe: Pessimistic}
	for _, o := range options {
		o(c)
	}
	bad := func(format string, args ...any) (*config, error) {
		return nil, driver.Errorf(driver.Invalid, "mysqlstore: "+format, args...)
	}
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return bad("%w", err)
	}
	switch {
	case !slices.Contains(Recipes(), c.recipe):
		return bad("recipe %q: give one of pessimistic, optimistic, named", c.recipe)
	case c.durable && c.recipe == Optimistic:
		return bad("durable tokens: the optimistic recipe's are durable already")
	case c.exact && c.recipe != Named:
		return bad("exact names are for the recipe named, not %s", c.recipe)
	case c.exact && c.namespace != "":
		return bad("exact names have no namespace, and %q is given", c.namespace)
	case (c.table != "" || c.column != "") && c.recipe != Pessimistic:
		return bad("a table of one's own is for the recipe pessimistic, not %s", c.recipe)
	case (c.table == "") != (c.column == ""):
		return bad("table %q and column %q: give both or none", c.table, c.column)
	case c.table != "" && c.namespace != "":
		return bad("a table of one's own has no namespaces, and %q is given", c.namespace)
	}
	for what, id := range map[string]string{"table": c.table, "column": c.column} {
		if id != "" && !identifier.MatchString(id) {
			return bad("%s %q: want 1 to 64 letters, digits and '_', a table also after a schema and a dot", what, id)
		}
	}
	return c, nil
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
		return nil, nil, driver.Errorf(driver.Invalid, "mysqlstore: URL: "+format, args...)
	}
	schema := strings.TrimPrefix(u.Path, "/")
	query, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return bad("the parameters cannot be read")
	case u.Opaque != "" || u.Fragment != "":
		return bad("want mysql://user:password@host:port/schema?recipe=...; special characters in a password are written as %%XX")
	case schema == "" || strings.Contains(schema, "/"):
		return bad("schema %q: give one behind the host, as in mysql://host/schema", schema)
	}
	var o []Option
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
	switch v := take("names"); v {
	case "", "hashed":
	case "exact":
		o = append(o, ExactNames())
	default:
		return bad("names %q: give hashed or exact", v)
	}
	if t, c := take("table"), take("column"); t != "" || c != "" {
		o = append(o, Table(t, c))
	}
	socket := take("socket")
	cfg, err := mysql.ParseDSN("/?" + query.Encode())
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
