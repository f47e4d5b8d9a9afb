package pgstore

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// clock is an SQL expression: the time at which the server evaluates it, in microseconds since 1970.
const clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

// table builds the statements of the optimistic recipe. [sqlkit.Table] documents the methods.
type table struct{}

// lit returns bytes as a literal that means the same under every setting.
func lit(b []byte) string { return fmt.Sprintf("decode('%x', 'hex')", b) }

// ascii returns ASCII text as a literal that means the same under every setting.
func ascii(s string) string { return "E'" + quotes.Replace(s) + "'" }

var quotes = strings.NewReplacer(`\`, `\\`, `'`, `''`)

// flushed is a condition that is always true. It makes the transaction's commit wait for the
// disk if synchronous_commit is off, so that a crash of the server forgets no grant and no
// token. It keeps every other value of that setting, because the commit then waits for the disk
// anyway.
const flushed = "set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true) IS NOT NULL" // mutation: postgres-flushed

func (table) Read(name []byte, bucket int) string {
	return fmt.Sprintf("SELECT %s, f.token, r.version, r.token, r.state FROM holdfast_floor f LEFT JOIN holdfast_row r ON r.name = %s WHERE f.bucket = %d",
		clock, lit(name), bucket)
}

func (table) Find(names [][]byte) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = lit(name)
	}
	return fmt.Sprintf("SELECT %s, encode(name, 'hex'), version, token, state FROM holdfast_row WHERE name IN (%s)", clock, strings.Join(all, ", "))
}

func (table) Insert(name []byte, bucket int, w sqlkit.Write) string {
	return fmt.Sprintf("INSERT INTO holdfast_row (name, bucket, version, token, expires, touched, state) SELECT %s, %d, %d, %d, %d, %d, %s WHERE %s < %d AND "+flushed+" ON CONFLICT DO NOTHING", // mutation: postgres-first
		lit(name), bucket, w.Version, w.Token, w.Expires, w.Now, ascii(w.State), clock, w.Deadline)
}

func (table) Update(name []byte, old int64, w sqlkit.Write) string {
	return fmt.Sprintf("UPDATE holdfast_row SET version = %d, token = %d, expires = %d, touched = %d, state = %s WHERE name = %s AND version = %d AND %s < %d AND "+flushed,
		w.Version, w.Token, w.Expires, w.Now, ascii(w.State), lit(name), old, clock, w.Deadline)
}

// UpdateEach first locks the rows that no other transaction has locked, so that it never waits.
func (table) UpdateEach(changes []sqlkit.Change) string {
	var names, all []string
	for _, c := range changes {
		names = append(names, lit(c.Name))
		all = append(all, fmt.Sprintf("(%s, %d, %d, %d, %d, %d, %s, %d)",
			lit(c.Name), c.Old, c.Version, c.Token, c.Expires, c.Now, ascii(c.State), c.Deadline))
	}
	return fmt.Sprintf("WITH locked AS (SELECT name FROM holdfast_row WHERE name IN (%s) FOR NO KEY UPDATE SKIP LOCKED) "+
		"UPDATE holdfast_row r SET version = c.version, token = c.token, expires = c.expires, touched = c.touched, state = c.state "+
		"FROM locked, (VALUES %s) AS c (name, old, version, token, expires, touched, state, deadline) "+
		"WHERE r.name = locked.name AND r.name = c.name AND r.version = c.old AND %s < c.deadline AND "+flushed,
		strings.Join(names, ", "), strings.Join(all, ", "), clock)
}

// channel carries the names whose waiters are notified.
const channel = "holdfast"

func (table) Wake(name []byte) string {
	return "NOTIFY " + channel + ", '" + payload(name) + "'"
}

// payload encodes a name for a notification, which is a text of less than 8000 bytes. The longest
// name has about 1300 digits.
func payload(name []byte) string { return hex.EncodeToString(name) }

func (table) List(prefix []byte) string {
	return fmt.Sprintf("SELECT %s, encode(name, 'hex'), state FROM holdfast_row WHERE name >= %s AND substring(name FOR %d) = %s AND expires > %s",
		clock, lit(prefix), len(prefix), lit(prefix), clock)
}

func (table) Idle(micros int64, maxRows int) string {
	return fmt.Sprintf("SELECT encode(name, 'hex'), bucket, version, token FROM holdfast_row "+
		"WHERE expires < %s - %d AND touched < %s - %d LIMIT %d", // mutation: postgres-sweep
		clock, micros, clock, micros, maxRows)
}

func (table) Raise(bucket int, token int64) string {
	return fmt.Sprintf("UPDATE holdfast_floor SET token = GREATEST(token, %d) WHERE bucket = %d", token, bucket)
}

func (table) Delete(name []byte, version int64) string {
	return fmt.Sprintf("DELETE FROM holdfast_row WHERE name = %s AND version = %d", lit(name), version)
}
