// Package fence makes a resource refuse the writes of a holder that has lost
// its lock.
//
// # Why a lock is not enough
//
// A lock with a deadline is advisory. A holder checks that it still holds the
// lock. Then its garbage collector, its hypervisor or a slow disk pauses it for a
// minute. Then it sends the write that it had already decided on. Another holder
// has worked for most of that minute. No check in the holder closes the gap
// between the check and the write, because the pause can fall into the gap.
//
// The resource closes the gap. Every grant of holdfast carries a fencing token, a
// number larger than that of every earlier grant of the same name. The holder
// sends the token with each write. A guard at the resource keeps the largest
// token that it has seen, the high-water mark, and refuses a smaller one with
// [ErrStale]. The comparison, the new mark and the write are one atomic step; a
// guard whose comparison and write can be separated only moves the gap.
//
//	lock, err := locker.Lock(ctx, "invoices")
//	...
//	err = guard.Write(lock.Context(), "invoices", lock.Token(), func(ctx context.Context) error {
//		return save(ctx, invoices)
//	})
//	if errors.Is(err, fence.ErrStale) {
//		// A newer holder is at work. Nothing was written.
//	}
//
// An equal token passes, so a holder can write many times. Use the tokens of one
// lock name for one resource: tokens of different names, or of different stores,
// cannot be compared. Only exclusive grants fence a resource.
//
// # The guards
//
// All guards implement [Guard]: Write, Raise and Newest of a resource. They differ in the type
// of a write.
//
//	guard        a write is                what is atomic             between
//	Memory       a function                the function, by a mutex   goroutines of one
//	                                                                  process
//	Files        the new content           the content of one file    processes of one
//	                                       and its token              machine
//	Objects      the new content           one conditional write of   all clients of one
//	                                       content and token          store
//	SQL          a function in a           the transaction, by a row  all clients of one
//	             transaction               of a table of tokens       database
//	Column       the same                  the same, by a column of   all clients of one
//	                                       the guarded row itself     database
//	pgstore      the same, with pgx        as SQL                     as SQL
//	redisstore   commands on the key       one script                 all clients of one
//	                                                                  Redis
//	etcdstore    operations                one transaction            all clients of one
//	                                                                  cluster
//	zkstore      operations                one transaction            all clients of one
//	                                                                  ensemble
//
// [SQL.Check], [Column.Check] and pgstore.Guard.Check only compare and raise the token, in a
// transaction of the caller. [Handler] puts a guard in front of an HTTP handler, and
// [Transport] sends the token of a client. The guards of the stores with a client library of
// their own are in the packages of these stores.
//
// To guard a resource of your own, implement [Guard], and test it with package fencetest.
//
// The tokens must rise as long as the resource lasts. Where a store can lose its memory of
// tokens, open it so that it keeps them: tokens=durable in the URL of MySQL and PostgreSQL,
// replicas= in that of Redis.
//
// Under a semaphore, guard each permit as a resource of its own: [Slot]. A holder of a
// shared lock reads, and calls [Verify] after it has read. Its token must not raise the
// mark, because others hold the lock with smaller tokens.
//
// A guard protects only the writes that pass through it. It does not stop a write
// that reaches the resource in another way: for that, restrict the rights at the
// resource. It does not stop a client that sends an invented large token: for
// that, authenticate clients in front of the guard.
//
// # Reads belong behind the guard too
//
// A guard orders writes. Take a holder that reads, computes, and then writes. Between its read
// and its first write the guard may still accept a late write of the previous holder: the
// previous token is still the largest one seen. So pass the token to the guard before reading:
// read inside the write function or the transaction, or raise the token first with Raise. After
// that the guard refuses the previous holder.
//
// # Failed writes
//
// When the write function of [Memory] fails, the token stays raised:
// the write may have had half of its effect, and an older holder must not write
// after it. When a transaction is rolled back, the token is rolled back with it,
// because the transaction had no effect. In both cases the tokens of successful
// writes never fall.
//
// # Errors
//
// [ErrStale] is a refusal, as a [*StaleError] with both tokens. [ErrInvalid] is
// an invalid argument, found before any I/O. [ErrUnavailable] means that the guard
// itself failed or that the context ended. The error of a write function is
// returned unchanged.
package fence
