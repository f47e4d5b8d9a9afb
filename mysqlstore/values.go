package mysqlstore

import (
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

var _ driver.Values = (*Store)(nil)

// newValues returns the values of the store, which are in the table holdfast_value. The new version
// of a Put is random, so an UPDATE changes every row that it finds. ROW_COUNT() is then the same with
// and without clientFoundRows.
func newValues(s *Store) *sqlkit.Values {
	return &sqlkit.Values{
		Namespace: s.cfg.Namespace, Run: s.commit, Sort: faults{}.Sort,
		Read: func(key []byte) string {
			return fmt.Sprintf("SELECT version, HEX(data) FROM holdfast_value WHERE name = %s", lit(key))
		},
		Insert: func(key, data []byte, version string) []string {
			return []string{fmt.Sprintf("INSERT IGNORE INTO holdfast_value (name, version, data) VALUES (%s, %s, %s)",
				lit(key), lit([]byte(version)), lit(data)), "SELECT ROW_COUNT()"}
		},
		Update: func(key, data []byte, old, version string) []string {
			return []string{fmt.Sprintf("UPDATE holdfast_value SET version = %s, data = %s WHERE name = %s AND version = %s",
				lit([]byte(version)), lit(data), lit(key), lit([]byte(old))), "SELECT ROW_COUNT()"}
		},
	}
}
