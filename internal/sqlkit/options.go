package sqlkit

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Options has the options that all stores on SQL databases share. R is the store's type of
// a recipe. The store wraps the errors with its name and CodeInvalid. No error quotes a
// text that may contain a password.
type Options[R ~string] struct {
	// Recipe selects how locks are stored.
	Recipe R
	// Namespace separates names.
	Namespace string
	// Durable commits each token before its grant is returned.
	Durable bool
	// Table and Column name a user's own rows to lock; both or none are set.
	Table, Column string
	// MaxIdle is how many idle connections the store keeps at most; see Idle.
	MaxIdle int
}

// Idle returns the bounds of a pool that keeps at least this number of connections ready.
func (o *Options[R]) Idle(least int) Idle { return Idle{Least: min(least, o.MaxIdle), Most: o.MaxIdle} }

const mostIdle = 10_000

// Recipes that some options require or exclude.
const (
	pessimistic = "pessimistic"
	optimistic  = "optimistic"
)

// Check returns an error if the options contradict each other. recipes are those of the
// store, and identifier is the largest number of characters of an identifier.
func (o *Options[R]) Check(recipes []R, identifier int) error {
	if err := driver.CheckNamespace(o.Namespace); err != nil {
		return err
	}
	switch {
	case o.MaxIdle < 1 || o.MaxIdle > mostIdle:
		return fmt.Errorf("%d idle connections: give 1 to %d", o.MaxIdle, mostIdle)
	case !slices.Contains(recipes, o.Recipe):
		return fmt.Errorf("recipe %q: give one of %s", o.Recipe, list(recipes, ", "))
	case o.Durable && o.Recipe == optimistic:
		return errors.New("durable tokens: the optimistic recipe's are durable already")
	case (o.Table != "" || o.Column != "") && o.Recipe != pessimistic:
		return fmt.Errorf("a table of one's own is for the recipe pessimistic, not %s", o.Recipe)
	case (o.Table == "") != (o.Column == ""):
		return fmt.Errorf("table %q and column %q: give both or none", o.Table, o.Column)
	case o.Table == "":
		return nil
	case o.Namespace != "":
		return fmt.Errorf("a table of one's own has no namespaces, and %q is given", o.Namespace)
	}
	one := fmt.Sprintf("[A-Za-z_][A-Za-z0-9_]{0,%d}", identifier-1)
	may := regexp.MustCompile(`^(` + one + `\.)?` + one + `$`)
	for _, given := range [][2]string{{"table", o.Table}, {"column", o.Column}} {
		if !may.MatchString(given[1]) {
			return fmt.Errorf("%s %q: want 1 to %d letters, digits and '_', a table also after a schema and a dot", given[0], given[1], identifier)
		}
	}
	return nil
}

func list[S ~string](all []S, between string) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, string(s))
	}
	return strings.Join(texts, between)
}

// CheckLimit returns CodeUnsupported for a limit for which a user's table has no rows.
func (o *Options[R]) CheckLimit(limit int) error {
	if o.Table != "" && limit != driver.Exclusive && limit != driver.Unlimited {
		return driver.Errorf(driver.CodeUnsupported, "limit %d: a table of one's own has no rows for permits", limit)
	}
	return nil
}

// Take reads recipe, tokens, table, column and max_idle from a URL's parameters. A parameter
// that is missing changes nothing.
func (o *Options[R]) Take(p *storeurl.Params) (err error) {
	if r := p.Take("recipe"); r != "" {
		o.Recipe = R(r)
	}
	if o.Durable, err = p.Choose("tokens", "clock", "durable"); err != nil {
		return err
	}
	o.Table, o.Column = p.Take("table"), p.Take("column")
	o.MaxIdle, err = p.Int("max_idle", o.MaxIdle)
	return err
}
