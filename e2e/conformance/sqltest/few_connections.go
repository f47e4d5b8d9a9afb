package sqltest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// RenewsOverFewConnections requires that a client renews all its grants although the server accepts
// few connections of its user. The renewal needs more scripts than there are connections. The
// statements create a user USER_NAME with such a limit, and grant it the rights on DATABASE.
func RenewsOverFewConnections(t *testing.T, d *Database, statements ...string) {
	database := d.Create(t)
	for _, q := range statements {
		d.Exec(t, database, strings.NewReplacer("DATABASE", database, "USER_NAME", "few_"+database).Replace(q))
	}
	url := d.URL(d.Server(t).Address, database, "recipe=optimistic")
	before, after, _ := strings.Cut(url, "@")
	scheme, _, _ := strings.Cut(before, "://")
	s, err := d.Open(t.Context(), scheme+"://few_"+database+"@"+after, "")
	if err != nil {
		t.Fatal(err)
	}
	defer Close(t, s)
	// Once a second the store checks its held grants, and may use all connections for it.
	var grants []driver.Grant
	for len(grants) < 300 {
		r, _ := Request(fmt.Sprint("few-", len(grants)), driver.Exclusive, time.Hour)
		g, err := s.Acquire(t.Context(), r)
		switch {
		case err == nil:
			grants = append(grants, g)
		case s.Classify(err) != driver.CodeUnavailable:
			t.Fatal(err)
		}
	}
	for range 10 {
		all := true
		for _, r := range s.Renew(t.Context(), grants) {
			if r.Err != nil && s.Classify(r.Err) != driver.CodeUnavailable {
				t.Fatal(r.Err)
			}
			all = all && r.Err == nil
		}
		if all {
			return
		}
	}
	t.Error("none of 10 renewals succeeded for all grants")
}
