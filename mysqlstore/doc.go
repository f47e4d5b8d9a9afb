// Package mysqlstore keeps locks in MySQL and MariaDB, in one of three recipes. A lock of one
// recipe does not exclude a lock of another.
//
//	mysql://user:password@host:3306/schema?recipe=pessimistic
//
// [Pessimistic], the default, locks a row in an open transaction on a connection of its
// own. [Named] takes GET_LOCK on a connection of its own, and needs no rights to tables
// except for inspection. [Optimistic] keeps a lease in a row. It works through poolers and
// proxies and on a cluster, and supports every limit. `holdfast init URL`, or
// [Store.Init], creates the tables; [Schema] is the script. docs/sql.md compares the
// recipes and lists the rights that they need.
//
// Parameters of the URL: recipe; tokens=durable ([DurableTokens]); names=exact
// ([ExactNames]); table and column ([Table]); socket, instead of a host. All others are
// go-sql-driver/mysql's, such as tls. The store overrides those that would end a session or
// a wait.
//
// # Safety
//
// [sqlkit.Sessions] and [sqlkit.Optimistic] explain why sessions and leases are safe. This is
// specific to MySQL and MariaDB:
//
// The server's wait_timeout, in whole seconds, is set to the TTL before a lock is requested.
// It ends a session that has been silent for the TTL, with its locks. All other timeouts of
// the session are switched off. Its isolation is READ COMMITTED, its time zone UTC, and its
// sql_mode STRICT_ALL_TABLES, so that no name is cut.
//
// A connection that answers proves no lock: if the transaction becomes the victim of a
// deadlock, the server rolls it back and keeps the connection. So each ping and each release
// of [Pessimistic] rolls back to a savepoint that was set right after the row was locked,
// which fails if the transaction is gone. Each ping of [Named] reads which session has the
// lock. Nothing but the lock is in the transaction: tokens and the rows of holdfast_session
// are written on other connections.
//
// A connection survives a switchover, in which its server becomes read-only and another one
// is promoted. So each lock request and each ping reads read_only. One session of each
// server with grants is pinged every half second. If it finds the server read-only, all
// others are pinged at once and end. Idle connections to that server are closed, and the
// next request opens a new one, which may lead to the new primary. If it does not, the
// request is refused. If the old server stays writable, or falls silent, the switchover is
// not noticed: its grants end with their TTL.
//
// A token is SYSDATE in microseconds, evaluated in the same statement after the lock has
// been granted; NOW and UTC_TIMESTAMP are evaluated before the wait. If the server runs with
// --sysdate-is-now, a statement of its own reads the time. For several tokens the statement
// sleeps for as many microseconds and reads the time again. Shared grants and permits read
// the clock one after the other, behind a named lock, so that no two have the same token.
//
// A waiter of [Pessimistic] or [Named] first takes the gate, a named lock of the name, and waits for the lock
// while it has the gate. Others wait for the gate, in the order in which they came. The gate decides about
// order alone. A session that passes its lock on (see [sqlkit.Sessions]) reads in one statement
// whether the gate is free, and the clock. Named compares the owner of the lock in that statement, and
// releases the lock if the gate is taken. Pessimistic proves its transaction by the savepoint after the
// statement; on MariaDB the same round trip ends the transaction if the gate is taken.
//
// Each session has a named lock of a random name, its identity. To undo a request, the store
// ends the session that has this named lock, in one statement. If no session has it, the
// session is gone. A connection number is no identity: after a failover the new server may
// have given the number to another program.
//
// The records of holders in holdfast_session decide nothing. A session has a named lock per
// grant that it records, and the row counts while the session has that lock. A row that is
// written late, or that a dead session has left, does not count and is removed. A grant
// that is released within 20 ms is not recorded. Until then the session has the named lock
// hf:new:N, and an inspection waits until that is gone or the session has another grant.
// While a grant cannot be recorded its session has the named lock hf:unrecorded:N. An
// inspection or a break that may miss such a grant returns an error.
//
// An operator's break marks the holder's row and ends the session that has the named lock of
// that grant, in one statement. So a session that has released the grant meanwhile is not
// ended.
package mysqlstore
