package sqltest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// corrupt replaces the state in the row of a name by another version, and returns a function that removes the row.
func (d *Database) corrupt(t testing.TB, database, namespace, name, state string) (remove func()) {
	t.Helper()
	key := []byte(namespace + "\x00" + name)
	second := "?"
	if d.Parameter == "$1" {
		second = "$2"
	}
	d.Exec(t, database, fmt.Sprintf("UPDATE holdfast_row SET version = version + 1, state = %s WHERE name = %s", d.Parameter, second), state, key)
	return func() { d.Exec(t, database, "DELETE FROM holdfast_row WHERE name = "+d.Parameter, key) }
}

// brokenRowsGrantNothing requires that a row which no client can have written grants nothing, that the error
// names it, and that it hides no other name.
func brokenRowsGrantNothing(t *testing.T, d *Database) {
	database := d.Create(t)
	s := d.Store(t, database, "recipe=optimistic")
	refused := func(err error, what string) {
		t.Helper()
		if s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), "broken") || len(err.Error()) > 1000 {
			t.Fatalf("%s: %v", what, err)
		}
	}
	held, _ := Must(t, s, "held", driver.Exclusive, time.Minute)
	check := func(what string) {
		t.Helper()
		for _, limit := range []int{driver.Exclusive, 3, driver.Unlimited} {
			for _, wait := range []bool{false, true} {
				r, _ := Request("broken", limit, time.Minute)
				r.Wait = wait
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := s.Acquire(ctx, r)
				cancel()
				refused(err, what)
			}
		}
		_, err := s.Inspect(t.Context(), "broken")
		refused(err, what)
	}
	const far = "9223372036854775807"
	for what, state := range map[string]string{
		"empty": "", "null": "null", "another program's": `{"owner":"x"}`, "no ID": `{"holders":[{"limit":1,"expires":1}]}`,
		"limit": `{"holders":[{"id":"x","limit":0,"slot":-1,"token":1,"expires":1}]}`,
		"times": `{"holders":[{"id":"x","limit":1,"slot":-1,"token":1,"expires":` + far + `,"ttl":` + far + `}]}`,
		"slot":  `{"holders":[{"id":"x","limit":3,"slot":3,"token":1,"expires":1}]}`,
		"token": `{"holders":[{"id":"x","limit":3,"slot":1,"token":` + far + `,"expires":1}]}`,
		"two":   `{"holders":[{"id":"x","limit":1,"slot":-1,"expires":1},{"id":"y","limit":1,"slot":-1,"expires":1}]}`,
		"deep":  `{"holders":` + strings.Repeat("[", 1<<20),
	} {
		g, _ := Must(t, s, "broken", driver.Exclusive, time.Minute)
		remove := d.corrupt(t, database, "", "broken", state)
		check(what)
		refused(s.Release(t.Context(), g, 0), what)
		renewals := s.Renew(t.Context(), []driver.Grant{g, held})
		refused(renewals[0].Err, what)
		if renewals[1].Err != nil {
			t.Errorf("%s: the renewal of another name: %v", what, renewals[1].Err)
		}
		var names []string
		for st, err := range s.List(t.Context(), "") {
			if err != nil || (st.Err == nil) != (st.Name == "held") {
				t.Errorf("%s: %+v, %v", what, st, err)
			}
			names = append(names, st.Name)
		}
		if !slices.Equal(names, []string{"broken", "held"}) {
			t.Errorf("%s: List: %q", what, names)
		}
		remove()
	}
	g, _ := Must(t, s, "broken", driver.Exclusive, time.Minute)
	Release(t, s, g)
	d.Exec(t, database, "UPDATE holdfast_row SET token = "+far+" WHERE token = "+fmt.Sprint(g.Token))
	check("the last token")
	d.Exec(t, database, "DELETE FROM holdfast_row WHERE token = "+far)
	d.Exec(t, database, "UPDATE holdfast_floor SET token = "+far)
	check("the high-water mark")
	d.Exec(t, database, "UPDATE holdfast_floor SET token = 0")
	Release(t, s, held)

	if _, err := s.Put(t.Context(), "broken", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, database, "UPDATE holdfast_value SET data = "+d.Parameter, make([]byte, driver.MaxValue+1))
	_, _, err := s.Get(t.Context(), "broken")
	refused(err, "a value that is too long")
}
