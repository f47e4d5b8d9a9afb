package pgstore

import (
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

var _ driver.Values = (*store)(nil)

// newValues returns the values of the store, which are in the table holdfast_value.
func newValues(s *store) *sqlkit.Values {
	return &sqlkit.Values{
		Namespace: s.cfg.Namespace, Run: s.links.Run, Sort: faults{}.Sort,
		Read: func(key []byte) string {
			return fmt.Sprintf("SELECT CASE WHEN LENGTH(data) <= %d THEN version END, CASE WHEN LENGTH(data) <= %[1]d THEN encode(data, 'hex') END FROM holdfast_value WHERE name = %s",
				driver.MaxValue, lit(key))
		},
		Insert: func(key, data []byte, version string) []string {
			return []string{fmt.Sprintf("INSERT INTO holdfast_value (name, version, data) SELECT %s, %s, %s WHERE "+flushed+" ON CONFLICT DO NOTHING RETURNING 1",
				lit(key), ascii(version), lit(data))}
		},
		Update: func(key, data []byte, old, version string) []string {
			return []string{fmt.Sprintf("UPDATE holdfast_value SET version = %s, data = %s WHERE name = %s AND version = %s AND "+flushed+" RETURNING 1",
				ascii(version), lit(data), lit(key), ascii(old))}
		},
	}
}
