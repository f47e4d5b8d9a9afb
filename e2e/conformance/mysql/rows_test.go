package mysql

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestSessionRowsAreRemoved requires that holdfast_session keeps no row of a released grant, and none
// of a session that has ended without a release.
func TestSessionRowsAreRemoved(t *testing.T) {
	mariadb.Each(t, mariadb.Sessions, func(t *testing.T, params, schema string) {
		db := mariadb.Pool(t, schema)
		count := func() (n int) {
			t.Helper()
			check(t, db.QueryRow("SELECT COUNT(*) FROM holdfast_session").Scan(&n))
			return n
		}
		s := mariadb.Store(t, schema, params)
		g, _ := sqltest.Must(t, s, "released", driver.Exclusive, time.Minute)
		row(t, schema, g)
		sqltest.Release(t, s, g)
		if !sqltest.Soon(func() bool { return count() == 0 }) {
			t.Errorf("%d rows are left after a release", count())
		}
		// The next sessions end while they have locks.
		dead := mariadb.Store(t, schema, params)
		for i := range 5 {
			g, _ := sqltest.Must(t, dead, fmt.Sprintf("dead-%d", i), driver.Exclusive, time.Minute)
			row(t, schema, g)
		}
		sqltest.Close(t, dead)
		kept, a := sqltest.Must(t, s, "kept", driver.Exclusive, time.Minute)
		row(t, schema, kept)
		next := mariadb.Store(t, schema, params) // a store removes such rows when it writes its first one
		g, _ = sqltest.Must(t, next, "next", driver.Exclusive, time.Minute)
		row(t, schema, g)
		if !sqltest.Soon(func() bool { return count() == 2 }) {
			t.Errorf("%d rows, want one for each of the two holders", count())
		}
		a.Keeps(t)
		st, err := next.Inspect(t.Context(), "kept")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != kept.Token {
			t.Errorf("Inspect shows %+v, %v; want token %d", st, err, kept.Token)
		}
		sqltest.Release(t, next, g)
		sqltest.Release(t, s, kept)
	})
}

// TestUnrecordedHolderIsAnError: the store cannot record a holder. Inspect and Break then return an
// error, and do not report that the lock is free. The store records the holder as soon as it can.
func TestUnrecordedHolderIsAnError(t *testing.T) {
	t.Parallel()
	mariadb.Each(t, mariadb.Sessions, func(t *testing.T, params, schema string) {
		s := mariadb.Store(t, schema, params)
		c, err := mariadb.Pool(t, schema).Conn(t.Context())
		check(t, err)
		defer c.Close()
		if _, err := c.ExecContext(t.Context(), "LOCK TABLES holdfast_session READ"); err != nil {
			t.Fatal(err)
		}
		g, a := sqltest.Must(t, s, "unseen", driver.Exclusive, time.Minute)
		if err := s.Break(t.Context(), "unseen", g.Token); s.Classify(err) != driver.CodeUnavailable {
			t.Errorf("Break: %v; want unavailable", err)
		}
		if params == "recipe=pessimistic" { // the recipe named reads the lock itself
			if st, err := s.Inspect(t.Context(), "unseen"); s.Classify(err) != driver.CodeUnavailable {
				t.Errorf("Inspect: %+v, %v; want unavailable", st, err)
			}
		}
		for _, err := range s.List(t.Context(), "") {
			if s.Classify(err) != driver.CodeUnavailable {
				t.Errorf("List: %v; want unavailable", err)
			}
		}
		a.Keeps(t)
		if _, err := c.ExecContext(context.Background(), "UNLOCK TABLES"); err != nil {
			t.Fatal(err)
		}
		row(t, schema, g)
		st, err := s.Inspect(t.Context(), "unseen")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != g.Token {
			t.Errorf("Inspect shows %+v, %v; want token %d", st, err, g.Token)
		}
		must.Report(t, s.Break(t.Context(), "unseen", g.Token))
		if c := a.AwaitLoss(t); c != driver.CauseTaken {
			t.Errorf("the holder lost its lock with cause %q", c)
		}
	})
}

// TestInitReplacesEarlierLayout: Init replaces the table holdfast_session of an earlier version, which
// was in memory. It keeps a table of this version.
func TestInitReplacesEarlierLayout(t *testing.T) {
	schema := mariadb.Bare(t)
	mariadb.Exec(t, schema, "CREATE TABLE holdfast_session (conn BIGINT UNSIGNED NOT NULL PRIMARY KEY, token BIGINT NOT NULL) ENGINE=MEMORY")
	s := mariadb.Store(t, schema, "recipe=pessimistic")
	var g driver.Grant
	for range 2 {
		check(t, s.Init(t.Context()))
		if g.Token == 0 {
			g, _ = sqltest.Must(t, s, "layout", driver.Exclusive, time.Minute)
		}
		row(t, schema, g)
	}
	sqltest.Release(t, s, g)
}
