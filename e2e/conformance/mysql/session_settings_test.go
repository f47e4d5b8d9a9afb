package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// leaving is a connector whose new sessions are left with some settings once on is set.
type leaving struct {
	sqldriver.Connector
	left []string
	on   atomic.Bool
}

func (c *leaving) Connect(ctx context.Context) (sqldriver.Conn, error) {
	dc, err := c.Connector.Connect(ctx)
	if err != nil || !c.on.Load() {
		return dc, err
	}
	for _, statement := range c.left {
		if _, err := dc.(sqldriver.ExecerContext).ExecContext(ctx, statement, nil); err != nil {
			dc.Close()
			return nil, fmt.Errorf("%s: %w", statement, err)
		}
	}
	return dc, nil
}

// TestSettingsLeftInSessionsKeepLocksExact: other code leaves a setting in the sessions of the caller's pool, before or after
// the store is opened. The store on that pool excludes other stores, and is excluded by them, or it is refused and leaves
// nothing.
func TestSettingsLeftInSessionsKeepLocksExact(t *testing.T) {
	t.Parallel()
	schema := mariadb.Create(t)
	elsewhere := mariadb.Create(t)
	all, rows := mariadb.Recipes, []string{"optimistic"}
	for name, c := range map[string]struct {
		left    []string
		refused []string // the recipes that are refused
	}{
		"default schema": {[]string{"USE " + elsewhere}, all},
		"autocommit off": {[]string{"SET autocommit = 0"}, all},
		"transaction":    {[]string{"START TRANSACTION", "SELECT * FROM holdfast_floor"}, all},
		"clock":          {[]string{"SET timestamp = 1000000000"}, all},
		"read-only":      {[]string{"SET SESSION TRANSACTION READ ONLY"}, rows},
		"few rows":       {[]string{"SET sql_select_limit = 1"}, all},
		"no rows":        {[]string{"SET sql_select_limit = 0"}, all},
		"time zone":      {[]string{"SET time_zone = '+05:30'"}, nil},
		"serializable":   {[]string{"SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"}, nil},
		"uncommitted":    {[]string{"SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"}, nil},
		"modes":          {[]string{"SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,NO_UNSIGNED_SUBTRACTION,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH'"}, nil},
		"no modes":       {[]string{"SET sql_mode = ''"}, nil},
		"timeouts":       {[]string{"SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 5, net_read_timeout = 5"}, nil},
		"character set":  {[]string{"SET NAMES gbk", "SET character_set_results = latin1", "SET collation_connection = 'latin1_general_cs'"}, nil},
		"safe updates":   {[]string{"SET sql_safe_updates = 1"}, nil},
		"checks":         {[]string{"SET unique_checks = 0, foreign_key_checks = 0"}, nil},
		"completion":     {[]string{"SET completion_type = 1"}, nil},
	} {
		for _, recipe := range all {
			for _, later := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/later %t", name, recipe, later), func(t *testing.T) {
					name := fmt.Sprint(name, later)
					cfg, err := mysql.ParseDSN(mariadb.DSN(mariadb.Server(t).Address, schema))
					check(t, err)
					connector, err := mysql.NewConnector(cfg)
					check(t, err)
					leave := &leaving{Connector: connector, left: c.left}
					leave.on.Store(!later)
					db := sql.OpenDB(leave)
					t.Cleanup(func() { _ = db.Close() })
					db.SetMaxIdleConns(0) // each use of the pool gets a new session

					sqltest.LeftSettingsKeepLocksExact(t, mariadb.Store(t, schema, "recipe="+recipe), name, recipe, c.refused, func() (sqltest.Store, error) {
						defer leave.on.Store(true)
						return store(mysqlstore.New(t.Context(), db, mysqlstore.With(mysqlstore.Recipe(recipe)), mysqlstore.InSchema(schema)))
					})
				})
			}
		}
	}
}
