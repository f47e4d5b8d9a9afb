package mysql

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestBrokenLabelIsReported: a holder whose recorded label cannot be decoded has an error of its own, and
// hides no other holder.
func TestBrokenLabelIsReported(t *testing.T) {
	mariadb.Each(t, mariadb.Sessions, func(t *testing.T, params, database string) {
		s := mariadb.Store(t, database, params)
		broken, _ := sqltest.Must(t, s, "broken", driver.Exclusive, time.Minute)
		held, _ := sqltest.Must(t, s, "held", driver.Exclusive, time.Minute)
		sqltest.Shown(t, s, broken)
		sqltest.Shown(t, s, held)
		for _, label := range []string{"", "hf1.", "hf1.!.x.1.1.1.aA.aA.aA.", "hf1.AA.x.-7.1.1.aA.aA.aA.", "hf1.AA.x.1.zzzzzzzzzzzzzzzzzzzz.1.aA.aA.aA."} {
			mariadb.Exec(t, database, "UPDATE holdfast_session SET label = ? WHERE name = ?", label, "\x00broken")
			_, err := s.Inspect(t.Context(), "broken")
			if s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), "holdfast_session") {
				t.Errorf("%q: %v", label, err)
			}
			var names []string
			for st, err := range s.List(t.Context(), "") {
				if err != nil || (st.Err == nil) != (st.Name == "held") {
					t.Errorf("%q: %+v, %v", label, st, err)
				}
				names = append(names, st.Name)
			}
			if !slices.Equal(names, []string{"broken", "held"}) {
				t.Errorf("%q: List: %q", label, names)
			}
			sqltest.Busy(t, s, "broken", driver.Exclusive)
		}
		sqltest.Release(t, s, broken)
		sqltest.Release(t, s, held)
	})
}
