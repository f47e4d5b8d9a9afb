package sqlkit

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Options has the options that all stores on SQL databases share. R is the store's type for
// recipes. The methods return plain errors: the store adds its name and CodeInvalid. No error
// quotes a text that may contain a password.
type Options[R ~string] struct {
	// Recipe selects how locks are stored.
	Recipe R
	// Namespace separates the names of one application from those of others.
	Namespace string
	// Durable commits each token before its grant is returned.
	Durable bool
	// Table and Column name the user's own table and its key column. The store locks rows of this
	// table. Both are set, or none.
	Table, Column string
	// MaxIdle is how many idle connections the store keeps at most; see Idle.
	MaxIdle int
	// EndIdle ends the idle connections of the caller's pool, see Idle. It is nil if the store has no such pool.
	EndIdle func()
	// MaxConns is how many connections the sessions of the store use at most. 0 means a part of the
	// server's limit; see Sessions.
	MaxConns int
	// RequireTLS refuses connections that are not by TLS to a verified server. Exposure is the
	// warning without it; see Protect.
	RequireTLS bool
	Exposure   string
}

// Protect checks how the store's own connections are protected.
func (o *Options[R]) Protect(p storeurl.Protection) (err error) {
	o.Exposure, err = p.Check(o.RequireTLS)
	return err
}

// partOfLimit is the part of the connections that a server accepts of its user which the sessions of a store use by
// default. Other clients need connections too, and so do other processes of the same program.
const partOfLimit = 4

// Idle returns the limits of a pool that keeps at least ready connections open, or MaxIdle if
// that is less.
func (o *Options[R]) Idle(ready int) Idle {
	return Idle{Min: min(ready, o.MaxIdle), Max: o.MaxIdle, EndIdle: o.EndIdle}
}

// OnSessions returns the engine of a recipe on sessions. connections returns how many connections the server accepts
// of its user. links are for commits beside a session.
func (o *Options[R]) OnSessions(dial func(context.Context) (Link, error), r Recipe, links *Pool, connections func(context.Context) (int64, error)) Engine {
	e := NewSessions(dial, r, o.Idle(4), o.Namespace)
	e.Durable = o.Durable
	if o.MaxIdle > 0 { // else the caller's pool has a limit of its own
		e.MaxConns = func(ctx context.Context) (int, error) {
			if o.MaxConns > 0 {
				return o.MaxConns, nil
			}
			n, err := connections(ctx)
			return max(int(n/partOfLimit), 2), err
		}
	}
	links.Limit(SideLinks)
	return e
}

// Over makes the options those of a store over a caller's pool, which keeps its own idle connections. endIdle ends
// these, at most once per endIdleEvery.
func (o *Options[R]) Over(endIdle func()) {
	var mu sync.Mutex
	var last time.Time
	o.MaxIdle = 0
	o.EndIdle = func() {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) >= endIdleEvery {
			endIdle()
			last = time.Now()
		}
	}
}

// endIdleEvery is the shortest time between two ends of all idle connections of a caller's pool. While a server is
// read-only, each request would otherwise make the program open its connections anew.
const endIdleEvery = time.Second

// largestMaxIdle is the largest value of MaxIdle.
const largestMaxIdle = 10_000

// largestMaxConns is the largest value of MaxConns, which is that of MySQL.
const largestMaxConns = 100_000

// Recipes that some options require or exclude.
const (
	pessimistic = "pessimistic"
	optimistic  = "optimistic"
)

// Check returns an error if an option is invalid or two options contradict each other. recipes are
// those of the store. maxIdentifier is the length of the longest identifier, in characters.
func (o *Options[R]) Check(recipes []R, maxIdentifier int) error {
	if err := driver.CheckNamespace(o.Namespace); err != nil {
		return err
	}
	switch {
	case o.MaxIdle < 1 || o.MaxIdle > largestMaxIdle:
		return fmt.Errorf("%d idle connections: give 1 to %d", o.MaxIdle, largestMaxIdle)
	case o.MaxConns < 0 || o.MaxConns > largestMaxConns:
		return fmt.Errorf("%d connections: give 1 to %d, or 0 for a part of the server's limit", o.MaxConns, largestMaxConns)
	case !slices.Contains(recipes, o.Recipe):
		return fmt.Errorf("recipe %q: give one of %s", o.Recipe, join(recipes, ", "))
	case o.MaxConns > 0 && o.Recipe == optimistic:
		return errors.New("a limit of connections: the recipe optimistic needs none for a lock")
	case o.Durable && o.Recipe == optimistic:
		return errors.New("durable tokens: the recipe optimistic always has them")
	case (o.Table != "" || o.Column != "") && o.Recipe != pessimistic:
		return fmt.Errorf("a table of your own is for the recipe pessimistic, not %s", o.Recipe)
	case (o.Table == "") != (o.Column == ""):
		return fmt.Errorf("table %q and column %q: give both or none", o.Table, o.Column)
	case o.Table == "":
		return nil
	case o.Namespace != "":
		return fmt.Errorf("a table of your own has no namespaces: omit namespace %q", o.Namespace)
	}
	part := fmt.Sprintf("[A-Za-z_][A-Za-z0-9_]{0,%d}", maxIdentifier-1)
	valid := regexp.MustCompile(`^(` + part + `\.)?` + part + `$`)
	for _, option := range []struct{ name, value string }{{"table", o.Table}, {"column", o.Column}} {
		if !valid.MatchString(option.value) {
			return fmt.Errorf("%s %q: want 1 to %d letters, digits and '_', with an optional schema and a dot before a table", option.name, option.value, maxIdentifier)
		}
	}
	return nil
}

func join[S ~string](all []S, separator string) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, string(s))
	}
	return strings.Join(texts, separator)
}

// CheckRow implements Check of a [Recipe] of row locks. It returns CodeUnsupported for a semaphore on the user's own
// table, which has no rows for permits.
func (o *Options[R]) CheckRow(r *driver.Request, unit time.Duration) (time.Duration, error) {
	if o.Table != "" && r.Limit != driver.Exclusive && r.Limit != driver.Unlimited {
		return 0, driver.Errorf(driver.CodeUnsupported, "limit %d: a table of your own has no rows for permits", r.Limit)
	}
	return RoundTTL(r.TTL, unit)
}

// NotUnique returns the reason to refuse a user's table in which a name may have two rows. found are
// the definitions of its unique indexes.
func NotUnique(table, column string, found []string) error {
	indexes := "it has no unique index"
	if len(found) > 0 {
		indexes = "it has only: " + strings.Join(found, "; ")
	}
	return fmt.Errorf("in table %s two rows may have the same %s, so that two clients hold one name: %s. "+
		"Create a unique index on exactly that column, whole, unconditional and checked at once: CREATE UNIQUE INDEX holdfast_lock ON %[1]s (%[2]s)", table, column, indexes)
}

// Take reads recipe, tokens, table, column, max_conns, max_idle and require_tls from a URL's parameters. Without
// a parameter, Recipe, MaxConns and MaxIdle keep their values.
func (o *Options[R]) Take(p *storeurl.Params) {
	if r := p.Take("recipe"); r != "" {
		o.Recipe = R(r)
	}
	o.Durable = p.Choose("tokens", "clock", "durable")
	o.Table, o.Column = p.Take("table"), p.Take("column")
	o.MaxConns, o.MaxIdle = p.Int("max_conns", o.MaxConns), p.Int("max_idle", o.MaxIdle)
	o.RequireTLS = p.Choose("require_tls", "false", "true")
}
