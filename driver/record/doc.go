// Package record is an engine for stores whose storage can replace a record if its version is
// unchanged: rows of a database, objects of an object storage, keys with revisions. A store supplies
// a [Storage], and gets a complete [driver.Store] from [New]: exclusive, shared and counted locks with
// slots, reserved tokens, minimum hold, Swap, inspection, Break with its notice, and values.
//
// # The record
//
// The engine keeps the grants of a name in one record. The content of a record is a pure data
// structure, and so are the decisions on it: content.go does no I/O and reads no clock.
//
// # Safety
//
// Every change replaces a record as it was read. The change names the version that it replaces, and
// each write makes a new version. The storage does one write of a record at a time. So a write that
// takes effect was decided on the present record. Time passes between the read and the write, so a
// grant may expire in between. No expired grant becomes valid again. The expiry time is counted from
// the read, by the storage's clock. The read follows the send of the request, from which the client
// counts the validity.
//
// The engine reads the record again after a write, unless the storage has confirmed that write. A grant was
// made if the record has its ID and the expiry time of the write.
//
// A release soon after its grant needs no read of a Storage if the record had the grant alone, and its last token, when the client got
// the grant: it replaces the version of that time by a record with the token alone. If the record has changed since, that
// write has no effect, and the release reads the record. Later the client has checked the record anyway.
//
// A write whose answer was lost may still arrive. Undo writes a newer version, so that the version
// which the request has read is replaced, and its write changes nothing. Where there was no record,
// Undo creates an empty one. A storage that removes records follows the rule of [Sweeper], so the
// removal of a record does not let a late write take effect either. No step depends on the connection
// that carries it, so poolers and proxies are allowed.
//
// A renewal that arrives late replaces no record that has changed. If its grant has expired and no client
// has changed the record, it would revive the grant. A [Batch] prevents that by the deadline of the change.
// A plain Storage has no clock in its write: such a late renewal then keeps the name from other clients,
// for at most one TTL after the renewal was decided, or written if the storage returns that time. No client relies on
// that grant.
//
// A storage may return a time that is older than the read: a front end may make the header Date of HTTP once a second,
// or have been stopped since. A grant would then end early. Such a storage also returns when it wrote the record. A grant
// lasts from the later one of both times: the write follows the read on which it was decided.
//
// Several clocks of a storage may differ by a declared skew, and a clock may have a coarse tick. Each
// grant lasts longer by [Options].Skew than its client relies on it. So no client grants the name
// before, although the clock that it reads is ahead. If a clock was set back, a grant seems to last
// longer than its TTL, and the engine shortens it to one TTL.
//
// A token is the larger of the record's last token plus one and the storage's clock in microseconds.
// The last token stays in the record when its grants have ended, and in the [Object].Floor when the
// record was removed. So tokens keep rising when a record is removed, when the clock is set back, and
// when the storage restarts.
//
// A grant may have several tokens, for the holders to which its process hands it off. They are the
// last microseconds of the clock that are larger than the record's last token. The write of the grant
// makes the last of them the token of the record, so that every later grant has larger tokens. Several
// tokens of a grant are never ahead of the clock. The first grant of a record has one token, since a
// lost record of the name may have had a token a moment ago. A replica may be promoted without the last
// writes. It grants more than a millisecond later, and the tokens of a grant begin at most a millisecond
// before the grant.
//
// A release that keeps the name for a minimum hold replaces the grant by one that has left: it excludes other grants, and
// expires after that time, which is counted like a TTL. No request and no renewal finds it. A renewal that was decided
// before the release names a replaced version, and one that is decided after it gets an error of code NotHeld. So nothing
// makes a grant that has left last longer. If the clock was set back, live shortens it to the minimum hold. After a write
// without an answer, the release reads the record again. It succeeds if the record has the grant that has left, or if
// the time of the write is over: the name may have been kept, and freed, before that. A grant that has expired before its
// release is not kept. Break ends a grant that has left by its token, like any other one, and frees the name. The client
// is not notified, because it no longer relies on the grant.
//
// Swap replaces a grant by the next one of the same client in one write, so the record has one of them.
// After a lost answer, the outcome of both the release and the request is unknown. The client repeats
// the release, and Undo covers the request. If other requests wait, a client replaces grants for driver.HandoffTime at
// most. Then it replaces the grant by a queue entry of its request, and notifies the first waiter.
//
// # Order
//
// A record also has a queue of the requests that have waited longest, as far as the clients know: a waiter that finds the
// name held writes itself into the record, behind all that have waited as long. While the queue has a request, no other
// one gets a grant. So a client that takes the name again at once does not keep the waiters out, nor do readers a writer,
// and a change of the record wakes only the first waiter. A queue entry expires after the TTL of the request, at most ten
// seconds, unless the waiter renews it: so a waiter that has died delays the others for that time. Readers, and waiters
// of a semaphore, get their grants one after another. The queue restricts which client gets a grant; no claim of safety
// relies on it. It has at most 32 entries, fewer for TTLs below 8 s, and one if waiters poll. A waiter without an
// entry tries at intervals. Without notifications the first waiter tries again after half the time for which the name was
// held, so a handoff costs at most that; the others try at the intervals of the core. An uncontended lock costs nothing
// more, a wait one more write.
//
// # A storage without a clock
//
// The engine needs the time of the storage in each answer, as in the header Date of HTTP. A storage whose
// answers have no time could let each client measure how long it has seen the same expiry time of a
// holder, and end the grant after its TTL. The engine does not support that yet. It would need a memory
// of what each client has seen, in place of the method live of the content.
package record
