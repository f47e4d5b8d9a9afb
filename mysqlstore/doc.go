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
// asked for, and ends the session that is silent for so long, with its locks. All
// other timeouts of the session are taken away; its isolation is READ COMMITTED, its
// time zone UTC, and its sql_mode empty.
//
// Tokens are SYSDATE in microseconds, evaluated in the same statement after the lock
// has been granted; NOW and UTC_TIMESTAMP are taken before the wait. Where the server
// runs with --sysdate-is-now the time is read by a statement of its own. Shared grants
// and permits read the clock one after the other, behind a named lock, so that no two
// have one token.
//
// What is written down of holders, in holdfast_session, decides nothing. It is a table
// in memory, empty when the server starts, as are the locks; a row counts only while
// its session is there and has the lock. A grant that is given back within 20 ms is
// not written down; until then, and until it has been idle for as long, the session
// has one more named lock, hf:untold:N, and who inspects waits until that is gone or
// the session has gone on to another statement.
//
// An operator's break ends the holder's session by its number after leaving word in
// its row, from which the holder learns that it was taken.
package mysqlstore
