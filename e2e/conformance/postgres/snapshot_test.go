package postgres

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestHolderBuildsIndexBesideWaiter: the holder builds indexes concurrently, as a migration does, while another client
// waits. CREATE INDEX CONCURRENTLY waits for the end of each transaction that has an older snapshot, and so forever for a
// waiter that keeps its snapshot.
func TestHolderBuildsIndexBesideWaiter(t *testing.T) {
	for _, recipe := range postgres.Recipes {
		t.Run(recipe, func(t *testing.T) {
			t.Parallel()
			database := postgres.Create(t)
			db := postgres.Pool(t, database)
			holder, waiting := postgres.Store(t, database, "recipe="+recipe), postgres.Store(t, database, "recipe="+recipe)
			g, _ := sqltest.Must(t, holder, "migration", driver.Exclusive, time.Minute)
			r, _ := sqltest.Request("migration", driver.Exclusive, time.Second) // so that no statement waits for more than a second
			w := requests.QueueWith(t, t.Context(), waiting, r)
			ctx, cancel := context.WithTimeout(t.Context(), requests.Timeout)
			defer cancel()
			if _, err := db.ExecContext(ctx, "CREATE TABLE big (n int, m int)"); err != nil {
				t.Fatal(err)
			}
			for _, column := range []string{"n", "m"} { // beside the first statement that waits, and beside a later one
				if _, err := db.ExecContext(ctx, "CREATE INDEX CONCURRENTLY ON big ("+column+")"); err != nil {
					t.Fatal(err)
				}
			}
			w.Pending()
			requests.Release(t, holder, g)
			requests.Release(t, waiting, w.Granted())
		})
	}
}

// TestLongReadersDoNotStarveAWriter: readers overlap all the time, and each has the lock for longer than a statement of
// the writer waits. The user has, or has not, the right to PL/pgSQL.
func TestLongReadersDoNotStarveAWriter(t *testing.T) {
	limited := postgres.Create(t)
	for _, q := range []string{"CREATE USER " + limited, "GRANT ALL ON ALL TABLES IN SCHEMA public TO " + limited, "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC"} {
		postgres.Exec(t, limited, q)
	}
	for _, recipe := range postgres.Sessions {
		for user, database := range map[string]string{"postgres": postgres.Create(t), limited: limited} {
			t.Run(recipe+" "+user, func(t *testing.T) {
				t.Parallel()
				longReaders(t, postgres.Store(t, database, "recipe="+recipe+"&user="+user))
			})
		}
	}
}

func longReaders(t *testing.T, s driver.Store) {
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() {
			for pause := time.Duration(i) * 500 * time.Millisecond; ctx.Err() == nil; pause = 1500 * time.Millisecond {
				r, _ := sqltest.Request("long", driver.Unlimited, time.Minute)
				g := requests.Submit(t, s, r).Granted()
				time.Sleep(pause)
				requests.Release(t, s, g)
			}
		})
	}
	time.Sleep(time.Second)
	r, _ := sqltest.Request("long", driver.Exclusive, time.Second)
	w := requests.Submit(t, s, r)
	requests.Release(t, s, w.Granted())
	stop()
	readers.Wait()
}

// TestRepeatedWaitIsOneWait: a waiter repeats its statement. An inspection shows since when it has waited in all, and the
// server logs the end of the first statement only.
func TestRepeatedWaitIsOneWait(t *testing.T) {
	server := postgres.Another(t)
	const database = "postgres"
	for _, recipe := range postgres.Sessions {
		t.Run(recipe, func(t *testing.T) {
			s := postgres.StoreAt(t, server.Address, database, "recipe="+recipe)
			check(t, s.Init(t.Context()))
			g, _ := sqltest.Must(t, s, "again", driver.Exclusive, time.Minute)
			began := time.Now()
			r, _ := sqltest.Request("again", driver.Exclusive, time.Second)
			w := requests.QueueWith(t, t.Context(), s, r)
			var second time.Time // when the second statement was running
			db := postgres.PoolAt(t, server.Address, database)
			statements := map[string]bool{} // by their start
			requests.Eventually(t, "a third statement", func() bool {
				var start string
				err := db.QueryRow("SELECT query_start FROM pg_stat_activity WHERE query LIKE '%" + r.ID + "%' AND pid <> pg_backend_pid()").Scan(&start)
				if errors.Is(err, sql.ErrNoRows) {
					return false // the session is between two statements
				}
				check(t, err)
				statements[start] = true
				if len(statements) == 2 && second.IsZero() {
					second = time.Now()
				}
				return len(statements) == 3
			})
			requests.Eventually(t, "the waiter is shown, with the time of its first statement", func() bool {
				st, err := s.Inspect(t.Context(), "again")
				check(t, err)
				if len(st.Waiters) != 1 || st.Waiters[0].ID != r.ID {
					return false // the session is between two statements
				}
				since := st.Waiters[0].Since
				if since.Before(began) || since.After(second) {
					t.Errorf("it has waited since %s, want %s to %s", since, began, second)
				}
				return true
			})
			requests.Release(t, s, g)
			requests.Release(t, s, w.Granted())
		})
	}
	log := server.Process.(*servers.Postgres).Output()
	if n := strings.Count(log, "lock timeout"); n > len(postgres.Sessions) {
		t.Errorf("the server has logged %d timeouts:\n%s", n, log)
	}
}
