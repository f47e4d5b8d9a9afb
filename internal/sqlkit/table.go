package sqlkit

import "context"

// Table is a dialect of the engine [Optimistic]: the statements on its two tables.
// One has a row per name (name, bucket, version, token, expires, touched, state),
// the other a row per bucket, 0 to Buckets-1, with a floor for tokens.
//
// Times are microseconds since 1970 by the database's clock, as of the statement's
// beginning or later.
type Table interface {
	// Read answers one row: the time, the bucket's floor and the name's version,
	// token and state, the last three NULL where the name has no row; and, where a server
	// may be read-only, whether it is. It answers no row only where the bucket has none.
	Read(name []byte, bucket int) string
	// Insert writes the row of a name that has none, and changes nothing if it has
	// one, or after the deadline.
	Insert(name []byte, bucket int, w Write) string
	// Update replaces the row whose version is old, and changes nothing else, and
	// nothing after the deadline.
	Update(name []byte, old int64, w Write) string
	// Wake tells those who wait for the name, at the commit; "" where nobody
	// listens.
	Wake(name []byte) string
	// List answers time, name in hexadecimal and state of all rows whose names
	// begin with prefix and whose grants may stand.
	List(prefix []byte) string
	// Idle answers name in hexadecimal, bucket, version and token of at most max
	// rows that have neither been touched for a while, in microseconds, nor carried
	// a grant.
	Idle(micros int64, max int) string
	// Raise makes a bucket's floor at least the token.
	Raise(bucket int, token int64) string
	// Delete removes the row of a name if its version is that.
	Delete(name []byte, version int64) string
}

// Write is a new state of a row.
type Write struct {
	Version, Token, Expires, Now, Deadline int64
	State                                  string
}

// Buckets is how many rows keep the floor of tokens.
const Buckets = 64

// Faults tells what the server's errors mean.
type Faults interface {
	// Sort puts a code on an error of a link: Unavailable where the server was not
	// reached, Refused for an answered no, Unknown else. Retry says that the
	// statement was answered with a no that asking again may turn into a yes: the
	// victim of a deadlock, a lock wait that ran out, a serialization failure.
	Sort(err error) (coded error, retry bool)
}

// Waker tells of changes of names.
type Waker interface {
	// Listen tells on a channel of one place when something was freed under the
	// name, and when that may have been missed. Stop ends it.
	Listen(ctx context.Context, name []byte) (changed <-chan struct{}, stop func(), err error)
	// Close ends it all.
	Close()
}
