package mysql

import (
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// TestTableThatDoesNotExcludeIsRefused: a user's table in which a name may have two rows, or that has no
// row locks, is refused.
func TestTableThatDoesNotExcludeIsRefused(t *testing.T) {
	const innodb = ") ENGINE=InnoDB"
	bad := map[string]string{
		"engine":    "CREATE TABLE THIS (name VARCHAR(100) PRIMARY KEY) ENGINE=MyISAM",
		"aria":      "CREATE TABLE THIS (name VARCHAR(100) PRIMARY KEY) ENGINE=MEMORY",
		"none":      "CREATE TABLE THIS (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL" + innodb,
		"plain":     "CREATE TABLE THIS (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL, KEY (name)" + innodb,
		"other":     "CREATE TABLE THIS (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL, b INT UNIQUE" + innodb,
		"composite": "CREATE TABLE THIS (name VARCHAR(100) NOT NULL, region INT NOT NULL DEFAULT 0, PRIMARY KEY (name, region)" + innodb,
		"second":    "CREATE TABLE THIS (name VARCHAR(100) NOT NULL, region INT NOT NULL DEFAULT 0, PRIMARY KEY (region, name)" + innodb,
		"prefix":    "CREATE TABLE THIS (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(100) NOT NULL, UNIQUE (name(4))" + innodb,
		"partitioned": "CREATE TABLE THIS (name VARCHAR(100) NOT NULL, region INT NOT NULL DEFAULT 0, PRIMARY KEY (name, region)" + innodb +
			" PARTITION BY HASH (region) PARTITIONS 3",
		"view": "CREATE VIEW THIS AS SELECT name FROM holdfast_name",
	}
	if isMariaDB(t) {
		bad["hash"] = "CREATE TABLE THIS (name TEXT CHARACTER SET utf8mb4 NOT NULL UNIQUE" + innodb
	}
	sqltest.TablesThatDoNotExcludeAreRefused(t, mariadb, bad, map[string]string{
		"primary": "CREATE TABLE THIS (name VARCHAR(100) PRIMARY KEY" + innodb,
		"unique":  "CREATE TABLE THIS (id BIGINT AUTO_INCREMENT PRIMARY KEY, Name VARCHAR(100), n INT UNIQUE, KEY (name, n), UNIQUE (name)" + innodb,
		"keyed":   "CREATE TABLE THIS (name VARCHAR(100) PRIMARY KEY" + innodb + " PARTITION BY KEY (name) PARTITIONS 3",
	})
}

func TestBreakSparesOtherTables(t *testing.T) {
	const own = "recipe=pessimistic&table=own&column=name"
	sqltest.BreakSparesOtherTables(t, mariadb, "recipe=pessimistic", own)
	sqltest.BreakSparesOtherTables(t, mariadb, own, "recipe=pessimistic")
	sqltest.BreakSparesOtherTables(t, mariadb, "recipe=named", "recipe=named&names=exact")
}
