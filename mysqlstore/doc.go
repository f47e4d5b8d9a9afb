// Package mysqlstore keeps locks in MySQL and MariaDB, in one of three recipes, which
// do not exclude one another:
//
//	mysql://user:password@host:3306/schema?recipe=pessimistic
//
// [Pessimistic], the default, locks a row in an open transaction on a connection of
// its own. [Named] takes GET_LOCK on a connection of its own, and needs no rights to
// tables but for inspection. [Optimistic] keeps a lease in a row, which works through
// poolers and proxies and on a cluster, and has every limit. `holdfast init URL`, or
// [Store.Init], creates the tables; [Schema] is the script. docs/sql.md compares the
// recipes and lists the rights that they need.
//
// Parameters of the URL: recipe; tokens=durable ([DurableTokens]); names=exact
// ([ExactNames]); table and column ([Table]); socket, instead of a host. All others
// are go-sql-driver/mysql's, such as tls. Settings of theirs that would end a session
// or a wait are overruled.
//
// # Safety
//
// How sessions and leases are safe is said at [sqlkit.Sessions] and
// [sqlkit.Optimistic]. What is MySQL's own:
//
// The server's wait_timeout, in whole seconds, is set to the TTL before a lock is
// requested, and ends the session that is silent for so long, with its locks. All
// other timeouts of the session are taken away; its isolation is READ COMMITTED, its
// time zone UTC, and its sql_mode STRICT_ALL_TABLES, so that no name is cut.
//
// A connection that answers proves no lock: a server rolls a transaction back, and keeps
// the connection, when the transaction is the victim of a deadlock. Each ping and each
// release of [Pessimistic] goes back to a savepoint that was set right after the row was
// locked, which fails when the transaction is gone; each ping of [Named] asks the server
// which session has the lock. Nothing but the lock is in the transaction: tokens and the
// rows of holdfast_session are written on other connections.
//
// A connection outlives a switchover, in which its server becomes read-only and another
// one is promoted. Each lock request and each ping therefore reads read_only. One session
// of each server that has grants is pinged every half second; when it finds the server
// read-only, all others are pinged at once and end. Idle connections to that server are
// closed, and the next request opens a new one, which may lead to the new primary. If it
// does not, the request is refused. A server that was replaced and stays writable, or
// that falls silent, is not noticed: its grants end with their TTL.
//
// Tokens are SYSDATE in microseconds, evaluated in the same statement after the lock
// has been granted; NOW and UTC_TIMESTAMP are taken before the wait. Where the server
// runs with --sysdate-is-now the time is read by a statement of its own. Shared grants
// and permits read the clock one after the other, behind a named lock, so that no two
// have one token.
//
// Each session has a named lock of a random name, its identity. To undo a request, the
// store ends the session that has this named lock, in one statement; a session whose named
// lock nobody has is gone. A connection number is no identity: a server that has taken
// over may have given it to another program.
//
// What is written down of holders, in holdfast_session, decides nothing. A session has a
// named lock per grant that it writes down, and the row counts while it has that lock: a
// row that is written late, or that a dead session has left, does not count, and is
// removed. A grant that is given back within 20 ms is not written down; until then the
// session has the named lock hf:new:N, and an inspection waits until that is gone or the
// session has another grant. While a grant cannot be written down its session has the
// named lock hf:unrecorded:N, and an inspection or a break that may miss it returns an
// error.
//
// An operator's break leaves word in the holder's row and ends the session that has the
// named lock of that grant, in one statement: a session that has released the grant
// meanwhile is left alone.
package mysqlstore
