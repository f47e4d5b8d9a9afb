// Package etcdstore keeps locks in etcd, under the keys that the other locks on
// etcd use. So it shares locks with `etcdctl lock`, clientv3/concurrency and the
// server's own lock service (jetcd).
//
//	store, err := etcdstore.Open(ctx, "etcd://etcd1,etcd2,etcd3/locks/")
//	locker, err := holdfast.New(store)
//
// or, through a blank import, any URL that [Open] describes. See docs/etcd.md.
//
// # Layout
//
// An entry in the queue of a name (also called its entry in the code) is the key
//
//	<prefix><name>/<lease>        or        <prefix><name>/<lease>-<n>
//
// with the lease of its client attached. The number of the lease is in lower-case hexadecimal
// digits, and n distinguishes the entries of one client. Other clients write
// <prefix><name>/<lease>. The entry with the smallest create revision is the oldest. A value that
// holdfast has written contains the limit and the owner of the entry. Any other value, usually an
// empty one, is an exclusive entry. Keys with one more slash behind <name>/ belong to another name,
// and holdfast ignores them. Other clients count them, so there the lock "a" waits for the lock
// "a/b".
//
// # Which entries are granted
//
// Let the entries of a name stand in the order of their create revisions. Entry i, counted from 0,
// is granted when i is smaller than its own limit and the limits of all entries before it. That is
// the rule of package driver: a grant of limit n never stands beside more than n-1 others, and no
// waiter overtakes. The entries before a granted one are granted, there are i of them, and each
// of them permits i others. A granted entry stays granted, because entries only vanish, and new
// entries come behind it. All entries of other clients are exclusive. So the rule is also theirs:
// the first entry is the holder.
//
// # Why two clients do not hold one lock
//
// Every decision depends on a read through the quorum, of keys that exist only while their lease
// exists. The validity of a grant counts from the send of the last keepalive that was answered,
// never from the arrival of an answer. The server ends the lease at the earliest one TTL after it
// has received that keepalive (for exceptions see "What it does not give"). The fencing token is
// 64 times the create revision of the queue entry. A cluster never assigns a revision twice, and every
// later entry has a larger one. The 63 numbers above the token are the grant's own, too, for handoffs
// inside a process. The entry has how many of them the request has reserved.
//
// One transaction makes an entry, under a key that its lease does not use, and no other request
// adopts it. The store uses a key again only under three conditions. Its earlier request has ended.
// No message of that request can still arrive. No entry stands under the key. (Such an entry may be
// a released grant that is kept for a minimum hold. An entry under the session's own lease that
// belongs to no request is deleted.) Other clients have one key for a lease and a name, and adopt
// it if it exists. With them, a lost release and the next acquisition have the same revision, and
// so the same fencing token.
//
// An acquisition whose answer was lost may still be applied later. It compares an epoch key of its
// lease. Undo deletes the entry and writes the epoch key in one transaction, which
// compares the epoch, too. An acquisition that is applied later finds another epoch and fails.
// There are at most epochShards such keys for each lease, and they end with the lease. A server
// without space refuses to write the epoch, but deletes the entry.
//
// # A release and a request in one transaction
//
// Swap deletes the entry of a grant and makes that of the next request in one transaction,
// which the server writes to its disk once. It has two nested transactions with conditions of their
// own. The deletion has the condition of a release, and the new entry has the conditions of every
// other entry. The server evaluates all conditions before it writes, and no condition of one half
// concerns a key of the other, so the halves are independent. A grant keeps its key until its
// release is confirmed. If another call has released the grant, the new request may have got that
// key. The store checks this after the new request has its key, and then the transaction has no
// deletion. So the two keys of a transaction differ. The reads that follow the writes see the queue
// without the old entry.
//
// The new entry has the revision of the transaction: it is behind every other entry, and its token
// exceeds that of the grant it replaces. If the answer is lost, both outcomes are unknown. A
// repeated release compares the create revision of the old entry, and an undo compares the epoch
// that the new one depends on. So a transaction that arrives after these two changes nothing. If
// the answer is that nothing was applied, as for a missing lease or a refusal, the caller releases
// with Release. If the new request has to wait for a keepalive or a new lease, the release
// goes first, in a transaction of its own.
//
// # How changes are noticed
//
// A store has one stream of watches and one of keepalives. It keeps each stream as long as a member
// answers on it. A member answers the keepalives of one stream in the order of their sends, so
// the client counts the validity from the send of the answered keepalive.
//
// A login costs the server some 50 ms of processor time. A store of [Open] logs in once, and again
// when the server refuses the token. A client that was given to [New] logs in for each new stream, so the
// store opens the stream before it requests the lease: then no login counts against a TTL.
//
// A watch starts at the revision of the member that serves it, which may lag behind. So the store
// ignores events at or below the revision of its last read, and reads the keys again once the watch
// is set. A watch from an older revision would be exact, but it waits for a task that the server
// runs every 100 ms. When the stream ends, the store makes every watch again, and reads its keys
// again.
//
// An exclusive waiter with at most three entries before it watches the deletions of all entries of
// the name. It is granted the lock without a further read when all entries before its own were
// deleted, and its own was not. That is safe for these reasons. It has read the whole queue up to
// its own entry through the quorum, after the watch was made. No later entry gets a smaller create
// revision. One watch reports all deletions in the order of their revisions, and those of one
// revision together. A member that is cut off, or that led the cluster before, reports late, but in
// the same order. So the entry stood when the last one before it was deleted. If the watch was
// interrupted after that read, for example by a compaction or a lost connection, the waiter reads
// the queue again. A progress report of a member grants nothing. If an operator deletes the
// waiter's own entry after the last one before it, a member that lags reports both late. The waiter
// may start between the two reports, and continue until the second one. In that time only its token
// protects the resource: it is below that of the next grant.
//
// The entries of a store that count the deletions of a name share one watch, which stays for a
// second after the last of them. The next entry then needs no read of its own: the transaction that
// makes it has read the queue through the quorum. That transaction is sent after the watch was
// made, so its revision is larger than that from which the watch reports. The waiter receives the
// events from before the send, and ignores those up to that revision. So it notices each later
// deletion, also one that arrives before the answer.
//
// A restore from an older copy sets the revision back. Then an event of the replaced server looks
// new, although the deleted entry may stand again. Two rules keep such an event from granting. When
// a watch is set again, its waiters drop all earlier events, and read. And the revision of a new
// entry must exceed the newest one that the stream had reported before the send. Otherwise the
// client ends that stream, and the waiter counts nothing before it has read again. One case remains:
// copy, restore and the events in between all fall between the send and the answer of one request,
// or up to half a second before it, and the client has not noticed the end of the stream.
//
// An exclusive waiter further behind watches the last entry but one before it, so that it reads the
// queue again before its turn. A waiter among several limits watches the deletions of the name's
// entries, which it counts itself, and then reads the queue again. If the transaction that released
// the grant before it has shown that a waiter is the first, this waiter needs no event. Every
// waiter reads every 10 seconds, and every second while its watch is not set. The server does not end a stream whose user
// got another password. So all waiters of a session read when the read of the sentinel is refused: see below. Releases and
// breaks compare the entry's create revision.
//
// A holder is watched in two ways. Each lease has a sentinel, a key that is deleted with the lease
// and only with it. The deletion of the sentinel ends every grant of the lease at once, also grants
// that are held for a millisecond only. And each entry that has stood for a quarter of a second is
// watched itself, so that a deletion of its key alone is noticed. Three things ensure that a watch
// that reports nothing means that nothing has happened. The client requests the member's progress
// twice a second, and leaves a member that sends nothing. It reads the sentinel through the quorum
// once a second, and leaves a member that does not report the revision of that read soon. Such a
// member is cut off or overloaded. (The client also sets RequireLeader, but with it a member takes
// several election timeouts to notice that it is cut off.) And each renewal reads its entries
// through the quorum.
//
// That read of the sentinel also shows that the server was restored from an older copy: the
// revision is below an earlier one, or the cluster is another. Then the session ends, and its lease
// is revoked, since entries that were released may stand again. Where the revision was raised
// meanwhile, the client deletes such entries when its watches are set again.
//
// # Which members a client uses
//
// The client of a URL uses the addresses of the URL, and those of the members that vote. It reads the member list through
// the quorum every 10 seconds, and after a failed request. So it continues when all members of its URL were replaced one
// after another. With TLS it uses only addresses with TLS. The addresses of the URL always stay in use, and without an
// answer nothing changes.
//
// Two conditions keep a client from a wrong server. The list must contain an address of the URL, perhaps under another
// name of its host. Otherwise the URL names a proxy, or the members have other addresses on the client's network, and the
// client uses the URL alone. And before the first use of an address the client requests a watch there, without its
// credentials. The answer contains the number of the server's cluster, which must be that of the list. A member may
// advertise an address that is another server on the client's network. A lock at that server would not exclude those at
// the cluster. If the number of the cluster changes, as after a restore, the client returns to the URL, and both
// conditions apply again.
//
// A client of the program has the addresses that the program has given it.
//
// A member that is cut off from the others keeps the connections of its clients, and lets requests wait until their
// deadline. The client library sends each request to the next address, so it does not avoid such a member. Hence every
// request requires a leader: when the member has noticed that it has none, which takes an election timeout, it refuses
// the request before it does anything else. The client sends it again, to the next address.
//
// # What it does not give
//
// A lease can end early. An administrator can revoke it, or delete a key. And every version of etcd
// can revoke a lease itself. A leader may be paused, or its disk may stall, for longer than the
// TTL. When it continues, it still has its old view of the leases. It may propose to revoke the
// leases that have expired in that view. The cluster revokes them, although the clients have
// renewed the leases at the successor. (Newer versions check their leadership first, which leaves a
// small window.) The holder's context ends when the deletion arrives: see Notice in the guarantees.
// The next holder may have begun before that, so only the token protects the resource. Before etcd
// 3.4.31 and 3.5.13, a leader whose disk is blocked also confirms leases that its successor has
// ended.
//
// `etcd grpc-proxy` renews the leases of its clients at intervals of its own, and answers their
// keepalives with its next answer. The lease may have been renewed before the client sent its
// keepalive, from which it would count the validity. So the first request on each stream of
// keepalives is for a lease that never exists. The proxy answers it with a TTL of -1, a server with
// 0. A server answers that request before all later ones. If another answer comes first, the
// endpoint is a proxy, also where an address has moved to a proxy while the store is open.
package etcdstore
