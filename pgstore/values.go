package pgstore

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

var _ driver.Values = (*store)(nil)

// newValues returns the values of the store, which are in the table holdfast_value.
func newValues(s *store) *sqlkit.Values {
	return &sqlkit.Values{
		Namespace: s.cfg.Namespace, Resolve: s.resolve, Run: s.atPrimary, Sort: faults{}.Sort,
		Read: func(key []byte) string {
			return fmt.Sprintf("SELECT CASE WHEN pg_catalog.length(data) <= %[1]d THEN version END, CASE WHEN pg_catalog.length(data) <= %[1]d THEN pg_catalog.encode(data, 'hex') END FROM %[2]s WHERE name = %[3]s",
				driver.MaxValue, s.in(valuesTable), lit(key))
		},
		Insert: func(key, data []byte, version string) []string {
			return []string{fmt.Sprintf("INSERT INTO %s (name, version, data) SELECT %s, %s, %s WHERE "+flushed+" ON CONFLICT DO NOTHING RETURNING 1",
				s.in(valuesTable), lit(key), ascii(version), lit(data))}
		},
		Update: func(key, data []byte, old, version string) []string {
			return []string{fmt.Sprintf("UPDATE %s SET version = %s, data = %s WHERE name = %s AND version = %s AND "+flushed+" RETURNING 1",
				s.in(valuesTable), ascii(version), lit(data), lit(key), ascii(old))}
		},
	}
}

// atPrimary runs statements of Get and Put at a server that accepts writes. A primary that has become read-only keeps
// its sessions, and would serve Get forever.
func (s *store) atPrimary(ctx context.Context, statements ...string) (sqlkit.Answers, error) {
	return s.links.RunAtPrimary(ctx, rowFaults{}, "SELECT pg_catalog.current_setting('transaction_read_only')",
		func(answer string) bool { return answer == "on" }, statements...)
}
