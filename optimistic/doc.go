// Package optimistic updates shared values without holding a lock: it reads a value and
// its version, computes a new value, and writes it only if the version is still the same.
// If another process was faster, it begins again.
//
//	err := optimistic.Update(ctx, store, "config", func(ctx context.Context, old []byte) ([]byte, error) {
//		return change(old)
//	})
//
// # Which values
//
// Every store of holdfast but Redlock keeps values, beside its locks: pass the store that
// redisstore.Open, etcdstore.Open or another Open returned, or holdfast.Locker.Values. [HTTP] keeps them in an object
// store that supports conditional writes. [Rows] are the rows of an SQL table of your own
// that has a version column.
//
// # Optimistic, or a lock
//
// Without a lock no process waits, and no holder can crash or pause. A conflict costs the work
// of the function and one more round trip. So use it where the work is short and has no
// effect but the value, and conflicts are few. Use a lock where the work is long, where it
// must not be done twice, or where many processes change one value all the time.
// docs/choosing.md compares both in numbers.
//
// # What is guaranteed
//
// The comparison of the version and the write are one atomic step at the store. Each
// version is used once, so a value that was changed and changed back is noticed. Of two
// writes at one version one succeeds. Therefore no update is lost, whatever is paused,
// killed or repeated: a process that was paused for an hour between its read and its write
// gets a conflict.
//
// A write whose answer is lost has an unknown outcome, [ErrUnknown]. It is not repeated,
// because the value might then be changed twice.
//
// A value is as durable as the store: where a crash or a failover can lose a confirmed
// lock, it can lose a confirmed value, too. Redis is such a store.
//
// # Once
//
// [Once] does a job that must be done once: under a lock, and only if its mark is not
// there; it leaves the mark when the job has succeeded. Package sequence makes unique
// numbers.
package optimistic
