package postgres

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestSharesAdvisory: another program's advisory lock excludes holdfast and is
// excluded by it, and who waits for the other gets it.
func TestSharesAdvisory(t *testing.T) {
	database := postgres.Create(t)
	s := postgres.Store(t, database, "keys=given")
	defer sqltest.Close(t, s)
	c, err := postgres.Pool(t, database).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(query string) (yes bool) {
		t.Helper()
		if err := c.QueryRowContext(t.Context(), query).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		return yes
	}
	for name, args := range map[string]string{"42": "42", "-9223372036854775808": "-9223372036854775808", "7,-1": "7, -1"} {
		if !ask("SELECT pg_try_advisory_lock(" + args + ")") {
			t.Fatal("not free")
		}
		sqltest.Busy(t, s, name, driver.Exclusive)
		sqltest.Busy(t, s, name, driver.Unlimited)
		st, err := s.Inspect(t.Context(), name)
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Note == "" || st.Holders[0].Client() != "another client on 127.0.0.1" || st.Holders[0].TTL != 0 {
			t.Errorf("a stranger's lock shows as %+v, %v", st, err)
		}
		w := sqltest.Wait(t, t.Context(), s, name, driver.Exclusive)
		if !ask("SELECT pg_advisory_unlock(" + args + ")") {
			t.Fatal("not held")
		}
		g := w.Granted()
		if ask("SELECT pg_try_advisory_lock(" + args + ")") {
			t.Error("two hold it")
		}
		sqltest.Release(t, s, g)
		g, _ = sqltest.Must(t, s, name, driver.Unlimited, time.Minute)
		if ask("SELECT pg_try_advisory_lock("+args+")") || !ask("SELECT pg_try_advisory_lock_shared("+args+")") {
			t.Error("a shared lock is not shared")
		}
		sqltest.Release(t, s, g)
	}
	for _, name := range []string{"x", "042", "1,2,3", "+1", "9223372036854775808", "1, 2"} {
		r, _ := sqltest.Request(name, driver.Exclusive, time.Minute)
		if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeInvalid {
			t.Errorf("the key %q: %v", name, err)
		}
	}
}

// TestRefuses what would not hold, and says why.
func TestRefuses(t *testing.T) {
	sqltest.Refuses(t, postgres, "postgres://root:sEcReT@127.0.0.1:1/x?recipe=advisory&sslmode=nonsense")
	// Advisory locks need no tables.
	s := postgres.Store(t, postgres.Bare(t), "")
	defer sqltest.Close(t, s)
	g, _ := sqltest.Must(t, s, "x", driver.Exclusive, time.Minute)
	sqltest.Release(t, s, g)
	// What writes rows is refused where transactions are read-only.
	for _, recipe := range []pgstore.Recipe{pgstore.Pessimistic, pgstore.Optimistic} {
		_, err := postgres.Open(t.Context(), postgres.URL(postgres.Server(t).Address, postgres.Home, "default_transaction_read_only=on&recipe="+string(recipe)), "")
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s, read-only: %v", recipe, err)
		}
	}
}

// demote makes a primary a replica that has nothing to follow.
func demote(t *testing.T, p sqltest.Server) {
	t.Helper()
	var data string
	if err := postgres.PoolAt(t, p.Address, postgres.Home).QueryRow("SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestReplica: a server in recovery is refused, whatever the recipe.
func TestReplica(t *testing.T) {
	postgres.Server(t) // skips, or fails
	p, err := postgres.Start(t.Context(), postgres.Fast)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	demote(t, p)
	for _, r := range postgres.Recipes {
		_, err := postgres.Open(t.Context(), postgres.URL(p.Address, postgres.Home, "recipe="+r), "")
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "replica") {
			t.Errorf("%s: %v", r, err)
		}
	}
}

// TestDemotedPrimaryGrantsNothing: a store that was opened on the primary gets no
// grant there after the server has become a replica, and gets it at the next host of
// its URL. A replica takes advisory locks, which exclude nothing at the new primary.
func TestDemotedPrimaryGrantsNothing(t *testing.T) {
	next := postgres.Server(t)
	old, err := postgres.Start(t.Context(), postgres.Fast)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	stores := map[string]sqltest.Store{}
	both := map[string]sqltest.Store{}
	pools := map[string]*sql.DB{}
	for _, recipe := range postgres.Recipes {
		stores[recipe] = postgres.StoreAt(t, old.Address, postgres.Home, "recipe="+recipe)
		both[recipe] = postgres.StoreAt(t, old.Address+","+next.Address, postgres.Home, "recipe="+recipe)
		pools[recipe] = postgres.PoolAt(t, old.Address, postgres.Home)
		for _, s := range []sqltest.Store{stores[recipe], both[recipe]} {
			defer sqltest.Close(t, s)
			if err := s.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			g, _ := sqltest.Must(t, s, "demoted", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, g)
		}
	}
	pooled := map[string]sqltest.Store{}
	for recipe, db := range pools {
		s, err := postgres.New(t.Context(), db, recipe)
		if err != nil {
			t.Fatal(err)
		}
		defer sqltest.Close(t, s)
		pooled[recipe] = s
	}
	demote(t, old)
	there := postgres.StoreAt(t, next.Address, postgres.Home, "recipe=optimistic")
	defer sqltest.Close(t, there)
	if err := there.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
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
			defer sqltest.Close(t, other)
			sqltest.Busy(t, other, "demoted", driver.Exclusive)
		})
	}
}

// TestPgBouncer: sessions are refused behind a pooler in transaction mode, with the
// reason, and leases pass the whole suite there.
func TestPgBouncer(t *testing.T) {
	database := postgres.Create(t)
	start := func(mode string) *servers.PgBouncer {
		b, err := servers.StartPgBouncer(t.Context(), postgres.Server(t).Address, mode, 8)
		if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pgstore.New(t.Context(), db, pgstore.With(pgstore.Recipe(r))); driver.CodeOf(err) != driver.CodeRefused {
			t.Errorf("%s on a user's pool in transaction mode: %v", r, err)
		}
		db.Close()
	}
	session := start("session")
	s := postgres.StoreAt(t, session.Address, database, "")
	g, _ := sqltest.Must(t, s, "bouncer", driver.Exclusive, time.Minute)
	sqltest.Release(t, s, g)
	sqltest.Close(t, s)

	drivertest.Run(t, drivertest.Harness{Open: func(t testing.TB, ns string) driver.Store {
		s, err := postgres.Open(context.Background(), pooler.URL(database, "&recipe=optimistic"), ns)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}})
}

// TestStatementsNotShown: who waits stands in the queue, and is told so, on a server
// that does not show what its sessions do, or too little of it.
func TestStatementsNotShown(t *testing.T) {
	postgres.Server(t) // skips, or fails
	for _, setting := range []string{"track_activities=off", "track_activity_query_size=100"} {
		server, err := postgres.Start(t.Context(), postgres.Fast, setting)
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		for _, recipe := range postgres.Sessions {
			t.Run(setting+"/"+recipe, func(t *testing.T) {
				s := postgres.StoreAt(t, server.Address, postgres.Home, "recipe="+recipe)
				defer sqltest.Close(t, s)
				if err := s.Init(t.Context()); err != nil {
					t.Fatal(err)
				}
				g, _ := sqltest.Must(t, s, "dark", driver.Exclusive, time.Minute)
				first := sqltest.Wait(t, t.Context(), s, "dark", driver.Exclusive)
				second := sqltest.Wait(t, t.Context(), s, "dark", driver.Unlimited)
				st, err := s.Inspect(t.Context(), "dark")
				if err != nil || len(st.Waiters) != 2 {
					t.Errorf("%+v, %v; want two who wait", st, err)
				}
				sqltest.Release(t, s, g)
				sqltest.Release(t, s, first.Granted())
				sqltest.Release(t, s, second.Granted())
			})
		}
	}
}

// TestNameless: a session that has let go does not say any more what it held, by which
// who means to end it would end what it holds next.
func TestNameless(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		for _, given := range []string{"", "nightly"} {
			s := postgres.Store(t, database, params+"&application_name="+given)
			defer sqltest.Close(t, s)
			db := postgres.Pool(t, database)
			named := func(like string) (n int) {
				t.Helper()
				if err := db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE $1", like).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			for _, limit := range []int{driver.Exclusive, driver.Unlimited} {
				g, _ := sqltest.Must(t, s, "nameless", limit, time.Minute)
				if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil {
					t.Fatal(r[0].Err)
				}
				if n := named("hf %"); n != 1 {
					t.Errorf("%d sessions say that they hold", n)
				}
				sqltest.Release(t, s, g)
				if n := named("hf %"); n != 0 {
					t.Errorf("%d sessions say that they hold what was released", n)
				}
			}
			if given != "" && named(given) == 0 {
				t.Error("no session has the name that it was given")
			}
		}
	})
}
