// Package postgres tests on real servers that pgstore fulfils the contract.
package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/pgstore"
)

var check = servertest.Check

// postgres is the database of these tests.
var postgres = &sqltest.Database{
	Start: func(ctx context.Context, settings ...string) (sqltest.Server, error) {
		p, err := servers.StartPostgres(ctx, settings...)
		if err != nil {
			return sqltest.Server{}, err
		}
		return sqltest.Server{Process: p, Address: p.Address}, nil
	},
	Fast:   "fsync=off",
	Home:   "postgres",
	Driver: "pgx",
	DSN: func(address, database string) string {
		return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", address, database)
	},
	URL: func(address, database, params string) string {
		return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&%s", address, database, params)
	},
	Open: func(ctx context.Context, url, namespace string) (sqltest.Store, error) {
		return store(pgstore.Open(ctx, url, pgstore.Namespace(namespace)))
	},
	New: func(ctx context.Context, pool *sql.DB, recipe string) (sqltest.Store, error) {
		return store(pgstore.New(ctx, pool, pgstore.With(pgstore.Recipe(recipe))))
	},
	Recipes:  sqltest.Names(pgstore.Recipes()...),
	Sessions: sqltest.Names(pgstore.Pessimistic, pgstore.Advisory),

	Holder:      "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'hf %d %%'",
	Running:     "SELECT pid FROM pg_stat_activity WHERE query LIKE '%%%s%%' AND datname = current_database() AND pid <> pg_backend_pid()",
	End:         "SELECT pg_terminate_backend(%d)",
	Interrupt:   "SELECT pg_cancel_backend(%d)",
	Ended:       driver.CauseTaken, // a break uses the same statement
	Settings:    "SELECT current_setting('idle_session_timeout') || ' ' || current_setting('application_name')",
	LockTimeout: "lock_timeout=1s",
	Parameter:   "$1",
	Forge:       "SELECT pg_notify('holdfast', $1)",
}

func store(s *pgstore.Store, err error) (sqltest.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func TestMain(m *testing.M) { postgres.Main(m) }

func TestShared(t *testing.T) { sqltest.Shared(t, postgres) }

func TestConformance(t *testing.T) { sqltest.Conformance(t, postgres) }
func TestLocksLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	server := postgres.Another(t, postgres.Fast, "max_connections=30")
	sqltest.LocksLeaveConnectionsToOthers(t, postgres, server)
}

func TestRenewalOverFewConnections(t *testing.T) {
	sqltest.RenewsOverFewConnections(t, postgres, "CREATE USER USER_NAME CONNECTION LIMIT 3", "GRANT ALL ON ALL TABLES IN SCHEMA public TO USER_NAME", "GRANT USAGE ON SCHEMA public TO USER_NAME")
}

func TestDocumentedRightsSuffice(t *testing.T) {
	row := []string{"SELECT ON holdfast_row", "INSERT ON holdfast_row", "UPDATE ON holdfast_row", "DELETE ON holdfast_row"}
	floor := []string{"SELECT ON holdfast_floor", "UPDATE ON holdfast_floor"}
	name := []string{"SELECT ON holdfast_name", "INSERT ON holdfast_name", "UPDATE ON holdfast_name",
		"SELECT ON holdfast_slot", "INSERT ON holdfast_slot", "UPDATE ON holdfast_slot"}
	sqltest.EachRight(t, postgres, "CREATE USER USER_NAME", "GRANT RIGHT ON TABLE TO USER_NAME", "REVOKE RIGHT ON TABLE FROM USER_NAME",
		sqltest.Rights{Params: "recipe=optimistic", Rights: slices.Concat(row, floor)},
		sqltest.Rights{Params: "recipe=pessimistic", Rights: name},
		sqltest.Rights{Params: "recipe=advisory"},
		sqltest.Rights{Params: "recipe=advisory&tokens=durable", Rights: floor})
}

func TestReadersDoNotStarveAWriter(t *testing.T) {
	sqltest.ReadersDoNotStarveAWriter(t, postgres, "pessimistic", "advisory")
}

func TestOtherProgramsAreExcluded(t *testing.T) {
	sqltest.OtherProgramsAreExcluded(t, postgres, "CREATE TABLE fu_distribute_lock (id bigserial PRIMARY KEY, lock_name varchar(100) NOT NULL UNIQUE)",
		"new") // the column distinguishes upper and lower case
}

func TestDurableTokensOnSmallPoolDoNotDeadlock(t *testing.T) {
	sqltest.DurableTokensOnSmallPoolDoNotDeadlock(t, postgres, func(ctx context.Context, pool *sql.DB) (sqltest.Store, error) {
		return store(pgstore.New(ctx, pool, pgstore.With(pgstore.Pessimistic), pgstore.DurableTokens()))
	})
}

func TestUncommittedRowIsBusy(t *testing.T) {
	sqltest.UncommittedRowIsBusy(t, postgres, "CREATE TABLE fu_distribute_lock (id bigserial PRIMARY KEY, lock_name varchar(100) NOT NULL UNIQUE)")
}

func TestOddNamesStayUnchanged(t *testing.T) {
	sqltest.OddNamesStayUnchanged(t, postgres, "client_encoding=SJIS&options=-c%20standard_conforming_strings%3Doff")
}

func TestOddNamesMatchOtherPrograms(t *testing.T) {
	sqltest.OddNamesMatchOtherPrograms(t, postgres, "client_encoding=SJIS&options=-c%20standard_conforming_strings%3Doff",
		"CREATE TABLE odd (name text NOT NULL PRIMARY KEY)")
}

func TestSettingsMakeNoDifference(t *testing.T) {
	set := url.Values{"options": {"-c statement_timeout=500ms -c lock_timeout=500ms -c idle_in_transaction_session_timeout=500ms -c idle_session_timeout=500ms " +
		"-c default_transaction_isolation=serializable -c standard_conforming_strings=off -c timezone=Asia/Kolkata -c datestyle=German"}}
	sqltest.SettingsMakeNoDifference(t, postgres, strings.ReplaceAll(set.Encode(), "+", "%20"))
}

func TestTokenIsReadAfterTheWait(t *testing.T) {
	postgres.Each(t, postgres.Sessions, func(t *testing.T, params, database string) {
		s := postgres.Store(t, database, params)
		sqltest.TokenIsReadAfterTheWait(t, s, driver.Exclusive, driver.Unlimited)
	})
}
