package postgres

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/pgstore"
)

func TestAdvisoryLockOfOtherProgramsExcludes(t *testing.T) {
	locks := map[string]sqltest.OtherLock{}
	for name, args := range map[string]string{"42": "42", "-9223372036854775808": "-9223372036854775808", "7,-1": "7, -1"} {
		locks[name] = sqltest.OtherLock{Take: "SELECT pg_try_advisory_lock(" + args + ")", Free: "SELECT pg_advisory_unlock(" + args + ")"}
	}
	sqltest.OtherLocksExclude(t, postgres, "keys=given", "another client on 127.0.0.1", locks, "x", "042", "1,2,3", "+1", "9223372036854775808", "1, 2")
}

// TestSharedAdvisoryLockIsShared: another program's shared advisory lock and a shared lock of holdfast exclude only
// exclusive locks.
func TestSharedAdvisoryLockIsShared(t *testing.T) {
	database := postgres.Create(t)
	s := postgres.Store(t, database, "keys=given")
	g, _ := sqltest.Must(t, s, "42", driver.Unlimited, time.Minute)
	var exclusive, shared bool
	check(t, postgres.Pool(t, database).QueryRowContext(t.Context(), "SELECT pg_try_advisory_lock(42), pg_try_advisory_lock_shared(42)").Scan(&exclusive, &shared))
	if exclusive || !shared {
		t.Errorf("beside a shared lock: exclusive %t, shared %t", exclusive, shared)
	}
	sqltest.Release(t, s, g)
}

// TestUnsafeServersAreRefused requires that Open refuses a bad URL, and read-only transactions for the
// recipes that write rows, with the reason.
func TestUnsafeServersAreRefused(t *testing.T) {
	sqltest.Refuses(t, postgres, "postgres://root:sEcReT@127.0.0.1:1/x?recipe=advisory&sslmode=nonsense")
	// Advisory locks need no tables.
	s := postgres.Store(t, postgres.Bare(t), "")
	g, _ := sqltest.Must(t, s, "x", driver.Exclusive, time.Minute)
	sqltest.Release(t, s, g)
	// The recipes that write rows need transactions that may write.
	for _, recipe := range []pgstore.Recipe{pgstore.Pessimistic, pgstore.Optimistic} {
		_, err := postgres.Open(t.Context(), postgres.URL(postgres.Server(t).Address, postgres.Home, "default_transaction_read_only=on&recipe="+string(recipe)), "")
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s, read-only: %v", recipe, err)
		}
	}
	postgres.Exec(t, postgres.Home, "CREATE ROLE shut_out NOLOGIN")
	url := strings.Replace(postgres.URL(postgres.Server(t).Address, postgres.Home, ""), "postgres@", "shut_out@", 1)
	if _, err := postgres.Open(t.Context(), url, ""); driver.CodeOf(err) != driver.CodeRefused {
		t.Errorf("a user without the right to log in: %v", err)
	}
}

// demote restarts a primary as a replica without a primary.
func demote(t *testing.T, p sqltest.Server) {
	t.Helper()
	var data string
	check(t, postgres.PoolAt(t, p.Address, postgres.Home).QueryRow("SHOW data_directory").Scan(&data))
	p.Kill()
	check(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644))
	check(t, p.Restart(t.Context()))
}

// TestReplicaIsRefused: every recipe refuses a server in recovery.
func TestReplicaIsRefused(t *testing.T) {
	p := postgres.Another(t, postgres.Fast)
	demote(t, p)
	for _, r := range postgres.Recipes {
		_, err := postgres.Open(t.Context(), postgres.URL(p.Address, postgres.Home, "recipe="+r), "")
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "replica") {
			t.Errorf("%s: %v", r, err)
		}
	}
}

// TestDemotedPrimaryGrantsNothing: a store has connections to a primary, and the server
// becomes a replica. The store gets no grant there. If its URL has a second host, it gets
// the grant from that host. A replica grants advisory locks, which exclude nothing at the
// new primary.
func TestDemotedPrimaryGrantsNothing(t *testing.T) {
	next := postgres.Server(t)
	old := postgres.Another(t, postgres.Fast)
	stores := map[string]sqltest.Store{}
	both := map[string]sqltest.Store{}
	pools := map[string]*sql.DB{}
	for _, recipe := range postgres.Recipes {
		stores[recipe] = postgres.StoreAt(t, old.Address, postgres.Home, "recipe="+recipe)
		both[recipe] = postgres.StoreAt(t, old.Address+","+next.Address, postgres.Home, "recipe="+recipe)
		pools[recipe] = postgres.PoolAt(t, old.Address, postgres.Home)
		for _, s := range []sqltest.Store{stores[recipe], both[recipe]} {
			check(t, s.Init(t.Context()))
			g, _ := sqltest.Must(t, s, "demoted", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, g)
		}
	}
	pooled := map[string]sqltest.Store{}
	for recipe, db := range pools {
		s, err := postgres.New(t.Context(), db, recipe)
		check(t, err)
		defer sqltest.Close(t, s)
		pooled[recipe] = s
	}
	demote(t, old)
	there := postgres.StoreAt(t, next.Address, postgres.Home, "recipe=optimistic")
	check(t, there.Init(t.Context()))
	for _, recipe := range postgres.Recipes {
		t.Run(recipe, func(t *testing.T) {
			for kind, s := range map[string]sqltest.Store{"dialled": stores[recipe], "pool": pooled[recipe]} {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				r, _ := sqltest.Request("demoted", driver.Exclusive, time.Minute)
				g, err := s.Acquire(ctx, r)
				cancel()
				if err == nil {
					t.Errorf("%s: a replica granted token %d", kind, g.Token)
				}
			}
			g, _ := sqltest.Must(t, both[recipe], "demoted", driver.Exclusive, time.Minute)
			defer sqltest.Release(t, both[recipe], g)
			other := postgres.StoreAt(t, next.Address, postgres.Home, "recipe="+recipe)
			sqltest.Busy(t, other, "demoted", driver.Exclusive)
		})
	}
}

// TestOptimisticWorksBehindPooler: the recipes with sessions refuse a pooler in transaction mode,
// with the reason. The recipe optimistic passes the whole suite behind the pooler,
// which is not for short mode.
func TestOptimisticWorksBehindPooler(t *testing.T) {
	database := postgres.Create(t)
	start := func(mode string) *servers.PgBouncer {
		b, err := servers.StartPgBouncer(t.Context(), postgres.Server(t).Address, mode, 8)
		servertest.Started(t, err)
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	pooler := start("transaction")
	for _, r := range postgres.Sessions {
		_, err := pgstore.Open(t.Context(), pooler.URL(database, "&recipe="+r))
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "transaction mode") {
			t.Errorf("%s in transaction mode: %v", r, err)
		}
		db, err := sql.Open("pgx", pooler.URL(database, "&default_query_exec_mode=simple_protocol"))
		check(t, err)
		if _, err := pgstore.New(t.Context(), db, pgstore.With(pgstore.Recipe(r))); driver.CodeOf(err) != driver.CodeRefused {
			t.Errorf("%s on the caller's pool in transaction mode: %v", r, err)
		}
		db.Close()
	}
	session := start("session")
	for _, r := range postgres.Sessions {
		s := postgres.StoreAt(t, session.Address, database, "recipe="+r)
		if g, err := s.Guarantees(t.Context()); err != nil || g.Wanted != driver.WakePoll {
			t.Errorf("%s in session mode declares Wanted by %q, %v; want by polling", r, g.Wanted, err)
		}
		if err := s.(driver.Watcher).Watch(t.Context(), "bouncer", func() {}); driver.CodeOf(err) != driver.CodeUnsupported {
			t.Errorf("%s in session mode: Watch returns %v; want unsupported", r, err)
		}
		g, _ := sqltest.Must(t, s, "bouncer", driver.Exclusive, time.Minute)
		sqltest.Release(t, s, g)
		sqltest.Close(t, s)
	}

	if testing.Short() {
		return
	}
	drivertest.Run(t, drivertest.Harness{Open: func(t testing.TB, ns string) driver.Store {
		s, err := postgres.Open(context.Background(), pooler.URL(database, "&recipe=optimistic"), ns)
		check(t, err)
		return s
	}})
}

// TestWaitersQueueWithoutVisibleStatements: the server shows no statements of its sessions, or
// only their beginning. The server still queues a waiter, and the store reports that to the
// waiter.
func TestWaitersQueueWithoutVisibleStatements(t *testing.T) {
	for _, setting := range []string{"track_activities=off", "track_activity_query_size=100"} {
		server := postgres.Another(t, postgres.Fast, setting)
		for _, recipe := range postgres.Sessions {
			t.Run(setting+"/"+recipe, func(t *testing.T) {
				s := postgres.StoreAt(t, server.Address, postgres.Home, "recipe="+recipe)
				check(t, s.Init(t.Context()))
				g, _ := sqltest.Must(t, s, "dark", driver.Exclusive, time.Minute)
				first := sqltest.Wait(t, t.Context(), s, "dark", driver.Exclusive)
				second := sqltest.Wait(t, t.Context(), s, "dark", driver.Unlimited)
				st, err := s.Inspect(t.Context(), "dark")
				if err != nil || len(st.Waiters) != 2 {
					t.Errorf("%+v, %v; want two waiters", st, err)
				}
				sqltest.Release(t, s, g)
				sqltest.Release(t, s, first.Granted())
				sqltest.Release(t, s, second.Granted())
			})
		}
	}
}

// longReason is a requester whose label is longer than the text that a server with a small
// track_activity_query_size shows.
type longReason struct{ *requests.Recorder }

func (a longReason) Owner() driver.Owner {
	o := a.Recorder.Owner()
	o.Reason = strings.Repeat("reason ", 60)
	return o
}

// TestLabelFitsShownStatement: a server that shows the first 500 bytes of a statement shows the holder,
// with a shorter reason.
func TestLabelFitsShownStatement(t *testing.T) {
	server := postgres.Another(t, postgres.Fast, "track_activity_query_size=500")
	for _, recipe := range postgres.Sessions {
		t.Run(recipe, func(t *testing.T) {
			s := postgres.StoreAt(t, server.Address, postgres.Home, "recipe="+recipe)
			check(t, s.Init(t.Context()))
			r, a := sqltest.Request("long", driver.Exclusive, time.Minute)
			r.From = longReason{a}
			g, err := s.Acquire(t.Context(), r)
			check(t, err)
			sqltest.Shown(t, s, g)
			st, err := s.Inspect(t.Context(), "long")
			if err != nil || len(st.Holders) != 1 || st.Holders[0].ID != r.ID || !strings.HasPrefix(st.Holders[0].Reason, "reason ") {
				t.Errorf("%+v, %v; want the holder %s", st, err, r.ID)
			}
			sqltest.Release(t, s, g)
		})
	}
}

// TestBreakOfHiddenHolderIsRefused: a user without pg_read_all_stats sees that another user's session holds a
// lock, and not which grant it is. So a break does not report that the grant is not held.
func TestBreakOfHiddenHolderIsRefused(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		as := func(user string) sqltest.Store {
			user += "_" + strings.TrimPrefix(params, "recipe=") // users are the server's, and not the database's
			postgres.Exec(t, database, "CREATE USER "+user)
			postgres.Exec(t, database, "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+user)
			url := postgres.URL(postgres.Server(t).Address, database, params)
			return postgres.OpenURL(t, strings.Replace(url, "postgres@", user+"@", 1))
		}
		s, other := as("holder"), as("other")
		g, a := sqltest.Must(t, s, "hidden", driver.Exclusive, time.Minute)
		sqltest.Shown(t, s, g)
		st, err := other.Inspect(t.Context(), "hidden")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != 0 || st.Holders[0].Note == "" {
			t.Errorf("%+v, %v; want a holder without a token", st, err)
		}
		if err := other.Break(t.Context(), "hidden", g.Token); other.Classify(err) != driver.CodeRefused {
			t.Errorf("Break: %v; want refused", err)
		}
		a.Keeps(t)
		postgres.Exec(t, database, "GRANT pg_read_all_stats, pg_signal_backend TO other_"+strings.TrimPrefix(params, "recipe="))
		if err := other.Break(t.Context(), "hidden", g.Token-1); other.Classify(err) != driver.CodeNotHeld {
			t.Errorf("Break of another token: %v; want not held", err)
		}
		a.Keeps(t)
		if err := other.Break(t.Context(), "hidden", g.Token); err != nil {
			t.Errorf("Break with the rights: %v", err)
		}
		a.AwaitLoss(t)
	})
}

// TestReleasedSessionHasNoGrantName: after a release the session no longer shows the grant.
// Otherwise a break of that grant would end a later grant of the session.
func TestReleasedSessionHasNoGrantName(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		for _, given := range []string{"", "nightly"} {
			s := postgres.Store(t, database, params+"&application_name="+given)
			db := postgres.Pool(t, database)
			named := func(like string) (n int) {
				t.Helper()
				check(t, db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE $1", like).Scan(&n))
				return n
			}
			for _, limit := range []int{driver.Exclusive, driver.Unlimited} {
				g, _ := sqltest.Must(t, s, "nameless", limit, time.Minute)
				if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil {
					t.Fatal(r[0].Err)
				}
				if n := named("hf %"); n != 1 {
					t.Errorf("%d sessions show a grant, want 1", n)
				}
				sqltest.Release(t, s, g)
				if n := named("hf %"); n != 0 {
					t.Errorf("%d sessions show a released grant", n)
				}
			}
			if given != "" && named(given) == 0 {
				t.Error("no session has the configured application_name")
			}
		}
	})
}

// TestAdvisoryLocksWithoutEffectAreRefused: a server that is compatible with PostgreSQL may accept the functions of
// advisory locks and do nothing.
func TestAdvisoryLocksWithoutEffectAreRefused(t *testing.T) {
	database := postgres.Bare(t)
	c, err := postgres.Pool(t, database).Conn(t.Context())
	check(t, err)
	defer c.Close()
	for _, statement := range []string{
		"SET allow_system_table_mods = on",
		"CREATE OR REPLACE FUNCTION pg_catalog.pg_advisory_lock(bigint) RETURNS void LANGUAGE sql AS ''",
		"CREATE OR REPLACE FUNCTION pg_catalog.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
		"CREATE OR REPLACE FUNCTION pg_catalog.pg_advisory_unlock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
	} {
		if _, err := c.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	s, err := postgres.Open(t.Context(), postgres.URL(postgres.Server(t).Address, database, "recipe=advisory"), "")
	if err == nil {
		sqltest.Close(t, s)
	}
	if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "advisory locks") {
		t.Errorf("Open: %v; want refused for its advisory locks", err)
	}
}
