// Package pgstore keeps locks in PostgreSQL, in one of three recipes, which do not
// exclude one another:
//
//	postgres://user:password@host:5432/database?recipe=advisory
//
// [Advisory], the default, takes a session-level advisory lock on a connection of its
// own and needs no tables. [Pessimistic] locks a row in an open transaction on a
// connection of its own, and has semaphores. [Optimistic] keeps a lease in a row, which
// works through poolers, and has every limit; who waits is woken by NOTIFY.
// `holdfast init URL`, or [Store.Init], creates the tables; [Schema] is the script.
// docs/sql.md compares the recipes and lists the rights that they need.
//
// Parameters of the URL: recipe; tokens=durable ([DurableTokens]); keys=given
// ([GivenKeys]); table and column ([Table]). All others are pgx's and the server's.
// Settings of theirs that would end a session or a wait are overruled.
//
// # Safety
//
// How sessions and leases are safe is said at [sqlkit.Sessions] and
// [sqlkit.Optimistic]. What is PostgreSQL's own:
//
// idle_session_timeout, or inside the transaction
// idle_in_transaction_session_timeout, is set to the TTL before or with the lock, and
// ends the session that is silent for so long. All other timeouts of the session are
// taken away, and its isolation is READ COMMITTED. The server looks once a second
// whether a client that waits is still there.
//
// Tokens are clock_timestamp in microseconds, evaluated after the lock has been
// granted: in a statement after it, or behind a MATERIALIZED query that takes it.
// Shared grants and permits read it one after the other.
//
// A holder is found in pg_locks, and who it is in pg_stat_activity: a comment of its
// last statement says for whom, and application_name the token. They end with the
// session and cannot be left over. Where only the former is there yet, which is so for
// the first 20 ms, who inspects waits.
//
// Every session looks first whether the server is a replica, because a replica grants
// advisory locks of its own. Of several hosts the primary is used.
//
// What a grant of Optimistic or a durable token needs is on the disk when its
// transaction has committed, because the transaction sets synchronous_commit where that
// is off. fsync and full_page_writes are the server's alone: the guarantees note where
// they are off.
//
// Behind a pooler in transaction mode a session is not one. That is looked for when a
// store is opened, and refused; besides, every grant and renewal compares the backend.
package pgstore
