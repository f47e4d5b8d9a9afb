package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/pgstore"
)

// watching is a watch of a name.
type watching struct {
	changed chan struct{}
	ended   chan error
	cancel  context.CancelFunc
}

// watch starts a watch, and returns when it has started.
func watch(t *testing.T, s sqltest.Store, name string) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watching{make(chan struct{}, 1000), make(chan error, 1), cancel}
	go func() {
		w.ended <- s.(driver.Watcher).Watch(ctx, name, func() { w.changed <- struct{}{} })
	}()
	requests.Receive(t, "the start of a watch", w.changed)
	return w
}

// end ends a watch. After it nothing is reported.
func (w *watching) end(t *testing.T) {
	t.Helper()
	w.cancel()
	requests.Receive(t, "the end of a watch", w.ended)
}

// waits makes a request that waits for a name and gives up. It requires that each of the watches reports it.
func waits(t *testing.T, s sqltest.Store, name string, watches ...*watching) {
	t.Helper()
	for _, w := range watches {
		for len(w.changed) > 0 {
			<-w.changed
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiter := requests.QueueWith(t, ctx, s, requests.New(name, driver.Exclusive, requests.Long))
	for _, w := range watches {
		requests.Receive(t, "the report of a waiter", w.changed)
	}
	cancel()
	waiter.Failed()
}

// listening returns the number of the only session that has the mark of a watched name, 0 if there is none.
func listening(t *testing.T, db *sql.DB) (pid int) {
	t.Helper()
	err := db.QueryRow("SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND datname = current_database() AND query LIKE 'SELECT ''%'").Scan(&pid)
	if err != sql.ErrNoRows {
		must.Succeed(t, err)
	}
	return pid
}

// TestWaiterNotifiesEachWatch: a waiter notifies all clients that watch its name, also after the client that had the mark
// of the name has ended its watch, and after the session that listens was ended. No session remains.
func TestWaiterNotifiesEachWatch(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		name := strings.ReplaceAll(t.Name(), "/", "-")
		holder, first, second := postgres.Store(t, database, params), postgres.Store(t, database, params), postgres.Store(t, database, params)
		db := postgres.Pool(t, database)
		g, _ := sqltest.Must(t, holder, name, driver.Exclusive, requests.Long)
		a := watch(t, first, name)
		marked := listening(t, db)
		if marked == 0 {
			t.Fatal("no session has the mark of the name")
		}
		b := watch(t, second, name)
		waits(t, holder, name, a, b)

		a.end(t)
		var next int
		requests.Eventually(t, "the other client has the mark", func() bool {
			next = listening(t, db)
			return next != 0 && next != marked
		})
		waits(t, holder, name, b)

		postgres.Exec(t, database, fmt.Sprintf("SELECT pg_terminate_backend(%d)", next))
		requests.Eventually(t, "a new session has the mark", func() bool {
			pid := listening(t, db)
			return pid != 0 && pid != next
		})
		waits(t, holder, name, b)
		c := watch(t, second, name)
		waits(t, holder, name, b, c)

		last := listening(t, db)
		b.end(t)
		c.end(t)
		requests.Eventually(t, "no session has the mark", func() bool { return listening(t, db) == 0 })
		sqltest.Release(t, holder, g)
		requests.Eventually(t, "the session that listens has ended", func() bool {
			var n int
			check(t, db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", last).Scan(&n))
			return n == 0
		})
	})
}

// TestListenerLeavesADeadConnection: the connection that listens carries nothing any more, while it stays open. The client
// listens on another one.
func TestListenerLeavesADeadConnection(t *testing.T) {
	t.Parallel()
	database := postgres.Create(t)
	db := postgres.Pool(t, database)
	proxy, err := servers.NewProxy(postgres.Server(t).Address)
	check(t, err)
	t.Cleanup(proxy.Close)
	holder, s := postgres.Store(t, database, "recipe=advisory"), postgres.StoreAt(t, proxy.Address(), database, "recipe=advisory")
	g, _ := sqltest.Must(t, holder, "dead", driver.Exclusive, requests.Long)
	w := watch(t, s, "dead")
	first := listening(t, db)
	proxy.Mute()
	requests.Eventually(t, "another session listens", func() bool {
		var n int
		check(t, db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> $1 AND query LIKE 'SELECT ''%,%'", first).Scan(&n))
		return n > 0
	})
	waits(t, holder, "dead", w)
	w.end(t)
	sqltest.Release(t, holder, g)
}

// TestWaitWithoutAWatchNotifiesNobody: while no client watches a name, no client is notified, however many wait.
func TestWaitWithoutAWatchNotifiesNobody(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		s, other := postgres.Store(t, database, params), postgres.Store(t, database, params)
		conn, err := pgx.Connect(t.Context(), postgres.DSN(postgres.Server(t).Address, database))
		check(t, err)
		defer conn.Close(context.Background())
		_, err = conn.Exec(t.Context(), "LISTEN holdfast_wanted")
		check(t, err)
		elsewhere := watch(t, s, "elsewhere")
		g, _ := sqltest.Must(t, s, "alone", driver.Exclusive, requests.Long)
		w := requests.Queue(t, other, requests.New("alone", driver.Exclusive, requests.Long))
		sqltest.Release(t, s, g)
		sqltest.Release(t, other, w.Granted())

		requests.Each(t, 400, 8, func(i int) error {
			client := []sqltest.Store{s, other}[i%2]
			r := requests.New("alone", driver.Exclusive, requests.Long)
			r.Wait = true
			g, err := client.Acquire(t.Context(), r)
			if err == nil {
				err = client.Release(t.Context(), g, 0)
			}
			return err
		})
		postgres.Exec(t, database, "NOTIFY holdfast_wanted, 'end'")
		ctx, cancel := context.WithTimeout(t.Context(), requests.Timeout)
		defer cancel()
		got, err := conn.WaitForNotification(ctx)
		check(t, err)
		if got.Payload != "end" {
			t.Errorf("a client was notified of %q", got.Payload)
		}
		elsewhere.end(t)
	})
}

// TestWatchIsUnsupportedWithoutNotifications: over a pool of the caller there are no notifications, and the guarantees say so.
func TestWatchIsUnsupportedWithoutNotifications(t *testing.T) {
	database := postgres.Create(t)
	for _, recipe := range pgstore.Recipes() {
		s, err := pgstore.New(t.Context(), postgres.Pool(t, database), pgstore.With(recipe))
		check(t, err)
		defer s.Close(context.Background())
		g, err := s.Guarantees(t.Context())
		check(t, err)
		if g.Wanted == driver.WakePush {
			t.Errorf("%s: a holder is notified", recipe)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		requests.Code(t, s, s.Watch(ctx, "pool", func() {}), driver.CodeUnsupported)
		cancel()
	}
}
