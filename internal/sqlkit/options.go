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
}

// Idle returns the limits of a pool that keeps at least ready connections open, or MaxIdle if
// that is less.
func (o *Options[R]) Idle(ready int) Idle { return Idle{Min: min(ready, o.MaxIdle), Max: o.MaxIdle} }

// largestMaxIdle is the largest value of MaxIdle.
const largestMaxIdle = 10_000

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
	case !slices.Contains(recipes, o.Recipe):
		return fmt.Errorf("recipe %q: give one of %s", o.Recipe, join(recipes, ", "))
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

// CheckLimit returns CodeUnsupported for a semaphore on the user's own table, which has no rows for
// permits.
func (o *Options[R]) CheckLimit(limit int) error {
	if o.Table != "" && limit != driver.Exclusive && limit != driver.Unlimited {
		return driver.Errorf(driver.CodeUnsupported, "limit %d: a table of your own has no rows for permits", limit)
	}
	return nil
}

// Take reads recipe, tokens, table, column and max_idle from a URL's parameters. Without
// a parameter, Recipe and MaxIdle keep their values.
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
