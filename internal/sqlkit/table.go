package sqlkit

import "context"

// Table builds the statements of [NewOptimistic] in one dialect. They use two
// tables. One has a row per name (name, bucket, version, token, expires, touched, state).
// The other has a row per bucket, 0 to Buckets-1, with the high-water mark of tokens.
//
// Times are microseconds since 1970 by the database's clock, at the beginning of the
// statement or later.
type Table interface {
	// Read returns one row: the time; the bucket's high-water mark; the name's version,
	// token and state; and, if a server may be read-only, whether it is. Version, token and
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

// Resolver is a [Table] whose statements depend on a query, such as the one that finds the schema of its tables.
type Resolver interface {
	// Resolve returns when the table can build statements. Its error has a code.
	Resolve(context.Context) error
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

// Faults classifies the errors of a server.
type Faults interface {
	// Sort returns an error of a link with a code: CodeUnavailable if the server was not
	// reached, CodeRefused if it refused, else CodeUnknown. retry reports that another try
	// may succeed: the victim of a deadlock, a lock wait that timed out, a serialization
	// failure.
	Sort(err error) (coded error, retry bool)
}
