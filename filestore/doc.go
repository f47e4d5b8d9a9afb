// Package filestore keeps locks between the processes of one machine in a directory, without a
// server. It runs on Linux and macOS.
//
//	s, err := filestore.Open(ctx, "/var/lib/billing/locks")
//
// or, through a blank import, the URLs file:///var/lib/billing/locks,
// file:///var/lib/billing/locks?mode=0770 and file: (DefaultDir).
//
// # Files
//
// sessions/SID is a file that a Store keeps locked with flock from its first request until Close.
// The kernel frees that flock when the process ends, in whatever way. So the flock proves that the
// session lives: a session is dead if its file is missing or another process can lock it. Beside
// the file is a socket, SID.sock.
//
// buckets/00 to buckets/ff contain everything else. A namespace and a name hash to one of the 256
// buckets, so a million names leave 256 files. A bucket has a counter of tokens and a list of
// entries in order of arrival: grants, which have a token, and waiters, which have none yet. It is
// read and changed only under flock, in critical sections of some microseconds. No lock of a user
// is an flock.
//
// # The algorithm
//
// Acquire appends an entry. The entry is a grant if there is no waiter, and its own limit and the
// limits of all holders allow another holder. Otherwise it is a waiter. Release removes the entry. In
// the same critical section it grants the name to the first waiters, as long as the limits allow
// that. Then it notifies each new holder over its session's socket.
//
// A waiter keeps a connection to the session of the waiter just before it; the first waiter keeps
// one to each holder's session. When the process at the other end dies, the connection ends. The
// waiter proves the death by the session's file, removes the entries of the dead session, and grants
// the name to the next waiter, often itself. So a release wakes one waiter, and a death wakes only
// the waiters behind that process. After a change a waiter may have to watch other sessions. The
// process that makes the change then notifies the waiter.
//
// A release with a minimum hold turns the entry into a kept grant, which belongs to no session and no request, and ends
// at a time of the machine's clock. After that time nothing reads it, and the next change of the file removes it. The
// first waiter waits for that time.
//
// A grant may have several tokens, for the holders to which its process hands it off. The bucket's
// counter then jumps beyond the last of them in the same critical section. An exclusive entry has no
// slot, so the slot's field has the number of tokens: requested by a waiter, reserved by a holder.
//
// # Why it is safe
//
// A process decides only from the content of a bucket, while it has the bucket locked. After it has
// locked the file, it checks that the path still names this file. So if a file is deleted or
// replaced, no two groups of processes use different files. An entry counts only while its session's
// file is locked. A store reports the loss of its session's grants before it gives the session up.
// Messages over the sockets decide nothing: a message only makes its receiver read the bucket. After a
// lost message a waiter checks within a second by itself.
//
// The effects of failures:
//
//   - A process is killed: the kernel unlocks its session. A single write inside a page replaces a
//     short list, and signals do not interrupt it. A long list does not count until the header that
//     points to it is written. So the bucket has the old list or the new one. If the process had
//     granted a name and not yet notified the new holder, the waiters behind it detect its end and
//     check.
//   - A process is stopped: it keeps its locks, and Break reports that it is stopped. If it was
//     stopped inside a critical section it blocks its bucket; calls then end with their contexts.
//   - The machine crashes: all sessions are dead, and a list that was written in part fails its
//     checksum. The bucket has the ID of an earlier boot, so tokens continue from its ceiling. A
//     process writes a ceiling 10 seconds ahead of the clock to the disk, before it grants a token above
//     the last ceiling. Until the ceiling is on the disk, the header has an ID that belongs to no boot.
//     So if the process ends meanwhile, no other process relies on that ceiling.
//   - Two processes read different IDs of the boot, as in containers with files of their own below /proc:
//     each turn counts as a crash. Tokens continue to rise, at most about 10 seconds ahead of the clock.
//   - The directory, a bucket or a session's file is deleted or replaced: the store notifies the
//     holders with entries there within a second. The last token of a grant is the clock's microseconds,
//     unless the counter is ahead of the clock. So the tokens of a new file, and of an older copy that was
//     restored, are above all earlier ones. Tokens can repeat only if the clock was set back, or if the
//     file was replaced within 10 seconds of a crash.
//   - A cleaner removes files by age: every ten minutes, a store that holds a grant or waits renews the
//     times of the files that it needs. It does not renew those of values.
//   - A bucket has content that no store has written, or more holders than their limits allow: every request
//     of its names gets an error that names the file, and the store notifies the holders within a second. A
//     crash of the machine does not cause that: it leaves zeros, or a list with the ID of an earlier boot.
//   - The machine's clock is set: kept grants end as much earlier or later. A crash of the machine may end them.
//   - A child process is started: descriptors are closed on exec. A fork without exec keeps its
//     parent's session alive.
//   - The directory is on a file system that is not known to be local to this machine: Open
//     refuses it, because flock may be local to one machine there, and sessions of another
//     machine look dead. AllowFileSystem permits one that no other machine uses.
//
// The locks are advisory. Every user with the right to write the directory may break them. By default
// only the user that created the directory has this right; see Mode.
//
// # Other users
//
// The users of a shared directory write the same files, so the store trusts no name, type, owner or content
// there. It opens the directory once, and everything below by name, without following a link. A file must be
// regular and have one name. The name of a session is checked before it becomes part of a path. Modes change
// only through descriptors, and only for files of this user. docs/files.md states what another user can do.
package filestore
