// Package holdfast provides distributed locks on the store that you already run:
// Redis, etcd, ZooKeeper, NATS, MySQL, MariaDB, PostgreSQL, SQLite, S3, files, or memory.
//
// # What a lock is
//
// A lock is a lease: a store grants a name to one holder, and keeps the grant for a time, the
// TTL. The holder renews it as long as it lives. If the holder crashes, the lease expires, and
// the store grants the name to the next waiter. A release wakes the next waiter, or waiters poll. Some stores serve
// waiters in order, others in any order: [Guarantees] reports which. For a few milliseconds after a
// grant, a goroutine that unlocks hands the lock off to the next waiter of its own process. It does
// so where the store can give each of them a fencing token of its own; see [LocalHandoff].
//
// A lock is advisory: it protects no resource that does not check it. A process
// can be paused for longer than its lease and then continue, and no lock can prevent
// that. Each grant therefore has two safeguards. A context ends before the store grants the
// name to another client. A fencing token, larger than that of every earlier grant of the
// name, lets the resource refuse the paused process. Some events end a grant early, such as a
// break or a failover. Then the context ends a moment later: the store declares these events
// and that time. Until then, only the token protects the resource.
//
// # Example
//
//	import (
//		"github.com/holdfast-go/holdfast"
//		_ "github.com/holdfast-go/holdfast/filestore" // file: URLs
//	)
//
//	locker, err := holdfast.Open(ctx, "file:///var/lib/app/locks")
//	if err != nil {
//		return err
//	}
//	defer locker.Close(context.Background())
//
//	err = locker.Do(ctx, "order/4711", func(ctx context.Context) error {
//		return bill(ctx, holdfast.Token(ctx, "order/4711"))
//	})
//
// One [Locker] per process and store is enough. It is safe for concurrent use.
// [Locker.Do] waits for the lock, runs the function with the lock's context, and
// releases the lock. [Locker.TryDo] returns at once if the lock is held.
// [Locker.Lock] and [Locker.TryLock] return a [Lock] to unlock yourself, and
// [Locker.DoAll] acquires several names without deadlock.
//
// # Options
//
// Options are given to a call, or to all calls by [Defaults]:
//
//   - [TTL] is for how long a crashed holder blocks others. Default 30 s. The lock is
//     renewed every third of it.
//   - [Wait] limits the waiting. Default: until the context ends.
//   - [MinHold] keeps the lock for at least that long, even if the work is done
//     earlier. [MaxHold] cancels the lock's context after that time.
//   - [Shared] is for readers. [Limit] makes a semaphore with n permits. The default
//     is one holder alone.
//   - [Reentrant] joins the lock that the context already holds.
//   - [Reason] is shown where the lock is inspected.
//
// # Errors
//
// Test an error with [errors.Is]. [context.Canceled]: the caller was cancelled, whatever
// the store has answered. [ErrBusy]: another holder has the name.
// [ErrUnavailable]: the store did not answer in time. [ErrRefused]: the store refused,
// for example for missing rights. [ErrInvalid] and [ErrUnsupported]: the call cannot
// be made like this. [ErrSelfDeadlock]: the context already holds the name. If Do
// returns one of these, the function did not run, unless it returned the error
// itself.
//
// # Loss
//
// A lock is lost if it ends before it is unlocked: the store could not be reached for
// too long, the machine slept, an operator broke the lock. The lock's context then
// ends, and its cause is a [*LostError] with a [Cause]. Do returns the LostError even
// if the function returned nil, because another process may have held the name in the
// meantime. Stop the work when the context ends, and check the context right before an
// act that matters.
//
// # Tokens
//
// [Token] returns the fencing token of the lock in a context. Send it with each write,
// and let the resource refuse a token that is smaller than the largest it has seen.
// [DoGuarded] runs work under a lock and such a check. Package fence has checks for SQL,
// Redis, etcd, ZooKeeper, object stores, files, HTTP and memory. Only the token is proof:
// between the check of a context and the write the process may be paused.
//
// # Which store
//
// Take the store that you already run and whose failures you understand. etcd and
// ZooKeeper keep a granted lock through the loss of a server. Redis is the fastest,
// and a failover to a replica can lose a lock. With the SQL databases the lock and the
// data can live in one place. Files work on one machine and need no server. Memory is
// for one process, and for tests. docs/guarantees.md states for each store what it
// guarantees and what it does not. [Locker.Guarantees] returns the same.
//
// # Leaders and schedules
//
// [Locker.Lead] elects a leader and campaigns again after a loss or an outage;
// [Locker.Leaders] reports the leader and each change. [Locker.Every] serves each tick of
// a schedule on one of many replicas. docs/election.md shows both.
//
// # At SIGTERM
//
// Cancel the context that the work derives from, let the work end, and call
// [Locker.Close]. A lock is held, and renewed, until the work has returned: at most for
// [Drain]. [DrainContext] is for a last write, and [WaitContext] stops the waiting alone.
// Close ends every lock that is still held, and releases it. It waits until the store has
// confirmed that, so that the next process can start at once:
//
//	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
//	defer stop()
//	err := run(ctx, locker) // returns when ctx ends
//	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
//	defer cancel()
//	_ = locker.Close(closing)
//
// A process that is killed releases nothing. Its locks end with their TTL, or at once
// where the store notices the death of a client.
package holdfast
