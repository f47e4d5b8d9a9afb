package mysqlstore

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// table builds the statements of the optimistic recipe. Their time is the beginning of the
// statement. So a statement that waits for a row lock uses a time in the past. That is safe:
// it treats a grant that has expired during the wait as valid. A deadline that has passed
// during the wait is at most innodb_lock_wait_timeout old. UpdateEach may wait for each of
// its rows. That is safe too: it creates no row, and each version is used once.
type table struct{}

func (table) Read(name []byte, bucket int) string {
	return fmt.Sprintf("SELECT %s, f.token, r.version, r.token, r.state, @@global.read_only FROM holdfast_floor f LEFT JOIN holdfast_row r ON r.name = %s WHERE f.bucket = %d",
		clock, lit(name), bucket)
}

func (table) Find(names [][]byte) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = lit(name)
	}
	return fmt.Sprintf("SELECT %s, HEX(name), version, token, state, @@global.read_only FROM holdfast_row WHERE name IN (%s)", clock, strings.Join(all, ", "))
}

func (table) Insert(name []byte, bucket int, w sqlkit.Write) string {
	return fmt.Sprintf("INSERT INTO holdfast_row (name, bucket, version, token, expires, touched, state) SELECT %s, %d, %d, %d, %d, %d, %s FROM DUAL WHERE %s < %d ON DUPLICATE KEY UPDATE version = holdfast_row.version", // mutation: mysql-first
		lit(name), bucket, w.Version, w.Token, w.Expires, w.Now, lit([]byte(w.State)), clock, w.Deadline)
}

func (table) Update(name []byte, old int64, w sqlkit.Write) string {
	return fmt.Sprintf("UPDATE holdfast_row SET version = %d, token = %d, expires = %d, touched = %d, state = %s WHERE name = %s AND version = %d AND %s < %d",
		w.Version, w.Token, w.Expires, w.Now, lit([]byte(w.State)), lit(name), old, clock, w.Deadline)
}

// UpdateEach joins a table of the changes. By the order of the join it locks one row after the other, and no
// other rows. Each SQL comment in it is code for one kind of server. MySQL, and MariaDB since 10.6, leave out
// rows that are locked. Older versions of MariaDB return an error at once if a row is locked.
func (table) UpdateEach(changes []sqlkit.Change) string {
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

func (table) Wake([]byte, string) string { return "" }

func (table) List(prefix []byte) string {
	return fmt.Sprintf("SELECT %s, HEX(name), state FROM holdfast_row WHERE name >= %s AND LEFT(name, %d) = %s AND expires > %s",
		clock, lit(prefix), len(prefix), lit(prefix), clock)
}

func (table) Idle(micros int64, most int) string {
	return fmt.Sprintf("SELECT HEX(name), bucket, version, token FROM holdfast_row WHERE expires < %s - %d AND touched < %s - %d LIMIT %d",
		clock, micros, clock, micros, most)
}

func (table) Raise(bucket int, token int64) string {
	return fmt.Sprintf("UPDATE holdfast_floor SET token = GREATEST(token, %d) WHERE bucket = %d", token, bucket)
}

func (table) Delete(name []byte, version int64) string {
	return fmt.Sprintf("DELETE FROM holdfast_row WHERE name = %s AND version = %d", lit(name), version)
}
