// Package filestore keeps locks between the processes of one machine in a
// directory, without a server. It runs on Linux and macOS.
//
//	s, err := filestore.Open(ctx, "/var/lib/billing/locks")
//
// or, through a blank import, the URLs file:///var/lib/billing/locks,
// file:///var/lib/billing/locks?mode=0770 and file: (DefaultDir).
//
// # What is where
//
// sessions/SID is a file that a Store keeps locked with flock from its first
// request until Close. The kernel ends that lock with the process, by whatever
// means it dies, so the lock is the proof of life: a session whose file is
// missing or can be locked by another is dead. Beside it is a socket, SID.sock.
//
// buckets/00 to buckets/ff hold everything else. A namespace and a name hash to
// one of the 256, so a million names leave 256 files behind. A bucket has a
// counter of tokens and a list of entries in order of arrival: grants, which
// carry a token, and places, which do not yet. It is read and changed only under
// flock, in critical sections of some microseconds; nobody holds that lock
// longer, and no lock of a user is an flock of his own.
//
// # The algorithm
//
// Acquire appends an entry: a grant if the limits of all holders and its own
// allow, and if nobody waits before it; otherwise a place. Release removes the
// entry and, in the same critical section, turns the places at the head into
// grants while the rule admits them. Then it tells each new holder over its
// session's socket.
//
// A waiter keeps a connection to the session of the waiter just ahead of it; the
// one at the head keeps one to each holder's. When the process at the other end
// dies the connection ends, and the waiter proves the death by the session's
// file, removes what the dead left, and grants the name to whoever is next, most
// likely itself. So one release wakes one waiter, and one death wakes the
// waiters behind that process alone. Whoever changes what a waiter has to watch
// tells it so.
//
// A grant may have several tokens, for the holders to whom its process hands it off.
// The bucket's counter jumps beyond the last of them in the same critical section.
// An exclusive entry has no slot, so the slot's field has their number, as wished by a
// waiter and as given to a holder.
//
// # Why it is safe
//
// Everything is decided by what a bucket says under its lock. The file that
// counts is the one that the path names after the lock was got, so a file that
// was deleted or replaced divides nobody. Entries count only while their
// session's file is locked, and a session is given up before its entries can be
// taken for those of a dead one. News over the sockets is never asked whether a
// name is free: a lost message costs a waiter at most a second, after which it
// looks for itself. That a message of a grant is believed rests on its having
// been written down first, and on the directory being closed to other users.
//
// What happens when
//
//   - a process is killed: the kernel unlocks its session. If it was writing, a
//     short list was replaced by a single write inside a page, which signals do
//     not cut, and a long one does not count until the header that points at it
//     is written. If it had granted a name and told nobody, those who wait behind
//     it see its end and look.
//   - a process is stopped: it keeps its locks, and Break says that it is stopped.
//     Stopped inside a critical section it holds up its bucket; calls then end
//     with their contexts.
//   - the machine crashes: all sessions are dead, and a list that was half written
//     fails its checksum. The boot's id in a bucket is an old one, so tokens go on
//     from a ceiling that was made durable, for a block of 65536 at a time, before
//     the first of them was granted.
//   - the directory, a bucket or a session's file is deleted or replaced: those
//     who held something by it learn of it within a second. A new counter starts
//     at the clock's microseconds, above all earlier ones: they rise by less than
//     one a microsecond, and a grant reserves no token that is ahead of the clock.
//     Only a clock that was set back can repeat them.
//   - a child process is started: descriptors are closed on exec. A bare fork
//     without exec keeps its parent's session alive.
//   - the directory is on a file system that is not known to be local to this
//     machine: Open refuses it, because flock may be local to one machine there,
//     and because sessions of another machine look dead. AllowFileSystem permits
//     one that no other machine uses.
//
// The locks are advisory, and everyone who may write the directory may break
// them: by default this user alone, see Mode.
package filestore
