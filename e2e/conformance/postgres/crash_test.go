package postgres

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestCrashForgetsNothingThatWasGranted crashes a server that acknowledges commits
// before they are on its disk. Grants and renewals of the optimistic recipe and versioned values
// stand afterwards, and durable tokens rise.
func TestCrashForgetsNothingThatWasGranted(t *testing.T) {
	t.Parallel()
	server := postgres.Another(t, "synchronous_commit=off", "wal_writer_delay=10s")
	crash := func(t *testing.T) {
		t.Helper()
		server.Kill()
		check(t, server.Restart(t.Context()))
	}
	open := func(t *testing.T, params string) sqltest.Store {
		s := postgres.StoreAt(t, server.Address, postgres.Home, params)
		check(t, s.Init(t.Context()))
		crash(t) // the tables survive
		return s
	}
	t.Run("optimistic", func(t *testing.T) {
		s := open(t, "recipe=optimistic")
		inserted, _ := sqltest.Must(t, s, "inserted", driver.Exclusive, time.Minute)
		crash(t)
		sqltest.Busy(t, s, "inserted", driver.Exclusive)
		sqltest.Release(t, s, inserted)
		updated, _ := sqltest.Must(t, s, "inserted", driver.Exclusive, time.Minute)
		crash(t)
		sqltest.Busy(t, s, "inserted", driver.Exclusive)
		sqltest.Release(t, s, updated)
		// One statement renews several grants.
		one, _ := sqltest.Must(t, s, "one", driver.Exclusive, time.Minute)
		two, _ := sqltest.Must(t, s, "two", driver.Exclusive, time.Minute)
		deadlines := func() (sum int64) {
			t.Helper()
			db := postgres.PoolAt(t, server.Address, postgres.Home)
			check(t, db.QueryRowContext(t.Context(), "SELECT SUM(expires) FROM holdfast_row WHERE token IN ($1, $2)", int64(one.Token), int64(two.Token)).Scan(&sum))
			return sum
		}
		for _, a := range s.Renew(t.Context(), []driver.Grant{one, two}) {
			if a.Err != nil {
				t.Fatal(a.Err)
			}
		}
		renewed := deadlines()
		crash(t)
		if after := deadlines(); after != renewed {
			t.Errorf("the deadlines are %d in all, and %d after a crash", renewed, after)
		}
		sqltest.Busy(t, s, "one", driver.Exclusive)
		sqltest.Release(t, s, one)
		sqltest.Release(t, s, two)
	})
	t.Run("values", func(t *testing.T) {
		open(t, "recipe=optimistic")
		values := func() driver.Values { // on new connections
			s := postgres.StoreAt(t, server.Address, postgres.Home, "recipe=optimistic")
			return s.(driver.Values)
		}
		put := func(data, version string) string {
			t.Helper()
			next, err := values().Put(t.Context(), "value", []byte(data), version)
			check(t, err)
			crash(t)
			got, found, err := values().Get(t.Context(), "value")
			if err != nil || string(got) != data || found != next {
				t.Errorf("after a crash: %q, version %q, %v; want %q, version %q", got, found, err, data, next)
			}
			return next
		}
		put("second", put("first", ""))
	})
	for _, recipe := range postgres.Sessions {
		t.Run("tokens of "+recipe, func(t *testing.T) {
			s := open(t, "tokens=durable&recipe="+recipe)
			// The high-water mark is far ahead of the clock, so that tokens depend on the
			// mark alone.
			ahead := time.Now().Add(time.Hour).UnixMicro()
			db := postgres.PoolAt(t, server.Address, postgres.Home)
			if _, err := db.ExecContext(t.Context(), "UPDATE holdfast_floor SET token = $1", ahead); err != nil {
				t.Fatal(err)
			}
			first, _ := sqltest.Must(t, s, "token", driver.Exclusive, time.Minute)
			crash(t)
			_ = s.Release(t.Context(), first, 0) // the grant ended with its session
			second, _ := sqltest.Must(t, s, "token", driver.Exclusive, time.Minute)
			if second.Token <= first.Token {
				t.Errorf("token %d after %d and a crash", second.Token, first.Token)
			}
			sqltest.Release(t, s, second)
		})
	}
}
