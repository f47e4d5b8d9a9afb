package sqlkit

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// Table builds the statements of [NewOptimistic]. They use two
// tables. One has a row per name (name, bucket, version, token, expires, touched, state).
// The other has a row per bucket, 0 to Buckets-1, with the high-water mark of tokens.
//
// Times are microseconds since 1970 by the database's clock, at the beginning of the
// statement or later.
type Table interface {
	// Read returns one row: the time; the bucket's high-water mark; the name's version,
	// token and state; and whether the server is read-only. Version, token and
	// state are NULL if the name has no row. It returns no row only if the bucket has none.
	Read(name []byte, bucket int) string
	// Find returns one row for each of the names that has a row: as Read, but with the name in
	// hexadecimal instead of the high-water mark.
	Find(names [][]byte) string
	// Insert writes the row of a name. It changes nothing if the name has a row, or after
	// the deadline.
	Insert(name []byte, bucket int, w Write) string
	// Update replaces the row whose version is old. It changes nothing else, and nothing
	// after the deadline.
	Update(name []byte, old int64, w Write) string
	// UpdateEach is Update for several rows, ordered by their names, in one statement. It changes those
	// that Update would change, all or none. It leaves out a row that another transaction has
	// locked, or waits for it for about a second and then fails.
	UpdateEach(changes []Change) string
	// Wake notifies the waiter of the name that has the ID, or all if it is "", at the commit. It is empty if the store
	// does not listen.
	Wake(name []byte, id string) string
	// List returns time, name in hexadecimal and state of the rows whose names begin with
	// prefix and whose grants may stand.
	List(prefix []byte) string
	// Idle returns name in hexadecimal, bucket, version and token of at most max rows. They
	// were unused, and without a grant, for at least this many microseconds.
	Idle(micros int64, max int) string
	// Raise raises a bucket's high-water mark to the token, unless the mark is higher.
	Raise(bucket int, token int64) string
	// Delete removes the row of a name if it has the version.
	Delete(name []byte, version int64) string
}

// Write is the new state of a row.
type Write struct {
	Version, Token, Expires, Now, Deadline int64
	State                                  string
}

// Change replaces the row of a name whose version is Old.
type Change struct {
	Name []byte
	Old  int64
	Write
}

// Buckets is the number of rows with high-water marks of tokens.
const Buckets = 64

// Dialect is the [Table] of a database: the parts in which the statements of databases differ. It also has the
// statements of [Values].
type Dialect struct {
	// In returns the name of a table with its schema.
	In func(table string) string
	// Clock is an expression for the time, ReadOnly one for whether the server refuses the writes of this session. Hex is
	// one for bytes in hexadecimal, and Length one for their number, with %s for the bytes.
	Clock, ReadOnly, Hex, Length string
	// Lit returns bytes as a literal, and Text returns ASCII text as one, whatever the settings of the session.
	Lit  func([]byte) string
	Text func(string) string
	// Of follows the columns of a query without a table. Flushed is a condition that is always true, and makes the
	// commit of a write wait for the disk. Keep ends an INSERT that changes nothing if the row exists.
	Of, Flushed, Keep string
	// Together implements UpdateEach.
	Together func(changes []Change) string
	// Channel is where notifications are sent; empty if the store does not listen.
	Channel string
	// PutNew completes an INSERT of a value, which changes nothing if the value exists, and PutOver an UPDATE of one. The
	// first row of the last answer begins with 1 if a row was written. Otherwise it has another number, or there is no
	// row.
	PutNew, PutOver func(write string) []string
	// Found returns when the tables are found, so that In knows their schema; nil if it always does. Its error has a code.
	Found func(context.Context) error
}

// holdfast's tables.
const (
	RowTable   = "holdfast_row"
	FloorTable = "holdfast_floor"
	NameTable  = "holdfast_name"
	SlotTable  = "holdfast_slot"
	ValueTable = "holdfast_value"
)

func (d *Dialect) resolve(ctx context.Context) error {
	if d.Found == nil {
		return nil
	}
	return d.Found(ctx)
}

func (d *Dialect) Read(name []byte, bucket int) string {
	return fmt.Sprintf("SELECT %s, f.token, r.version, r.token, r.state, %s FROM %s f LEFT JOIN %s r ON r.name = %s WHERE f.bucket = %d",
		d.Clock, d.ReadOnly, d.In(FloorTable), d.In(RowTable), d.Lit(name), bucket)
}

func (d *Dialect) Find(names [][]byte) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = d.Lit(name)
	}
	return fmt.Sprintf("SELECT %s, %s, version, token, state, %s FROM %s WHERE name IN (%s)",
		d.Clock, d.hex("name"), d.ReadOnly, d.In(RowTable), strings.Join(all, ", "))
}

func (d *Dialect) Insert(name []byte, bucket int, w Write) string {
	return fmt.Sprintf("INSERT INTO %s (name, bucket, version, token, expires, touched, state) SELECT %s, %d, %d, %d, %d, %d, %s%s WHERE %s < %d AND %s%s",
		d.In(RowTable), d.Lit(name), bucket, w.Version, w.Token, w.Expires, w.Now, d.Text(w.State), d.Of, d.Clock, w.Deadline, d.Flushed, d.Keep)
}

func (d *Dialect) Update(name []byte, old int64, w Write) string {
	return fmt.Sprintf("UPDATE %s SET version = %d, token = %d, expires = %d, touched = %d, state = %s WHERE name = %s AND version = %d AND %s < %d AND %s",
		d.In(RowTable), w.Version, w.Token, w.Expires, w.Now, d.Text(w.State), d.Lit(name), old, d.Clock, w.Deadline, d.Flushed)
}

func (d *Dialect) UpdateEach(changes []Change) string { return d.Together(changes) }

// Wake encodes a name for a notification, which is a text of less than 8000 bytes. The longest
// name has about 1300 digits.
func (d *Dialect) Wake(name []byte, id string) string {
	if d.Channel == "" {
		return ""
	}
	return "NOTIFY " + d.Channel + ", '" + hex.EncodeToString([]byte(id+"\x00"+string(name))) + "'"
}

func (d *Dialect) List(prefix []byte) string {
	return fmt.Sprintf("SELECT %s, %s, state FROM %s WHERE name >= %s AND SUBSTRING(name FROM 1 FOR %d) = %[4]s AND expires > %[1]s",
		d.Clock, d.hex("name"), d.In(RowTable), d.Lit(prefix), len(prefix))
}

func (d *Dialect) Idle(micros int64, maxRows int) string {
	return fmt.Sprintf("SELECT %s, bucket, version, token FROM %s "+
		"WHERE expires < %[3]s - %[4]d AND touched < %[3]s - %[4]d LIMIT %[5]d", // mutation: sql-sweep
		d.hex("name"), d.In(RowTable), d.Clock, micros, maxRows)
}

func (d *Dialect) Raise(bucket int, token int64) string {
	return fmt.Sprintf("UPDATE %s SET token = GREATEST(token, %d) WHERE bucket = %d", d.In(FloorTable), token, bucket)
}

func (d *Dialect) Delete(name []byte, version int64) string {
	return fmt.Sprintf("DELETE FROM %s WHERE name = %s AND version = %d", d.In(RowTable), d.Lit(name), version)
}

func (d *Dialect) value(key []byte) string {
	fits := fmt.Sprintf("CASE WHEN "+d.Length+" <= %d THEN ", "data", driver.MaxValue)
	return "SELECT " + fits + "version END, " + fits + d.hex("data") + " END FROM " + d.In(ValueTable) + " WHERE name = " + d.Lit(key)
}

func (d *Dialect) putNew(key, data []byte, version string) []string {
	return d.PutNew(fmt.Sprintf("INTO %s (name, version, data) SELECT %s, %s, %s%s",
		d.In(ValueTable), d.Lit(key), d.Text(version), d.Lit(data), d.Of))
}

func (d *Dialect) putOver(key, data []byte, old, version string) []string {
	return d.PutOver(fmt.Sprintf("UPDATE %s SET version = %s, data = %s WHERE name = %s AND version = %s",
		d.In(ValueTable), d.Text(version), d.Lit(data), d.Lit(key), d.Text(old)))
}

func (d *Dialect) hex(bytes string) string { return fmt.Sprintf(d.Hex, bytes) }

// Faults classifies the errors of a server.
type Faults interface {
	// Sort returns an error of a link with a code: CodeUnavailable if the server was not
	// reached, CodeRefused if it refused, else CodeUnknown. retry reports that another try
	// may succeed: the victim of a deadlock, a lock wait that timed out, a serialization
	// failure.
	Sort(err error) (coded error, retry bool)
}
