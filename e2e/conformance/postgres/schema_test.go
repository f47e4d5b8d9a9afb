package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/pgstore"
)

// pathRecipes are the parameters of recipes that use tables.
var pathRecipes = map[string][]pgstore.Option{
	"optimistic":  {pgstore.With(pgstore.Optimistic)},
	"pessimistic": {pgstore.With(pgstore.Pessimistic)},
	"durable":     {pgstore.With(pgstore.Pessimistic), pgstore.DurableTokens()},
	"own table":   {pgstore.With(pgstore.Pessimistic), pgstore.Table("own", "name")},
}

// twoSchemas returns a database whose schemas public and t7 have holdfast's tables and a table own.
func twoSchemas(t *testing.T) (database string) {
	database = postgres.Create(t)
	postgres.Exec(t, database, "CREATE SCHEMA t7")
	check(t, leftWith(t, database, "SET search_path TO t7", pgstore.Schema()).Ping(t.Context()))
	for _, schema := range []string{"public", "t7"} {
		postgres.Exec(t, database, "CREATE TABLE "+schema+".own (name text PRIMARY KEY)")
	}
	return database
}

// leftWith returns a pool of which each session was left with some settings.
func leftWith(t *testing.T, database string, settings ...string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(postgres.DSN(postgres.Server(t).Address, database))
	check(t, err)
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, strings.Join(settings, "; "), pgx.QueryExecModeSimpleProtocol)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	check(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// onPool opens a store over a pool of pgx.
func onPool(t *testing.T, pool *pgxpool.Pool, o ...pgstore.Option) sqltest.Store {
	t.Helper()
	s, err := store(pgstore.NewPool(t.Context(), pool, o...))
	check(t, err)
	t.Cleanup(func() { sqltest.Close(t, s) })
	return s
}

// TestSearchPathOfAPoolMakesNoDifference: two programs whose pools have different search paths exclude each other.
func TestSearchPathOfAPoolMakesNoDifference(t *testing.T) {
	database := twoSchemas(t)
	// The schema lies has other functions of the names that statements use.
	postgres.Exec(t, database, "CREATE SCHEMA lies")
	for _, f := range []string{
		"clock_timestamp() RETURNS timestamptz AS 'SELECT timestamptz ''2001-01-01'''", "decode(text, text) RETURNS bytea AS 'SELECT ''x''::bytea'",
		"pg_try_advisory_lock_shared(bigint) RETURNS boolean AS 'SELECT true'", "pg_advisory_xact_lock_shared(bigint) RETURNS text AS 'SELECT ''x'''",
		"current_setting(text) RETURNS text AS 'SELECT ''off'''", "encode(bytea, text) RETURNS text AS 'SELECT ''00'''",
	} {
		postgres.Exec(t, database, "CREATE FUNCTION lies."+f+" LANGUAGE sql")
	}
	for recipe, options := range pathRecipes {
		for _, path := range []string{"t7", "t7, public", "''", "pg_catalog", "lies, pg_catalog, t7"} {
			t.Run(recipe+"/"+path, func(t *testing.T) {
				options := append(options[:len(options):len(options)], pgstore.InSchema("public"))
				plain := onPool(t, leftWith(t, database, "SELECT 1"), options...)
				other := onPool(t, leftWith(t, database, "SET search_path TO "+path), options...)
				for _, s := range [][2]sqltest.Store{{plain, other}, {other, plain}} {
					name := fmt.Sprint(recipe, path, s[0] == plain)
					g, a := sqltest.Must(t, s[0], name, driver.Exclusive, time.Minute)
					if d := time.Since(time.UnixMicro(int64(g.Token))); d.Abs() > time.Minute {
						t.Errorf("the token is %s old", d)
					}
					sqltest.Busy(t, s[1], name, driver.Exclusive)
					check(t, s[0].Renew(t.Context(), []driver.Grant{g})[0].Err)
					a.Keeps(t)
					sqltest.Release(t, s[0], g)
				}
				value, err := other.Put(t.Context(), recipe+path, []byte("1"), "")
				check(t, err)
				if _, seen, err := plain.Get(t.Context(), recipe+path); err != nil || seen != value {
					t.Errorf("Get: version %q, %v; want %q", seen, err, value)
				}
			})
		}
	}
}

// TestSchemaMustBeChosenAmongSeveral: a store that finds tables in several schemas is refused, with their names, and
// shows the schema that it uses.
func TestSchemaMustBeChosenAmongSeveral(t *testing.T) {
	database := twoSchemas(t)
	for recipe, options := range pathRecipes {
		for _, path := range []string{"public", "t7", "''"} {
			_, err := pgstore.NewPool(t.Context(), leftWith(t, database, "SET search_path TO "+path), options...)
			if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "public and t7") {
				t.Errorf("%s, search path %s: %v; want refused, with the schemas", recipe, path, err)
			}
		}
	}
	for params, schema := range map[string]string{"schema=t7": "t7", "search_path=t7": "t7", "search_path=%22$user%22,public": "public", "schema=public&search_path=t7": "public"} {
		s := postgres.Store(t, database, "recipe=optimistic&"+params)
		g, err := s.Guarantees(t.Context())
		check(t, err)
		if shown := strings.Join(g.Notes, "\n"); !strings.Contains(shown, "the tables are in the schema "+schema) {
			t.Errorf("%s: the notes do not name the schema %s: %s", params, schema, shown)
		}
		held, _ := sqltest.Must(t, s, "chosen", driver.Exclusive, time.Minute)
		sqltest.Busy(t, postgres.Store(t, database, "recipe=optimistic&schema="+schema), "chosen", driver.Exclusive)
		sqltest.Release(t, s, held)
	}
	// A user who may use only one of the schemas need not choose.
	postgres.Exec(t, database, "CREATE ROLE tenant_"+database+" LOGIN")
	postgres.Exec(t, database, "REVOKE ALL ON SCHEMA public FROM PUBLIC")
	postgres.Exec(t, database, "GRANT USAGE ON SCHEMA t7 TO tenant_"+database)
	postgres.Exec(t, database, "GRANT ALL ON ALL TABLES IN SCHEMA t7 TO tenant_"+database)
	url := postgres.URL(postgres.Server(t).Address, database, "recipe=optimistic")
	tenant := postgres.OpenURL(t, strings.Replace(url, "postgres@", "tenant_"+database+"@", 1))
	g, _ := sqltest.Must(t, tenant, "tenant", driver.Exclusive, time.Minute)
	sqltest.Busy(t, postgres.Store(t, database, "recipe=optimistic&schema=t7"), "tenant", driver.Exclusive)
	sqltest.Release(t, tenant, g)
}

// TestSchemasHaveLocksOfTheirOwn: locks in two schemas neither exclude nor hide each other, and a break in one does not end
// a grant in the other.
func TestSchemasHaveLocksOfTheirOwn(t *testing.T) {
	database := twoSchemas(t)
	for _, params := range []string{"recipe=optimistic", "recipe=pessimistic", "recipe=pessimistic&table=own&column=name"} {
		t.Run(params, func(t *testing.T) {
			a, b := postgres.Store(t, database, params+"&schema=public"), postgres.Store(t, database, params+"&schema=t7")
			sees := func(s sqltest.Store, holders, waiters int) {
				t.Helper()
				if st, err := s.Inspect(t.Context(), "x"); err != nil || len(st.Holders) != holders || len(st.Waiters) != waiters {
					t.Errorf("Inspect: %+v, %v; want %d holders and %d waiters", st, err, holders, waiters)
				}
			}
			inA, kept := sqltest.Must(t, a, "x", driver.Exclusive, time.Minute)
			sqltest.Shown(t, a, inA)
			sees(b, 0, 0)
			if err := b.Break(t.Context(), "x", inA.Token); driver.CodeOf(err) != driver.CodeNotHeld {
				t.Errorf("Break in the other schema: %v; want not held", err)
			}
			w := sqltest.Wait(t, t.Context(), a, "x", driver.Exclusive)
			inB, _ := sqltest.Must(t, b, "x", driver.Exclusive, time.Minute) // no waiter of the other schema is before it
			sqltest.Shown(t, b, inB)
			sees(b, 1, 0)
			kept.Keeps(t)
			sqltest.Release(t, a, inA)
			sqltest.Release(t, a, w.Granted())
			sqltest.Release(t, b, inB)
		})
	}
}

// TestInitIgnoresSearchPath: the tables are created in the schema of the configuration, or else in public, and never
// beside those of another schema.
func TestInitIgnoresSearchPath(t *testing.T) {
	places := func(database string) (schemas string) {
		check(t, postgres.Pool(t, database).QueryRow("SELECT coalesce(string_agg(schemaname, ' '), '') FROM pg_tables WHERE tablename = 'holdfast_row'").Scan(&schemas))
		return schemas
	}
	for _, path := range []string{"t7", "''", "pg_catalog"} {
		for want, options := range map[string][]pgstore.Option{"public": nil, "app": {pgstore.InSchema("app")}} {
			database := postgres.Bare(t)
			postgres.Exec(t, database, "CREATE SCHEMA t7")
			postgres.Exec(t, database, "CREATE SCHEMA app")
			options = append(options, pgstore.With(pgstore.Optimistic))
			s := onPool(t, leftWith(t, database, "SET search_path TO "+path), options...).(*pgstore.Store)
			waiting := postgres.Store(t, database, "recipe=optimistic") // opened before the tables exist
			check(t, s.Init(t.Context()))
			check(t, waiting.Init(t.Context()))
			if got := places(database); got != want {
				t.Errorf("search path %s: the tables are in %q; want %s", path, got, want)
			}
			g, _ := sqltest.Must(t, s, "x", driver.Exclusive, time.Minute)
			sqltest.Busy(t, waiting, "x", driver.Exclusive)
			sqltest.Release(t, s, g)
		}
	}
}

// TestSearchPathLeftAtAPoolerMakesNoDifference: another client of a pooler has left a search path in one of two backends.
// Two stores on different backends exclude each other.
func TestSearchPathLeftAtAPoolerMakesNoDifference(t *testing.T) {
	database := twoSchemas(t)
	pooler, err := servers.StartPgBouncer(t.Context(), postgres.Server(t).Address, "transaction", 2)
	servertest.Started(t, err)
	t.Cleanup(func() { _ = pooler.Close() })
	db, err := sql.Open("pgx", pooler.URL(database, "&default_query_exec_mode=simple_protocol"))
	check(t, err)
	t.Cleanup(func() { _ = db.Close() })
	// both holds the two backends, and returns a function that lets one go.
	both := func() (release map[bool]func()) {
		release = map[bool]func(){}
		for range 2 {
			tx, err := db.BeginTx(t.Context(), nil)
			check(t, err)
			var path string
			check(t, tx.QueryRow("SHOW search_path").Scan(&path))
			release[path == "t7"] = func() { check(t, tx.Commit()) }
		}
		if len(release) != 2 {
			t.Fatal("the two backends have one search path")
		}
		return release
	}
	first, err := db.BeginTx(t.Context(), nil)
	check(t, err)
	second, err := db.BeginTx(t.Context(), nil)
	check(t, err)
	for tx, statement := range map[*sql.Tx]string{first: "SELECT 1", second: "SET search_path TO t7"} {
		_, err := tx.Exec(statement)
		check(t, err)
	}
	check(t, first.Commit())
	check(t, second.Commit())

	for _, params := range []string{"schema=public", "search_path=public"} {
		for _, left := range []bool{false, true} {
			release := both()
			release[left]()
			a := postgres.OpenURL(t, pooler.URL(database, "&recipe=optimistic&"+params))
			g, kept := sqltest.Must(t, a, "pooled", driver.Exclusive, time.Minute)
			release[!left]()
			release = both()
			release[!left]()
			b := postgres.OpenURL(t, pooler.URL(database, "&recipe=optimistic&"+params))
			sqltest.Busy(t, b, "pooled", driver.Exclusive)
			check(t, a.Renew(t.Context(), []driver.Grant{g})[0].Err)
			release[left]()
			kept.Keeps(t)
			sqltest.Release(t, a, g)
		}
	}
	// A parameter that the pooler refuses is an error of the URL.
	_, err = postgres.Open(t.Context(), pooler.URL(database, "&recipe=optimistic&schema=public&options=-c%20search_path%3Dt7"), "")
	if driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), "options") {
		t.Errorf("a parameter that the pooler refuses: %v; want invalid", err)
	}
}
