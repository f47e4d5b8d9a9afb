// Package etcdstore keeps locks in etcd, under the keys that every other lock on
// etcd uses: `etcdctl lock`, clientv3/concurrency and the server's own lock
// service (jetcd) share them.
//
// # Layout
//
// An entry in the queue of a name (also called its entry in the code) is the key
//
//	<prefix><name>/<lease>        or        <prefix><name>/<lease>-<n>
//
// with the lease of its client attached; the lease's number is written in lower-case hexadecimal
// digits, and n counts what one client has there at a time. Other clients write
// <prefix><name>/<lease>. The entry with the smallest create revision is the oldest. A value of
// holdfast's states the entry's limit and its owner; any other value, an empty one above all, is
// an exclusive entry. Keys that have one more slash behind <name>/ belong to another name and are
// ignored; other clients count them, so there the lock "a" waits for the lock "a/b".
//
// # Which entries are granted
//
// Let the entries of a name stand in the order of their create revisions. Entry i, counted from 0,
// is granted when i is smaller than its own limit and those of all entries before it. That is the
// rule of package driver (a grant of limit n never stands beside more than n-1 others, and no
// waiter overtakes): the entries before a granted one are granted, there are i of them, and each
// of them tolerates i others. An entry that has been granted stays so, as entries vanish and new
// ones come behind. For other clients, whose every entry is exclusive, it is their own rule: the
// first entry owns.
//
// # Why two clients do not hold one lock
//
// Every decision is made from a read that went through the quorum, of keys that exist only while
// their lease does. A grant is valid from the send of the last keepalive that was answered, never
// from the arrival of an answer: the server ends the lease no earlier than its TTL after it has
// received that keepalive (see "What it does not give"). The fencing token is the create revision
// of the queue entry, which a cluster never gives twice and which every later entry exceeds.
//
// One transaction makes an entry, under a key that its lease has not in use, and no other request
// adopts it. A key is used again only when its earlier request has ended, nothing of that request is
// on its way, and no entry stands under the key. (A grant that was released and kept is such an
// entry; an entry there under the session's own lease belongs to no
// request, and is deleted.) Other clients have one key for a lease and a name, and adopt it if it
// stands: with them, a release that was lost and the next acquisition get the same revision, and
// the same fencing token, twice.
//
// An acquisition whose answer was lost may still be applied later. It compares an epoch key of its
// lease; [Store.Undo] deletes the entry and writes the epoch key in one transaction, which
// compares it too. Whatever comes after it finds another epoch and fails. There are at most
// epochShards such keys for each lease, and they end with it. A server without space takes no
// epoch, but does delete the entry.
//
// # A release and a request in one transaction
//
// [Store.Swap] deletes the entry of a grant and makes that of the next request in one transaction,
// which the server writes to its disk once. It has two nested transactions with conditions of their
// own: the deletion has that of a release, the new entry those of every other entry. The server
// evaluates all conditions before it writes, and no condition of one half concerns a key of the
// other, so the halves are independent. A grant keeps its key until its release is known. If another
// call has released it, its key may be that of the new request: then there is no deletion.
// The two keys of a transaction differ, because the store looks after the new request has its key.
// The reads that follow the writes see the queue without the old entry.
//
// The new entry has the revision of the transaction: it is behind every other entry, and its token
// exceeds that of the grant it replaces. If the answer is lost, both outcomes are unknown. A
// repeated release compares the create revision of the old entry, and an undo compares the epoch
// that the new one depends on. So a transaction that arrives after both changes nothing. An answer
// that nothing was applied, such as a missing lease or a refusal, leaves the release to
// [Store.Release]. If the new request has to wait for a keepalive or a new lease, the release goes
// first, in a transaction of its own.
//
// # How changes are noticed
//
// A store has one stream of watches and one of keepalives, which live as long as they are answered:
// with authentication each new stream is a login, which costs the server some 50 ms of
// processor time. Keepalives of one stream are answered in the order of their sends, so each
// answer is counted from its own send. With a user the stream is opened before the lease is
// granted, so that no login counts against a TTL.
//
// A watch starts at the revision of the member that serves it, which may lag behind. So events at
// or below the revision of the last read are ignored, and what is watched is read again once the
// watch stands. A watch from an older revision would be exact, but waits for the server's
// synchronisation of every 100 ms. When the stream ends, the store makes every watch again, and reads its keys again.
//
// A waiter watches the entry before it alone or, where entries of several limits decide, the
// deletions of the name's entries, which it counts itself. Nothing is granted on an event alone:
// when the only entry before its own has gone, the waiter reads through the quorum whether its
// own stands, unless the transaction that released the one before has said so; in all other cases
// it reads the queue again. It also does so every 10 seconds, and every second while its
// watch does not stand. Releases and breaks compare the entry's create revision.
//
// A holder is watched in two ways. Each lease has a sentinel, a key that goes with the lease and
// only with it: its deletion ends every grant of the lease at once, also those that are held for
// a millisecond only. And each entry that has stood for a quarter of a second is watched itself,
// so that a deletion of its key alone is noticed. Three things ensure that a watch that reports
// nothing means that nothing has happened. The member is asked for a sign of life twice a second,
// and is left when it sends nothing. The sentinel is read through the quorum once a second, and
// a member that does not report the revision of that read soon is left: it is cut off, or
// overloaded (RequireLeader, which is set as well, takes several election timeouts to see it). And
// each renewal reads its entries through the quorum.
//
// That read of the sentinel also finds that the server has gone back in time, because it was restored
// from an older copy: the revision is below an earlier one, or the cluster is another. Then the
// session ends, and its lease is revoked, since entries that were released may stand again. Where
// the revision was raised meanwhile, the client deletes such entries when its watches stand again.
//
// # What it does not give
//
// A lease can be ended early. An administrator can revoke it, or delete a key. And every version of
// etcd can do it by itself: a leader that was paused, or whose disk stalled, for longer than the
// TTL still has its old view of the leases when it continues. It may propose to revoke those that
// have expired in that view, and the cluster carries it out, although their clients have renewed
// them at its successor. (Newer versions check their leadership first, which leaves a small
// window.) The holder's context ends when the deletion arrives: see Notice in the guarantees.
// The next holder may have begun by then, so only the token protects. etcd before 3.5 also lets
// such a leader answer keepalives before it has learnt that it leads no more.
package etcdstore
