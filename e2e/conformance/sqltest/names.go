package sqltest

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// odd are names of which some look the same if a store replaces or escapes characters.
var odd = []string{"a~b", "a b", "a^b", "a\\b", "a'b", "a\"b", "a`b", "a%b", "a_b", "a|b", "a{b}", "a@b", "a#b", "a;b--", "aéb", "日本~", "~", "~~"}

// OddNamesStayUnchanged requires that names stay unchanged for every character set and all quoting rules of a
// session. foreign are parameters of a store whose sessions have other settings.
func OddNamesStayUnchanged(t *testing.T, d *Database, foreign string) {
	d.Each(t, d.Recipes, func(t *testing.T, params, database string) {
		s := d.Store(t, database, params)
		other := d.Store(t, database, params+"&"+foreign)
		held := map[string]driver.Grant{}
		for _, name := range odd {
			held[name], _ = Must(t, s, name, driver.Exclusive, time.Minute)
		}
		for _, name := range odd {
			Busy(t, other, name, driver.Exclusive)
			Shown(t, other, held[name])
			st, err := other.Inspect(t.Context(), name)
			if err != nil || st.Name != name || len(st.Holders) != 1 || st.Holders[0].Token != held[name].Token {
				t.Errorf("%q is seen as %+v, %v; want token %d", name, st, err, held[name].Token)
			}
		}
		listed := 0
		for st, err := range other.List(t.Context(), "") {
			check(t, err)
			if g, ok := held[st.Name]; !ok || len(st.Holders) != 1 || st.Holders[0].Token != g.Token {
				t.Errorf("%q is listed as %+v; want token %d", st.Name, st, g.Token)
			}
			listed++
		}
		if listed != len(odd) {
			t.Errorf("%d names are listed, want %d", listed, len(odd))
		}
		for name, g := range held {
			Release(t, s, g)
			again, _ := Must(t, other, name, driver.Exclusive, time.Minute)
			Release(t, other, again)
		}
	})
}

// OddNamesMatchOtherPrograms requires that holdfast writes names to a user's table as another program does, also if
// the store's sessions have foreign settings. create makes the table odd with the column name.
func OddNamesMatchOtherPrograms(t *testing.T, d *Database, foreign, create string) {
	database := d.Create(t)
	d.Exec(t, database, create)
	s := d.Store(t, database, "recipe=pessimistic&table=odd&column=name&"+foreign)
	db := d.Pool(t, database)
	for _, name := range odd {
		g, _ := Must(t, s, name, driver.Exclusive, time.Minute) // creates the row
		Release(t, s, g)
		tx, err := db.Begin()
		check(t, err)
		var got string
		err = tx.QueryRow(fmt.Sprintf("SELECT name FROM odd WHERE name = %s FOR UPDATE", d.Parameter), name).Scan(&got)
		if err != nil || got != name {
			t.Errorf("the row of %q is %q, %v", name, got, err)
		} else {
			Busy(t, s, name, driver.Exclusive)
		}
		_ = tx.Rollback()
	}
	var n int
	if err := db.QueryRow("SELECT COUNT(*) FROM odd").Scan(&n); err != nil || n != len(odd) {
		t.Errorf("%d rows, %v; want %d", n, err, len(odd))
	}
}
