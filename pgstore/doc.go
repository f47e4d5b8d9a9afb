// Package pgstore keeps locks in PostgreSQL, in one of three recipes. A lock of one recipe
// does not exclude a lock of another.
//
//	postgres://user:password@host:5432/database?recipe=advisory
//
// [Advisory], the default, takes a session-level advisory lock on a connection of its own
// and needs no tables. [Pessimistic] locks a row in an open transaction on a connection of
// its own, and has semaphores. [Optimistic] keeps a lease in a row. It works through
// poolers and supports every limit; NOTIFY wakes its waiters. `holdfast init URL`, or
// [Store.Init], creates the tables; [Schema] is the script. docs/sql.md compares the
// recipes and lists the rights that they need.
//
// Parameters of the URL: recipe; tokens=durable ([DurableTokens]); keys=given
// ([GivenKeys]); table and column ([Table]). All others are pgx's and the server's. The
// store overrides those that would end a session or a wait.
//
// # Safety
//
// [sqlkit.Sessions] and [sqlkit.Optimistic] explain why sessions and leases are safe. This is
// specific to PostgreSQL:
//
// idle_session_timeout, or inside the transaction idle_in_transaction_session_timeout, is set
// to the TTL before or with the lock. It ends a session that has been silent for the TTL.
// All other timeouts of the session are switched off, and its isolation is READ COMMITTED.
// The server checks once a second whether a waiting client is still there.
//
// A token is clock_timestamp in microseconds, evaluated after the lock was granted: in a
// statement after it, or behind a MATERIALIZED query that takes it. Shared grants and
// permits read the clock one after the other. For several tokens the statement reads the
// clock again and again, until it is as many microseconds later.
//
// A waiter of [Advisory] shares an advisory lock of the name as long as its statement runs, and a waiter of
// [Pessimistic] has the gate before the row. A session that passes its lock on (see
// [sqlkit.Sessions]) tries that lock in the statement that reads the clock. If it is taken,
// Advisory releases its lock in the same statement, and Pessimistic ends its transaction by the next one.
//
// pg_locks shows the sessions that hold, and pg_stat_activity their owners: the comment of
// the last statement has the owner, and application_name the tokens. Both end with the
// session. In the first 20 ms of a grant only pg_locks shows it, and an inspection waits
// for the rest.
//
// Every new session checks whether the server is a replica, because a replica grants advisory
// locks of its own. Of several hosts the primary is used.
//
// A grant of Optimistic and a durable token are on disk when their transaction has committed,
// because the transaction switches synchronous_commit on if it is off. fsync and
// full_page_writes cannot be switched on by a client: the guarantees note if they are off.
//
// Behind a pooler in transaction mode one session becomes another one. Open detects that and
// refuses the server. Besides, every grant and renewal compares the backend.
package pgstore
