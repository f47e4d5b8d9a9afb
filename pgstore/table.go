package pgstore

import (
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// clock is an SQL expression: the time at which the server evaluates it, in microseconds since 1970.
const clock = "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint"

// readOnly is an SQL expression: whether the server refuses the writes of this session, as a replica or a demoted primary.
const readOnly = "pg_catalog.current_setting('transaction_read_only') = 'on'"

// lit returns bytes as a literal that means the same under every setting.
func lit(b []byte) string { return fmt.Sprintf("pg_catalog.decode('%x', 'hex')", b) }

// ascii returns ASCII text as a literal that means the same under every setting.
func ascii(s string) string { return "E'" + quotes.Replace(s) + "'" }

var quotes = strings.NewReplacer(`\`, `\\`, `'`, `''`)

// flushed is a condition that is always true. It makes the transaction's commit wait for the
// disk if synchronous_commit is off, so that a crash of the server forgets no grant and no
// token. It keeps every other value of that setting, because the commit then waits for the disk
// anyway.
const flushed = "pg_catalog.set_config('synchronous_commit', pg_catalog.replace(pg_catalog.current_setting('synchronous_commit'), 'off', 'on'), true) IS NOT NULL" // mutation: postgres-flushed

// dialect returns the parts of the statements of recipe Optimistic and of values. Other code may have left
// any search path in a session, so that every statement names the schemas of its tables and functions.
func (s *store) dialect() *sqlkit.Dialect {
	return &sqlkit.Dialect{
		In: s.in, Found: s.resolve, Lit: lit, Text: ascii, Together: s.updateEach, Channel: channel,
		Clock: clock, ReadOnly: readOnly, Hex: "pg_catalog.encode(%s, 'hex')", Length: "pg_catalog.length(%s)",
		Flushed: flushed, Keep: " ON CONFLICT DO NOTHING", // mutation: postgres-first
		PutNew: func(insert string) []string {
			return []string{"INSERT " + insert + " WHERE " + flushed + " ON CONFLICT DO NOTHING RETURNING 1"}
		},
		PutOver: func(update string) []string { return []string{update + " AND " + flushed + " RETURNING 1"} },
	}
}

// updateEach implements UpdateEach of [sqlkit.Table]. It first locks the rows that no other transaction has locked, so
// that it never waits.
func (s *store) updateEach(changes []sqlkit.Change) string {
	var names, all []string
	for _, c := range changes {
		names = append(names, lit(c.Name))
		all = append(all, fmt.Sprintf("(%s, %d, %d, %d, %d, %d, %s, %d)",
			lit(c.Name), c.Old, c.Version, c.Token, c.Expires, c.Now, ascii(c.State), c.Deadline))
	}
	return fmt.Sprintf("WITH locked AS (SELECT name FROM %[1]s WHERE name IN (%[2]s) FOR NO KEY UPDATE SKIP LOCKED) "+
		"UPDATE %[1]s r SET version = c.version, token = c.token, expires = c.expires, touched = c.touched, state = c.state "+
		"FROM locked, (VALUES %[3]s) AS c (name, old, version, token, expires, touched, state, deadline) "+
		"WHERE r.name = locked.name AND r.name = c.name AND r.version = c.old AND %[4]s < c.deadline AND "+flushed,
		s.in(sqlkit.RowTable), strings.Join(names, ", "), strings.Join(all, ", "), clock)
}

// channel carries the waiters that are notified, and their names.
const channel = "holdfast"
