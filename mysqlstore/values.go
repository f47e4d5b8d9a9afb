package mysqlstore

import (
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

var _ driver.Values = (*store)(nil)

// writable is a condition that is false on a read-only server. Such a server executes the statements of a
// user with special rights. A Put that [Store.commit] then refuses must have written nothing.
const writable = "CAST(@@global.read_only AS CHAR) IN ('0', 'OFF')"

const rowCount = "SELECT ROW_COUNT()"

// newValues returns the values of the store, which are in the table holdfast_value. The new version
// of a Put is random, so an UPDATE changes every row that it finds. ROW_COUNT() is then the same with
// and without clientFoundRows.
func newValues(s *store) *sqlkit.Values {
	return &sqlkit.Values{
		Namespace: s.cfg.Namespace, Run: s.commit, Sort: faults{}.Sort,
		Read: func(key []byte) string {
			return fmt.Sprintf("SELECT CASE WHEN LENGTH(data) <= %d THEN version END, CASE WHEN LENGTH(data) <= %[1]d THEN HEX(data) END FROM holdfast_value WHERE name = %s",
				driver.MaxValue, lit(key))
		},
		Insert: func(key, data []byte, version string) []string {
			return []string{fmt.Sprintf("INSERT IGNORE INTO holdfast_value (name, version, data) SELECT %s, %s, %s FROM DUAL WHERE "+writable,
				lit(key), lit([]byte(version)), lit(data)), rowCount}
		},
		Update: func(key, data []byte, old, version string) []string {
			return []string{fmt.Sprintf("UPDATE holdfast_value SET version = %s, data = %s WHERE name = %s AND version = %s AND "+writable,
				lit([]byte(version)), lit(data), lit(key), lit([]byte(old))), rowCount}
		},
	}
}
