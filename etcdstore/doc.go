// Package etcdstore keeps locks in etcd, under the keys that every other lock on
// etcd uses: `etcdctl lock`, clientv3/concurrency and the server's own lock
// service (jetcd) share them.
//
// # Layout
//
// A place in the queue of a name is the key
//
//	<prefix><name>/<lease>        or        <prefix><name>/<lease>-<n>
//
// with the lease of its client attached; the lease's number is written in
// lower-case hexadecimal digits, and n counts what one client has there at a
// time. Neighbours write <prefix><name>/<lease>. The
// place with the smallest create revision is the oldest. A value of ours says
// what the place's limit is and who asks; any other value, an empty one above
// all, is an exclusive place. Keys that have one more slash behind <name>/ belong
// to another name and are ignored; the neighbours count them, so there the lock
// "a" waits for the lock "a/b".
//
// # Who is granted
//
// Let the places of a name stand in the order of their create revisions. Place i,
// counted from 0, is granted when i is smaller than its own limit and those of
// all places before it. That is the rule of package driver (a grant of limit n
// never stands beside more than n-1 others, and nobody overtakes): the places
// before a granted one are granted, there are i of them, and each of them
// tolerates i others. A place that has been granted stays so, as places vanish
// and new ones come behind. For neighbours, whose every place is exclusive, it is
// their own rule: the first place owns.
//
// # Why nobody holds what is another's
//
// Every decision is made from a read that went through the quorum, of keys that
// exist only while their lease does. A grant is trusted from the send of the last
// keepalive that was answered, never from an answer's arrival: the server ends the
// lease no earlier than its TTL after it has received that keepalive. The
// fencing token is the create revision of the place, which a cluster never gives
// twice and which every later place exceeds.
//
// A place is made by one transaction, under a key that its lease has not in use,
// and is never adopted by another request: a key is used again only when the store
// knows that the attempt that had it has ended and that nothing of it is on its way, and
// where nothing stands under it (a grant that was released and kept does; what stands
// there under the session's own lease is nobody's, and is deleted).
// (Where a lease has one key for a name and finds it standing, as the neighbours do,
// a release that was lost and the next acquisition get the same revision, and the
// same fencing token, twice.)
//
// An acquisition whose answer was lost may still be applied later. It compares an
// epoch key of its lease; [Store.Undo] deletes the place and writes the epoch key
// in one transaction, which compares it too. Whatever comes after it finds another
// epoch and fails. There are at most epochShards such keys for each lease, and they
// end with it. A server without space takes no epoch, but does delete the place.
//
// What a watch tells from before the last look is no news. A waiter watches the
// place before it alone (from now, and looks again once the watch stands; a watch
// from an old revision would wait for the server's resynchronisation of every
// 100 ms), or, where places of several limits decide, the deletions of the name's
// places, which it counts by itself. Nothing is granted on a watch's word: when
// the only place before its own has gone, the waiter asks through the quorum
// whether its own stands, unless the transaction that released the one before has
// said so; in all other cases it reads the queue once more, and it does so every
// 10 seconds without being told: a member that has stopped may leave its
// connections open. Releases and breaks compare the place's create revision.
//
// # What it does not give
//
// A lease can be ended early by an administrator (`etcdctl lease revoke`), and a
// key be deleted. The holder's context ends when it is noticed: see Notice in the
// guarantees. etcd before 3.5 lets a leader that was paused answer keepalives
// before it has learnt that it leads no more; with such a server only the token
// protects against a leader's pause that is as long as the TTL.
package etcdstore
