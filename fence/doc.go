// Package fence makes a resource refuse the writes of a holder that has lost
// its lock.
//
// # Why a lock is not enough
//
// A lock with a deadline is advice. Its holder may check that it still holds
// it, be paused for a minute by its garbage collector, its hypervisor or a
// slow disk, and then send the write it had already decided on. Another holder
// has been at work for most of that minute. No check in the holder can close
// the gap between the check and the write, because the pause fits in it.
//
// The resource can. Every grant of holdfast carries a fencing token, a number
// larger than that of every earlier grant of the same name. The holder sends
// the token along with each write. A guard at the resource remembers the
// largest token it has seen, and refuses a smaller one with [ErrStale]. The
// comparison, the remembering and the write are one atomic step; a guard whose
// comparison and write can be torn apart only moves the gap.
//
//	lock, err := locker.Lock(ctx, "invoices")
//	...
//	err = guard.Do(lock.Context(), "invoices", lock.Token(), func(ctx context.Context) error {
//		return save(ctx, invoices)
//	})
//	if errors.Is(err, fence.ErrStale) {
//		// Someone newer is at work. Nothing was written.
//	}
//
// An equal token passes: a holder writes as often as it likes. Use the tokens
// of one lock name for one resource: numbers of different names, or of
// different stores, say nothing about each other. Only exclusive grants fence a
// resource; under a semaphore, guard each slot as a resource of its own.
//
// # The guards
//
//	guard     what is atomic                  lasts          between
//	Memory    the write function, per         the process    goroutines of one
//	          resource, by a mutex                           process
//	File      the content of one file         power loss     processes of one
//	          and its token                                  machine
//	SQL       the rows of the caller's        as the         all clients of one
//	          transaction, by a row of        database       database
//	          a table of tokens
//	Column    the same, by a column of        as the         all clients of one
//	          the guarded row itself          database       database
//	Handler   what its Guard makes atomic     as its Guard   as its Guard
//
// The stores of holdfast that hold data of their own (Redis, etcd, ZooKeeper)
// bring guards for it in their packages.
//
// A guard protects what goes through it. A write that reaches the resource by
// another way, or a client that invents a large token, is not held back: the
// first needs discipline or rights at the resource, the second authentication
// in front of it.
//
// # Reads belong behind the guard too
//
// A guard orders writes. A holder that reads first, then computes, then writes
// may be overtaken between its read and its first write by the late write of
// the holder before it: that token is still the largest seen. So tell the
// guard before reading: read inside the write function or the transaction, or
// raise the token first (a nil write function; [File.Raise]). From then on the
// older holder is refused.
//
// # Failed writes
//
// When the write function of [Memory] or [File] fails, the token stays raised:
// such a write may have had half its effect, and an older holder must not come
// after it. When a transaction is rolled back, the token goes back with it,
// because nothing of it ever happened. In both cases the writes that succeed
// carry tokens that never fall.
//
// # Errors
//
// [ErrStale] is a refusal, as a [*StaleError] with both tokens. [ErrInvalid] is
// a mistake of the caller, found before any I/O. [ErrUnavailable] says that the
// guard itself failed or that the context ended. What a write function returns
// comes back unchanged.
package fence
