// Package mysql tests on real servers that mysqlstore fulfils the contract.
package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

var check = servertest.Check

// mariadb is the database of these tests.
var mariadb = &sqltest.Database{
	AllDatabases: "named",
	Start: func(ctx context.Context, flags ...string) (sqltest.Server, error) {
		m, err := servers.StartMySQL(ctx, flags...)
		if err != nil {
			return sqltest.Server{}, err
		}
		return sqltest.Server{Process: m, Address: m.Address}, nil
	},
	Fast:   "--innodb-flush-log-at-trx-commit=1", // otherwise the store refuses durable tokens
	Home:   "test",
	Driver: "mysql",
	DSN:    func(address, schema string) string { return fmt.Sprintf("root@tcp(%s)/%s", address, schema) },
	URL: func(address, schema, params string) string {
		return fmt.Sprintf("mysql://root@%s/%s?%s", address, schema, params)
	},
	Open: func(ctx context.Context, url, namespace string) (sqltest.Store, error) {
		return store(mysqlstore.Open(ctx, url, mysqlstore.Namespace(namespace)))
	},
	New: func(ctx context.Context, pool *sql.DB, recipe string) (sqltest.Store, error) {
		return store(mysqlstore.New(ctx, pool, mysqlstore.With(mysqlstore.Recipe(recipe))))
	},
	Recipes:    sqltest.Names(mysqlstore.Recipes()...),
	Sessions:   sqltest.Names(mysqlstore.Pessimistic, mysqlstore.Named),
	SessionTTL: time.Second, // the server's timer counts seconds

	Holder:      "SELECT IS_USED_LOCK(CONVERT(held USING utf8mb4)) FROM holdfast_session WHERE token = %d",
	Running:     "SELECT id FROM information_schema.processlist WHERE info LIKE '%%%s%%' AND db = DATABASE() AND id <> CONNECTION_ID()",
	End:         "KILL %d",
	Interrupt:   "KILL QUERY %d",
	Ended:       driver.CauseSessionEnded,
	Settings:    "SELECT CONCAT(@@time_zone, ' ', @@wait_timeout)",
	LockTimeout: "innodb_lock_wait_timeout=1",
	Parameter:   "?",
}

func store(s *mysqlstore.Store, err error) (sqltest.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func TestMain(m *testing.M) { mariadb.Main(m) }

func TestShared(t *testing.T) { sqltest.Shared(t, mariadb) }

func TestConformance(t *testing.T) { sqltest.Conformance(t, mariadb) }
func TestUserPoolNoticesLoss(t *testing.T) {
	sqltest.UserPoolNoticesLoss(t, mariadb, mariadb.OverSQL)
}

func TestRenewalOverFewConnections(t *testing.T) {
	sqltest.RenewsOverFewConnections(t, mariadb, "CREATE USER USER_NAME@'127.0.0.1' WITH MAX_USER_CONNECTIONS 3", "GRANT ALL ON DATABASE.* TO USER_NAME@'127.0.0.1'")
}

func TestLocksLeaveConnectionsToOthers(t *testing.T) {
	m := another(t, "--max-connections=30")
	sqltest.LocksLeaveConnectionsToOthers(t, mariadb, sqltest.Server{Process: m, Address: m.Address})
}

func TestDocumentedRightsSuffice(t *testing.T) {
	row := []string{"SELECT ON holdfast_row", "INSERT ON holdfast_row", "UPDATE ON holdfast_row", "DELETE ON holdfast_row"}
	floor := []string{"SELECT ON holdfast_floor", "UPDATE ON holdfast_floor"}
	name := []string{"SELECT ON holdfast_name", "INSERT ON holdfast_name", "UPDATE ON holdfast_name",
		"SELECT ON holdfast_slot", "INSERT ON holdfast_slot", "UPDATE ON holdfast_slot"}
	session := []string{"SELECT ON holdfast_session", "INSERT ON holdfast_session", "UPDATE ON holdfast_session", "DELETE ON holdfast_session"}
	unnoticed := session[3:] // rows stay
	sqltest.EachRight(t, mariadb, "CREATE USER USER_NAME@'127.0.0.1'", "GRANT RIGHT ON DATABASE.TABLE TO USER_NAME@'127.0.0.1'", "REVOKE RIGHT ON DATABASE.TABLE FROM USER_NAME@'127.0.0.1'",
		sqltest.Rights{Params: "recipe=optimistic", Rights: slices.Concat(row, floor)},
		sqltest.Rights{Params: "recipe=pessimistic", Rights: slices.Concat(name, session), Unnoticed: unnoticed},
		sqltest.Rights{Params: "recipe=named&tokens=durable", Rights: slices.Concat(floor, session), Unnoticed: unnoticed})
}

func TestReadersDoNotStarveAWriter(t *testing.T) {
	sqltest.ReadersDoNotStarveAWriter(t, mariadb, "pessimistic")
}

func TestOtherProgramsAreExcluded(t *testing.T) {
	sqltest.OtherProgramsAreExcluded(t, mariadb, "CREATE TABLE fu_distribute_lock (id BIGINT AUTO_INCREMENT PRIMARY KEY, lock_name VARCHAR(100) NOT NULL, UNIQUE KEY (lock_name)) ENGINE=InnoDB",
		"NEW") // the column folds case
}

func TestDurableTokensOnSmallPoolDoNotDeadlock(t *testing.T) {
	sqltest.DurableTokensOnSmallPoolDoNotDeadlock(t, mariadb, func(ctx context.Context, pool *sql.DB) (sqltest.Store, error) {
		return store(mysqlstore.New(ctx, pool, mysqlstore.With(mysqlstore.Pessimistic), mysqlstore.DurableTokens()))
	})
}

func TestUncommittedRowIsBusy(t *testing.T) {
	sqltest.UncommittedRowIsBusy(t, mariadb, "CREATE TABLE fu_distribute_lock (id BIGINT AUTO_INCREMENT PRIMARY KEY, lock_name VARCHAR(100) NOT NULL, UNIQUE KEY (lock_name)) ENGINE=InnoDB")
}

func TestOddNamesStayUnchanged(t *testing.T) {
	sqltest.OddNamesStayUnchanged(t, mariadb, "charset=sjis")
}

// isMariaDB reports whether the server is a MariaDB: MySQL has other settings.
func isMariaDB(t *testing.T) bool {
	t.Helper()
	var version string
	check(t, mariadb.Pool(t, "test").QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version))
	return strings.Contains(version, "MariaDB")
}

func TestOddNamesMatchOtherPrograms(t *testing.T) {
	foreign := "charset=swe7" // in which the byte of a tilde is another letter
	if !isMariaDB(t) {
		foreign = "charset=sjis" // MySQL refuses SHOW in a session with swe7, since it rewrites SHOW with backticks
	}
	sqltest.OddNamesMatchOtherPrograms(t, mariadb, foreign,
		"CREATE TABLE odd (name VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY) ENGINE=InnoDB")
}

func TestSettingsMakeNoDifference(t *testing.T) {
	set := url.Values{"clientFoundRows": {"true"}, "interpolateParams": {"true"}, "parseTime": {"true"}, "loc": {"Asia/Tokyo"}, "readTimeout": {"100ms"},
		"time_zone": {"'+05:30'"}, "transaction_isolation": {"'SERIALIZABLE'"}, "innodb_lock_wait_timeout": {"1"}, "lock_wait_timeout": {"1"},
		"wait_timeout": {"1"}, "max_execution_time": {"1000"}, "sql_mode": {"'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,TRADITIONAL'"}}
	if isMariaDB(t) {
		set["tx_isolation"], set["max_statement_time"], set["idle_transaction_timeout"] = set["transaction_isolation"], []string{"1"}, []string{"1"}
		set.Del("transaction_isolation")
		set.Del("max_execution_time")
	}
	sqltest.SettingsMakeNoDifference(t, mariadb, set.Encode())
}

// TestTokenIsReadAfterTheWait also tests a server on which SYSDATE is the same as NOW.
func TestTokenIsReadAfterTheWait(t *testing.T) {
	odd, err := mariadb.Start(t.Context(), "--sysdate-is-now", "--default-time-zone=+09:00")
	if err != nil {
		mariadb.Server(t) // skips, or fails
		t.Fatal(err)
	}
	defer odd.Close()
	for name, server := range map[string]sqltest.Server{"plain": mariadb.Server(t), "sysdate-is-now": odd} {
		for _, recipe := range mariadb.Sessions {
			t.Run(name+"/"+recipe, func(t *testing.T) {
				s := mariadb.StoreAt(t, server.Address, "test", "recipe="+recipe)
				check(t, s.Init(t.Context()))
				sqltest.TokenIsReadAfterTheWait(t, s, driver.Exclusive)
				g, _ := sqltest.Reserved(t, s, "token", driver.Grant{})
				sqltest.Release(t, s, g)
				next, _ := sqltest.Reserved(t, s, "token", g)
				sqltest.Release(t, s, next)
			})
		}
	}
}
