package pgstore

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// clock is the time in microseconds since 1970, as of its evaluation.
const clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

// table is the dialect of the optimistic recipe.
type table struct{ wake bool }

// lit returns bytes as a literal that means the same under every setting.
func lit(b []byte) string { return fmt.Sprintf("decode('%x', 'hex')", b) }

// ascii returns ASCII text as a literal that means the same under every setting.
func ascii(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}

// flushed is a condition that is true. It makes the transaction's commit wait for the disk
// if synchronous_commit is off, so that a crash of the server forgets no grant and no
// token. Other values stay: with them, the commit waits for the disk too, or for replicas.
const flushed = "set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true) IS NOT NULL"

func (table) Read(name []byte, bucket int) string {
	return fmt.Sprintf("SELECT %s, f.token, r.version, r.token, r.state FROM holdfast_floor f LEFT JOIN holdfast_row r ON r.name = %s WHERE f.bucket = %d",
		clock, lit(name), bucket)
}

func (table) Find(names [][]byte) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = lit(name)
	}
	return fmt.Sprintf("SELECT %s, encode(name, 'hex'), state FROM holdfast_row WHERE name IN (%s)", clock, strings.Join(all, ", "))
}

func (table) Insert(name []byte, bucket int, w sqlkit.Write) string {
	return fmt.Sprintf("INSERT INTO holdfast_row (name, bucket, version, token, expires, touched, state) SELECT %s, %d, %d, %d, %d, %d, %s WHERE %s < %d AND "+flushed+" ON CONFLICT DO NOTHING", // mutation: postgres-first
		lit(name), bucket, w.Version, w.Token, w.Expires, w.Now, ascii(w.State), clock, w.Deadline)
}

func (table) Update(name []byte, old int64, w sqlkit.Write) string {
	return fmt.Sprintf("UPDATE holdfast_row SET version = %d, token = %d, expires = %d, touched = %d, state = %s WHERE name = %s AND version = %d AND %s < %d AND "+flushed,
		w.Version, w.Token, w.Expires, w.Now, ascii(w.State), lit(name), old, clock, w.Deadline)
}

// channel carries the names of rows that have changed.
const channel = "holdfast"

func (t table) Wake(name []byte) string {
	if !t.wake {
		return ""
	}
	return "NOTIFY " + channel + ", '" + payload(name) + "'"
}

// payload returns a name for a notification, whose limit is 8000 bytes.
func payload(name []byte) string { return hex.EncodeToString(name) }

func (table) List(prefix []byte) string {
	return fmt.Sprintf("SELECT %s, encode(name, 'hex'), state FROM holdfast_row WHERE name >= %s AND substring(name FOR %d) = %s AND expires > %s",
		clock, lit(prefix), len(prefix), lit(prefix), clock)
}

func (table) Idle(micros int64, most int) string {
	return fmt.Sprintf("SELECT encode(name, 'hex'), bucket, version, token FROM holdfast_row WHERE expires < %s - %d AND touched < %s - %d LIMIT %d",
		clock, micros, clock, micros, most)
}

func (table) Raise(bucket int, token int64) string {
	return fmt.Sprintf("UPDATE holdfast_floor SET token = GREATEST(token, %d) WHERE bucket = %d", token, bucket)
}

func (table) Delete(name []byte, version int64) string {
	return fmt.Sprintf("DELETE FROM holdfast_row WHERE name = %s AND version = %d", lit(name), version)
}
