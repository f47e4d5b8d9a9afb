package postgres

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestCrashForgetsNothingThatWasGranted crashes a server that acknowledges commits
// before they are on its disk. Grants of the optimistic recipe stand afterwards, and
// durable tokens rise.
func TestCrashForgetsNothingThatWasGranted(t *testing.T) {
	postgres.Server(t) // skips, or fails
	server, err := postgres.Start(t.Context(), "synchronous_commit=off", "wal_writer_delay=10s")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	crash := func(t *testing.T) {
		t.Helper()
		server.Kill()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	open := func(t *testing.T, params string) sqltest.Store {
		s := postgres.StoreAt(t, server.Address, postgres.Home, params)
		t.Cleanup(func() { sqltest.Close(t, s) })
		if err := s.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
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
