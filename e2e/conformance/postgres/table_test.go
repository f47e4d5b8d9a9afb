package postgres

import (
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestTableThatDoesNotExcludeIsRefused: a user's table in which a name may have two rows is refused.
func TestTableThatDoesNotExcludeIsRefused(t *testing.T) {
	sqltest.TablesThatDoNotExcludeAreRefused(t, postgres, map[string]string{
		"none":        "CREATE TABLE THIS (id bigserial PRIMARY KEY, name text NOT NULL)",
		"plain":       "CREATE TABLE THIS (name text NOT NULL); CREATE INDEX ON THIS (name)",
		"other":       "CREATE TABLE THIS (name text NOT NULL, b int UNIQUE)",
		"composite":   "CREATE TABLE THIS (name text NOT NULL, region int NOT NULL DEFAULT 0, PRIMARY KEY (name, region))",
		"second":      "CREATE TABLE THIS (name text NOT NULL, region int NOT NULL DEFAULT 0, PRIMARY KEY (region, name))",
		"partial":     "CREATE TABLE THIS (name text NOT NULL, old bool); CREATE UNIQUE INDEX ON THIS (name) WHERE old",
		"expression":  "CREATE TABLE THIS (name text NOT NULL); CREATE UNIQUE INDEX ON THIS (md5(name))",
		"deferred":    "CREATE TABLE THIS (name text UNIQUE DEFERRABLE INITIALLY DEFERRED)",
		"collation":   "CREATE COLLATION THIS_c (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE TABLE THIS (name text COLLATE THIS_c); CREATE UNIQUE INDEX ON THIS (name COLLATE \"C\")",
		"partitioned": "CREATE TABLE THIS (name text NOT NULL, region int NOT NULL DEFAULT 0) PARTITION BY LIST (region); CREATE TABLE THIS_0 PARTITION OF THIS FOR VALUES IN (0); CREATE UNIQUE INDEX ON THIS_0 (name)",
		"invalid":     "CREATE TABLE THIS (name text NOT NULL) PARTITION BY HASH (name); CREATE TABLE THIS_0 PARTITION OF THIS FOR VALUES WITH (MODULUS 1, REMAINDER 0); CREATE UNIQUE INDEX ON ONLY THIS (name)",
		"inherited":   "CREATE TABLE THIS (name text PRIMARY KEY); CREATE TABLE THIS_child () INHERITS (THIS)",
		"view":        "CREATE VIEW THIS AS SELECT ''::text AS name",
	}, map[string]string{
		"primary": "CREATE TABLE THIS (name text PRIMARY KEY)",
		"unique":  "CREATE TABLE THIS (id bigserial PRIMARY KEY, name varchar(100), n int UNIQUE); CREATE INDEX ON THIS (name, n); CREATE UNIQUE INDEX ON THIS (name) INCLUDE (n)",
		"keyed":   "CREATE TABLE THIS (name bytea PRIMARY KEY) PARTITION BY HASH (name); CREATE TABLE THIS_0 PARTITION OF THIS FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
	})
}

func TestBreakSparesOtherTables(t *testing.T) {
	const own = "recipe=pessimistic&table=own&column=name"
	sqltest.BreakSparesOtherTables(t, postgres, "recipe=pessimistic", own)
	sqltest.BreakSparesOtherTables(t, postgres, own, "recipe=pessimistic")
}
