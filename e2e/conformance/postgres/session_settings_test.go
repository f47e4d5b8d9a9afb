package postgres

import (
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestSettingsLeftInSessionsKeepLocksExact: other code has left a setting in each session of the caller's pool. The store
// on that pool excludes other stores, and is excluded by them, or it is refused and leaves nothing.
func TestSettingsLeftInSessionsKeepLocksExact(t *testing.T) {
	t.Parallel()
	database := postgres.Create(t)
	few := "few_" + database // a role without rights on the tables
	for _, statement := range []string{
		"CREATE ROLE " + few, "CREATE ROLE all_" + database, "GRANT ALL ON ALL TABLES IN SCHEMA public TO all_" + database,
	} {
		postgres.Exec(t, database, statement)
	}
	rows := []string{"optimistic", "pessimistic", "durable"}
	for name, c := range map[string]struct {
		left    []string
		refused []string // the recipes that are refused
	}{
		"role without rights": {[]string{"SET ROLE " + few}, rows},
		"role":                {[]string{"SET ROLE all_" + database}, nil},
		"user without rights": {[]string{"SET SESSION AUTHORIZATION " + few}, rows},
		"read-only":           {[]string{"SET default_transaction_read_only = on"}, rows[:2]},
		"time zone": {[]string{"SET TimeZone = 'Asia/Kolkata'", "SET DateStyle = German", "SET IntervalStyle = iso_8601",
			"SET extra_float_digits = -15"}, nil},
		"serializable":    {[]string{"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, DEFERRABLE"}, nil},
		"repeatable read": {[]string{"SET default_transaction_isolation = 'repeatable read'"}, nil},
		"timeouts": {[]string{"SET statement_timeout = '2s'", "SET lock_timeout = 1", "SET idle_in_transaction_session_timeout = '2s'",
			"SET idle_session_timeout = '2s'", "SET client_connection_check_interval = 0"}, nil},
		"commits that do not wait": {[]string{"SET synchronous_commit = off", "SET commit_delay = 1000"}, nil},
		"strings": {[]string{"SET standard_conforming_strings = off", "SET backslash_quote = off", "SET bytea_output = escape",
			"SET quote_all_identifiers = on", "SET transform_null_equals = on"}, nil},
		"client encoding":     {[]string{"SET client_encoding = SJIS"}, nil},
		"messages":            {[]string{"SET client_min_messages = debug5", "SET application_name = 'hf 1 x'"}, nil},
		"plans":               {[]string{"SET enable_indexscan = off", "SET enable_bitmapscan = off", "SET plan_cache_mode = force_generic_plan"}, nil},
		"triggers and rights": {[]string{"SET session_replication_role = replica", "SET row_security = off"}, nil},
		"hidden statements":   {[]string{"SET track_activities = off"}, nil},
		"flags":               {[]string{"SET holdfast.gate = 'yes'", "SET holdfast.turn = 'yes'", "SET holdfast.mark = 'x'"}, nil},
		"temporary tables": {[]string{"CREATE TEMP TABLE holdfast_row (LIKE public.holdfast_row INCLUDING ALL)", "CREATE TEMP TABLE holdfast_floor AS TABLE public.holdfast_floor",
			"CREATE TEMP TABLE holdfast_name (LIKE public.holdfast_name INCLUDING ALL)", "CREATE TEMP TABLE holdfast_value (LIKE public.holdfast_value INCLUDING ALL)",
			"CREATE TEMP TABLE pg_locks (pid int)", "SET search_path TO pg_temp"}, nil},
	} {
		for recipe, options := range map[string][]pgstore.Option{
			"optimistic": {pgstore.With(pgstore.Optimistic)}, "pessimistic": {pgstore.With(pgstore.Pessimistic)},
			"advisory": {pgstore.With(pgstore.Advisory)}, "durable": {pgstore.With(pgstore.Advisory), pgstore.DurableTokens()},
		} {
			t.Run(name+"/"+recipe, func(t *testing.T) {
				plain := onPool(t, leftWith(t, database, "SELECT 1"), options...)
				sqltest.LeftSettingsKeepLocksExact(t, plain, name, recipe, c.refused, func() (sqltest.Store, error) {
					return store(pgstore.NewPool(t.Context(), leftWith(t, database, c.left...), options...))
				})
			})
		}
	}
}
