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
// Acquire appends an entry: a grant if the limits of all holders and its own allow that and there is
// no waiter, otherwise a waiter. Release removes the entry. In the same critical section it grants
// the name to the first waiters as long as the rule admits them. Then it notifies each new holder
// over its session's socket.
//
// A waiter keeps a connection to the session of the waiter just before it; the first waiter keeps
// one to each holder's session. When the process at the other end dies, the connection ends. The
// waiter proves the death by the session's file, removes the entries of the dead session, and grants
// the name to the next waiter, often itself. So a release wakes one waiter, and a death wakes only
// the waiters behind that process. When a change alters what a waiter has to watch, the process
// that makes the change notifies it.
//
// A grant may have several tokens, for the holders to which its process hands it off. The bucket's
// counter then jumps beyond the last of them in the same critical section. An exclusive entry has no
// slot, so the slot's field has the number of tokens: requested by a waiter, reserved by a holder.
//
// # Why it is safe
//
// Every decision is made from the content of a bucket under its lock. The valid file is the one that
// the path names after the lock was taken, so a file that was deleted or replaced cannot have two
// groups of users. An entry counts only while its session's file is locked, and a store gives up a
// session before its entries can be taken for those of a dead session. Messages over the sockets
// decide nothing: after a lost message a waiter checks within a second by itself. A message about a
// grant is credible because the grant was written before, and because the directory is closed to
// other users.
//
// What happens when
//
//   - A process is killed: the kernel unlocks its session. If it was writing, a short list was
//     replaced by a single write inside a page, which signals do not interrupt, and a long list
//     does not count until the header that points to it is written. If it had granted a name
//     without a notification, the waiters behind it notice its end and check.
//   - A process is stopped: it keeps its locks, and Break reports that it is stopped. If it was
//     stopped inside a critical section it blocks its bucket; calls then end with their contexts.
//   - The machine crashes: all sessions are dead, and a list that was written in part fails its
//     checksum. The bucket has the ID of an earlier boot. So tokens continue from a ceiling, which
//     was made durable, for a block of 65536 tokens, before the first of them was granted. Until it is
//     durable the header has the ID of no boot. So if the process ends meanwhile, no other process
//     relies on that ceiling.
//   - The directory, a bucket or a session's file is deleted or replaced: the holders with entries
//     there are notified within a second. A new counter starts at the clock's microseconds, above
//     all earlier tokens: they rise by less than one per microsecond, and a grant reserves no
//     token that is ahead of the clock. Only a clock that was set back can repeat tokens.
//   - A child process is started: descriptors are closed on exec. A fork without exec keeps its
//     parent's session alive.
//   - The directory is on a file system that is not known to be local to this machine: Open
//     refuses it, because flock may be local to one machine there, and sessions of another
//     machine look dead. AllowFileSystem permits one that no other machine uses.
//
// The locks are advisory, and every user with the right to write the directory may break them: by default
// this user alone, see Mode.
package filestore
