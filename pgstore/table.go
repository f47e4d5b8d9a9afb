package pgstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// clock is an SQL expression: the time at which the server evaluates it, in microseconds since 1970.
const clock = "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint"

// table builds the statements of the optimistic recipe. [sqlkit.Table] documents the methods. Other code may have left
// any search path in a session, so that every statement names the schemas of its tables and functions.
type table struct{ s *store }

// Resolve implements [sqlkit.Resolver].
func (t table) Resolve(ctx context.Context) error { return t.s.resolve(ctx) }

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

func (t table) Read(name []byte, bucket int) string {
	return fmt.Sprintf("SELECT %s, f.token, r.version, r.token, r.state, "+readOnly+" FROM %s f LEFT JOIN %s r ON r.name = %s WHERE f.bucket = %d",
		clock, t.s.in(floorTable), t.s.in(rowTable), lit(name), bucket)
}

func (t table) Find(names [][]byte) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = lit(name)
	}
	return fmt.Sprintf("SELECT %s, pg_catalog.encode(name, 'hex'), version, token, state, "+readOnly+" FROM %s WHERE name IN (%s)", clock, t.s.in(rowTable), strings.Join(all, ", "))
}

func (t table) Insert(name []byte, bucket int, w sqlkit.Write) string {
	return fmt.Sprintf("INSERT INTO %s (name, bucket, version, token, expires, touched, state) SELECT %s, %d, %d, %d, %d, %d, %s WHERE %s < %d AND "+flushed+" ON CONFLICT DO NOTHING", // mutation: postgres-first
		t.s.in(rowTable), lit(name), bucket, w.Version, w.Token, w.Expires, w.Now, ascii(w.State), clock, w.Deadline)
}

func (t table) Update(name []byte, old int64, w sqlkit.Write) string {
	return fmt.Sprintf("UPDATE %s SET version = %d, token = %d, expires = %d, touched = %d, state = %s WHERE name = %s AND version = %d AND %s < %d AND "+flushed,
		t.s.in(rowTable), w.Version, w.Token, w.Expires, w.Now, ascii(w.State), lit(name), old, clock, w.Deadline)
}

// UpdateEach first locks the rows that no other transaction has locked, so that it never waits.
func (t table) UpdateEach(changes []sqlkit.Change) string {
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
		t.s.in(rowTable), strings.Join(names, ", "), strings.Join(all, ", "), clock)
}

// channel carries the waiters that are notified, and their names.
const channel = "holdfast"

// Wake encodes a name for a notification, which is a text of less than 8000 bytes. The longest
// name has about 1300 digits.
func (table) Wake(name []byte, id string) string {
	return "NOTIFY " + channel + ", '" + hex.EncodeToString([]byte(id+"\x00"+string(name))) + "'"
}

func (t table) List(prefix []byte) string {
	return fmt.Sprintf("SELECT %s, pg_catalog.encode(name, 'hex'), state FROM %s WHERE name >= %s AND substring(name FOR %d) = %s AND expires > %s",
		clock, t.s.in(rowTable), lit(prefix), len(prefix), lit(prefix), clock)
}

func (t table) Idle(micros int64, maxRows int) string {
	return fmt.Sprintf("SELECT pg_catalog.encode(name, 'hex'), bucket, version, token FROM %s "+
		"WHERE expires < %s - %d AND touched < %s - %d LIMIT %d", // mutation: postgres-sweep
		t.s.in(rowTable), clock, micros, clock, micros, maxRows)
}

func (t table) Raise(bucket int, token int64) string {
	return fmt.Sprintf("UPDATE %s SET token = GREATEST(token, %d) WHERE bucket = %d", t.s.in(floorTable), token, bucket)
}

func (t table) Delete(name []byte, version int64) string {
	return fmt.Sprintf("DELETE FROM %s WHERE name = %s AND version = %d", t.s.in(rowTable), lit(name), version)
}
