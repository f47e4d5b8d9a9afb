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
// ([ExactNames]); table and column ([Table]); max_conns ([MaxConns]);
// max_idle ([MaxIdle]); skew ([Skew]); socket, instead of a host; require_tls=true, which refuses
// connections without TLS to a verified server. With tls=true, ca is the
// file of the PEM certificates to accept instead of the system's, cert and key are the
// client's own files, and server_name is the name in the server's certificate. All other
// parameters belong to go-sql-driver/mysql, such as tls. The store overrides those that
// would end a session or a wait.
//
// # Safety
//
// [sqlkit.Sessions] and package record explain why sessions and leases are safe. This is
// specific to MySQL and MariaDB:
//
// The store sets the server's wait_timeout, in whole seconds, to the TTL before it requests
// a lock. The server then ends a session that has been silent for the TTL, with its locks.
// The store switches off all other timeouts of the session. Its isolation is READ COMMITTED,
// its time zone UTC, and its sql_mode STRICT_ALL_TABLES, so that the server truncates no name.
//
// An answer on the connection does not prove that the session has the lock. If the
// transaction becomes the victim of a deadlock, the server rolls it back and keeps the
// connection. So each ping and each release of [Pessimistic] rolls back to a savepoint that
// was set right after the row was locked. The rollback fails if the transaction is gone.
// Each ping of [Named] reads which session has the lock. The transaction contains nothing
// but the lock: the store writes tokens and the rows of holdfast_session on other
// connections.
//
// A connection survives a switchover, in which its server becomes read-only and another one
// is promoted. So each lock request and each ping reads read_only. The client pings one
// session of each server with grants every half second. If the ping finds the server
// read-only, the client pings all its other sessions at once, and they end. It closes idle
// connections to that server. The next request opens a new connection, which may lead to
// the new primary. If it does not, the store refuses the request. If the old server stays
// writable, or falls silent, the client does not notice the switchover: its grants end with
// their TTL.
//
// The store probes each server to which its connections lead. On Galera each query waits until its node has every
// change that another node has completed, because Optimistic may renew or release a grant at another node than
// the one that made it. The cluster certifies each change of a row, so that of two changes of one version one fails.
//
// A token is SYSDATE in microseconds, evaluated in the same statement after the lock has
// been granted; NOW and UTC_TIMESTAMP are evaluated before the wait. If the server runs with
// --sysdate-is-now, a separate statement reads the time. If the grant has several tokens, the
// statement sleeps for as many microseconds, and reads the time again. Shared grants and permits read
// the clock one after the other, behind a named lock, so that no two have the same token.
//
// A session recipe keeps no token after the grant. So if the clock is set back, or a server is
// promoted whose clock is behind, tokens are below earlier ones for as long as the clock is. With
// [DurableTokens] they rise then, too, and so do those of [Optimistic]. [sqlkit.Sessions] explains
// both, and the exception: a server that is promoted without the last commits.
//
// Each name has a gate, which is a named lock. A waiter of [Pessimistic] or [Named] first takes the gate,
// and then waits for the lock while it has the gate. The other waiters wait for the gate, in the order in
// which they came. The gate decides only the order. A request of [Named] that does not wait gets no lock
// while the gate is taken. If the client of the first waiter dies, the server ends its session like that of
// a holder, and with it the gate.
//
// A session may hand its lock off to the next request (see [sqlkit.Sessions]). One statement then reads
// whether the gate is free, and the clock. With Named, the same statement checks that the session has the
// lock, and releases the lock if the gate is taken. With Pessimistic, the savepoint proves after the
// statement that the transaction still exists. On MariaDB the same round trip ends the transaction if the
// gate is taken.
//
// Each session has a named lock of a random name, its identity. To undo a request, the store
// ends the session that has this named lock, in one statement. If no session has it, the
// session is gone. A connection number is no identity: after a failover the new server may
// have given the number to another program.
// A KILL may arrive late. The client never uses a session again after it has begun to end it, so
// such a KILL finds no session, or one that only waits for its end.
//
// No decision about a lock depends on the records of holders in holdfast_session. A session
// has a named lock for each grant that it records, and the row counts while the session has
// that lock. A row that is written late, or that a dead session has left, does not count,
// and a client removes it. A session records a grant when it has stood for 20 ms, because the
// record of a shorter grant would cost more than the grant. Until then an inspection of
// [Pessimistic] omits it, and one of [Named] shows the number of its connection. So does an
// inspection of a grant whose process was stopped before the record. If the record
// fails, which takes up to two seconds, the session has the named lock hf:unrecorded:N until the
// grant is recorded. An inspection or a break that may miss such a grant returns an error.
//
// An operator's break marks the holder's row and ends the session that has the named lock of
// that grant, in one statement. So the statement does not end a session that has released
// the grant meanwhile.
package mysqlstore
