package mysqlstore

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// dialect has the parts of the statements of recipe Optimistic and of values. Their time is the beginning of the
// statement. So a statement that waits for a row lock uses a time in the past. That is safe:
// it treats a grant that has expired during the wait as valid. A deadline that has passed
// during the wait is at most innodb_lock_wait_timeout old. UpdateEach may wait for each of
// its rows. That is safe too: it creates no row, and each version is used once.
//
// The new version of a value is random, so an UPDATE changes every row that it finds. ROW_COUNT() is then the same with
// and without clientFoundRows.
var dialect = sqlkit.Dialect{
	In:  func(table string) string { return table },
	Lit: lit, Text: func(s string) string { return lit([]byte(s)) }, Together: updateEach,
	Clock: clock, ReadOnly: "@@global.read_only", Hex: "HEX(%s)", Length: "LENGTH(%s)", Of: " FROM DUAL",
	Flushed: "TRUE", Keep: " ON DUPLICATE KEY UPDATE version = holdfast_row.version", // mutation: mysql-first
	PutNew: func(insert string) []string {
		return []string{"INSERT IGNORE " + insert + " WHERE " + writable, rowCount}
	},
	PutOver: func(update string) []string { return []string{update + " AND " + writable, rowCount} },
}

// writable is a condition that is false on a read-only server. Such a server executes the statements of a
// user with special rights. A Put that [store.commit] then refuses must have written nothing.
const writable = "CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')"

const rowCount = "SELECT ROW_COUNT()"

// updateEach implements UpdateEach of [sqlkit.Table]. It joins a table of the changes. By the order of the join it locks
// one row after the other, and no other rows. Each SQL comment in it is code for one kind of server. MySQL, and MariaDB
// since 10.6, leave out rows that are locked. Older versions of MariaDB return an error at once if a row is locked.
func updateEach(changes []sqlkit.Change) string {
	var all []string
	for _, c := range changes {
		all = append(all, fmt.Sprintf("SELECT %s AS name, %d AS old, %d AS version, %d AS token, %d AS expires, %d AS touched, %s AS state, %d AS deadline",
			lit(c.Name), c.Old, c.Version, c.Token, c.Expires, c.Now, lit([]byte(c.State)), c.Deadline))
	}
	return fmt.Sprintf("/*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */ UPDATE /*!80001 (SELECT c.* FROM */ /*M!100600 (SELECT c.* FROM */ (%[1]s) c "+
		"/*!80001 STRAIGHT_JOIN holdfast_row l ON l.name = c.name AND l.version = c.old LIMIT %[2]d FOR UPDATE SKIP LOCKED) c */ "+
		"/*M!100600 STRAIGHT_JOIN holdfast_row l ON l.name = c.name AND l.version = c.old LIMIT %[2]d FOR UPDATE SKIP LOCKED) c */ "+
		"STRAIGHT_JOIN holdfast_row r ON r.name = c.name AND r.version = c.old "+
		"SET r.version = c.version, r.token = c.token, r.expires = c.expires, r.touched = c.touched, r.state = c.state WHERE %[3]s < c.deadline",
		strings.Join(all, " UNION ALL "), len(changes), clock)
}
