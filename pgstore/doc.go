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
// ([GivenKeys]); table and column ([Table]); max_conns ([MaxConns]); max_idle ([MaxIdle]);
// schema ([InSchema]); require_tls=true, which refuses connections without TLS to a verified server.
// All other parameters belong to pgx or the server. The store overrides those that would end a session or a wait.
//
// Each statement names the schema of its tables. The store finds that schema once, and not by the search path of a
// session: other code may have changed it. A search_path in the URL is a list for [InSchema].
//
// # Safety
//
// [sqlkit.Sessions] and package record explain why sessions and leases are safe. This is
// specific to PostgreSQL:
//
// The store sets idle_session_timeout, or inside the transaction
// idle_in_transaction_session_timeout, to the TTL before or with the lock. The server then
// ends a session that has been silent for the TTL. A statement that waits ends at lock_timeout,
// after at most 5 s, so that its snapshot does not become old, and the waiter repeats it. The
// store switches off all other timeouts of the session, and its isolation is READ COMMITTED.
// The server checks once a second whether a waiting client is still there.
//
// A token is clock_timestamp in microseconds. The server evaluates it after it has granted
// the lock: in a later statement, or after a MATERIALIZED query that takes the lock. Shared
// grants and permits read the clock one after the other. For several tokens the statement
// reads the clock repeatedly, until as many microseconds have passed.
//
// A session recipe keeps no token after the grant. So if the clock is set back, or a server is
// promoted whose clock is behind, tokens are below earlier ones for as long as the clock is. With
// [DurableTokens] they rise then, too, and so do those of [Optimistic]. [sqlkit.Sessions] explains
// both, and the exception: a server that is promoted without the last commits.
//
// A waiter of [Advisory] shares an advisory lock of the name, its gate, as long as its first statement runs. From the
// second one on it has the gate alone. A waiter of [Pessimistic] has the gate before the row alone. Such a waiter keeps
// the gate until it has the lock, also between two statements. A session that hands its lock off (see
// [sqlkit.Sessions]) tries to take that lock in the statement that reads the clock. If another session has it, Advisory
// releases its lock in the same statement, and Pessimistic ends its transaction by the next one.
//
// A client that watches a name for waiters, as the core does for Wanted and Sticky, listens on one connection for all its
// names. A waiter of such a name notifies it, and other waiters do not: see watches.
//
// pg_locks shows the sessions that have locks, and pg_stat_activity shows their owners: the
// comment of the last statement has the owner, and application_name the tokens. Both end
// with the session. In the first 20 ms of a grant of [Advisory] only pg_locks shows it. Until then
// an inspection shows the number of the backend, and a list omits the grant. So it is with a
// grant whose process was stopped before it showed its owner.
//
// Every new session checks whether the server is a replica, because a replica grants advisory
// locks of its own. If a URL names several hosts, the client uses the primary.
//
// A grant of Optimistic and a durable token are on disk when their transaction has committed,
// because the transaction switches synchronous_commit on if it is off. A client cannot switch
// on fsync and full_page_writes: the guarantees note if they are off.
//
// Behind a pooler in transaction mode, a connection may get another session for each
// transaction. Open detects that and refuses the server. In addition, every grant and
// renewal compares the backend.
package pgstore
