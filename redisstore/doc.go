// Package redisstore keeps locks on a Redis server, with replicas, under Redis
// Sentinel or in a Redis Cluster. The server has to be Redis 6.2 or later, which has SET
// with GET. The tests use 7.0 and later.
//
//	s, err := redisstore.Open(ctx, "redis://user:password@localhost:6379/0")
//
// or, through a blank import, any URL that [Open] describes. With the parameter layout, package layouts
// opens the URL, and shares the locks with another client library. [New] takes a client of
// go-redis that the program has already:
//
//	s, err := redisstore.New(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//
// # The client
//
// Both ways the requests go through go-redis, which sends each of them once: its retries
// do not apply to locks. It follows redirections of a Cluster, because a server that
// redirects a request has not executed it. Requests of many goroutines to one server
// share a pipeline. At most two pipelines to a server are under way, so few connections
// are in use. With [Open], except under Sentinel, a caller that is alone has a connection on
// which its own goroutine sends the request and reads the answer. Waiters share one
// connection beside the pool of the client.
//
// A request returns when its context ends. go-redis continues to read the answer, for the
// client's ReadTimeout. So a client that is given to New needs no ContextTimeoutEnabled. It
// should have a ReadTimeout and enough connections: with [WaitReplicas] each request under
// way uses one. go-redis logs lost connections to the standard error; its package logging
// ends that.
//
// # Where the locks are
//
// A name has one key, holdfast:{BUCKET}:NAMESPACE:NAME. The key is a hash. It has the
// grants, the queue entries in order of arrival, and the deadline of each. Field s0
// exists as long as the key. So a name is free if it has no key, and one HSET of s0
// grants it. BUCKET is one of 4096, by a hash of namespace and name. It puts the
// key into the hash slot of the bucket's counter, holdfast:{BUCKET}. When no name is
// held or has waiters, the server keeps only the counters, however many names there
// were.
//
// Every step is one script, so it is atomic. The scripts set and judge deadlines by the
// server's clock. A grant's deadline is a value in the hash. The key's own time to live
// only removes keys that no client uses.
//
// # Why it is safe
//
// This is the argument for a plain request, renewal and release, each in a call of its own. Three variants follow at the
// end, each with what differs: combined calls, a release with the next request, and a start before the confirmation.
//
// Exclusion. Scripts make all grants, at the one server that has the key. Each keeps the
// rule that a grant of limit n never stands beside more than n-1 others. A
// grant ends at the server's deadline or by a script that names its ID and token.
// The client counts validity from before it sent the request that set the deadline. So
// validity ends first, as long as the server's clock does not jump ahead.
//
// Requests without an answer. A request may arrive long after its client stopped waiting
// for the answer. Each request that creates something carries a time after which the server
// refuses it. The client sets it to ten seconds after the sending, by its estimate of the
// server's time. If the estimate was wrong and the server refuses the request as too late,
// the client sends it again. Undo removes the entry or the grant of a request. If the
// request could still arrive, Undo leaves a tombstone with its ID until that time. So the
// server refuses a delayed request as too late or as withdrawn. Only requests without an
// entry create one. A refresh that comes late finds no entry, and does nothing. When a
// first request had no answer and a second was granted, Release leaves a tombstone as well.
// After an undo without an answer the client does not use the ID again, since the undo may
// still arrive. The client library repeats no request. This package repeats a request with
// the same ID, by which the scripts recognize it. A SentAt older than that of the request
// that was applied would be safe; the client never uses a newer one.
//
// Tokens. A token is the larger of two numbers: the server's microseconds, and one more
// than the last token of the name's bucket. The counter has that token, and so has the key
// while it exists. So tokens rise when the clock is set back. Clients also send the highest
// token of the bucket that they have seen. So tokens rise for them even after a flush, or a
// failover to a replica whose clock is behind. For a client that has seen no token, they
// rise if the clock is behind by less than the outage lasted. Lua's numbers are exact up to
// 2^53 microseconds, in the year 2255. Beyond that the scripts refuse a bucket.
//
// Reserved tokens. A grant may have several tokens, for the holders to whom its process
// hands it off. They are the microseconds of the server's clock since the last token of
// the bucket, at most a thousand, and end with the present one. So no token is ever ahead
// of the clock, and the counter and the key have the last one. If a release has made the
// grant, its tokens are reserved when its client confirms it: no other grant of an exclusive
// name is possible before that. A bucket without a counter gives one token, the clock,
// because it may have been flushed a moment ago. A server that comes back with an older
// counter was away for longer than the millisecond that a grant reaches back. So its tokens
// rise as well.
//
// Failover. Redis answers before its replicas have a write. A replica that is
// promoted without the write does not have the grant. The holder is notified within
// the declared time or, if it cannot reach the server, when its validity ends. Until then
// the token protects the resource. With [WaitReplicas] a grant, a renewal, or a
// release that keeps the grant for a while counts only after that number of replicas has
// acknowledged it, by WAIT on the connection that wrote it. A repeated release writes the
// kept grant again, so that WAIT counts it.
// If all replicas must acknowledge, a failover to any of them loses no lock. If fewer must,
// a replica that has not acknowledged may be promoted.
//
// A primary that becomes a replica by REPLICAOF keeps its connections, and the address may
// lead to the new primary by now. So each probe reads the role of the server, about once a
// second while the client waits or holds. If the server is a replica, or refuses a write
// with READONLY, the client replaces its connections. It does so again when a probe has
// found another primary, by its replication ID: some connections may have been opened before
// the address moved, and the subscription may be one to a former primary that lives.
// A replica with replica-read-only no grants locks until the probe.
//
// A promoted replica judges deadlines by its own clock. Where replicas acknowledge grants,
// each client compares their clocks with their primary's, about once a second while it
// waits or holds. It adds the largest difference to every TTL that it sends, but not to the
// validity that it counts. So no lease expires before its holder's validity, whichever
// replica is promoted. When the difference grows, the client renews the leases that it
// holds at once. It also does so when the replication ID of a primary changes: a replica that
// was promoted then may lack the last lengthening, and its clock may be ahead. A replica whose
// clock cannot be read keeps its last difference until then, even while it is disconnected.
// Two risks remain. A clock may be set ahead within the last seconds before a failover. The
// clock of a replica may have been unreadable from the start, which the guarantees then
// report. The client refuses a server if the clock of a replica is ahead by more than ten
// seconds.
//
// A queue entry gets no such time. No replica has to acknowledge it, so a failover may lose it
// in any case. Its client then queues again, and no lease depends on it: the only loss is the
// position. With a longer entry, a dead waiter would delay those behind it on a healthy server
// by up to ten seconds more. The grant that a release makes for a waiter also ends early, after
// its 2.5 s by the new clock. With [WaitReplicas] its client does not start before the replicas
// have acknowledged the confirmation, which has the lead.
//
// A primary that was cut off and has not noticed its successor continues to answer.
// Make it refuse writes, by min-replicas-to-write 1 and min-replicas-max-lag. Where several
// servers take writes for the same data (active-active), each grants. The store refuses
// such servers if it can recognize them. On others no guarantee holds.
//
// Cluster. All keys of a step are in one hash slot. While the slot moves, the server answers
// TRYAGAIN to a step if only some of its keys have moved. So refreshes, renewals, releases
// and undos use the name's key alone. A new grant also needs the counter. If the answer is
// TRYAGAIN, the client reads the counter in one call, and makes the grant in a second call.
// It raises the counter before it returns the grant. Between these calls the name's own key
// has the token. A token could repeat only if the client died there and the clock was set
// back.
//
// Memory. A server that is full refuses new requests before it has changed anything. It
// still renews, confirms and releases grants. The store refuses a server that evicts keys
// instead, see [Insist]. The setting may change, and a promoted replica or a new node may
// have another. So a request that finds the last probe two seconds old makes a new one
// first. A client finds a new node within two seconds, or when another node redirects it.
// Clients make no more grants on evicting servers from then on, so a lock that such a
// server evicts has no second holder.
//
// Early ends. Every two seconds the client checks the grants that it has neither renewed
// nor checked: one script call for a hundred grants (in a Cluster for those of one
// bucket), all calls at once. After a lost subscription it checks all grants.
//
// What happens when
//
//   - a holder dies: its grant ends after its TTL. The client at the head of the queue has
//     received that time, and gets its grant within milliseconds of it.
//   - the server restarts without its data, or FLUSHALL is run: holders are notified
//     within three seconds, waiters continue to wait.
//   - the subscription's connection is lost: waiters refresh every 0.7 s until it
//     is open again, and once when it is.
//   - the server's clock is set ahead: grants end early.
//   - the server's clock is set back: grants last longer.
//
// # Refused commands
//
// Redis does not roll a script back, and it can refuse a command inside a script. The user
// may lack the right to the command. The server may be out of memory. The hash slot may be
// moving, so that the server lacks the key. The key may be of another type. So a script
// reads first and writes last. Before it changes the hash it tries every kind of command
// that it needs, in a way that changes no lock. PEXPIRE lengthens the key's life or finds
// no key, HDEL removes a field that does not exist, SET only raises the counter. Then one
// HSET makes the whole change, except for the removal of fields. The server can no longer
// refuse that removal. The message that wakes a waiter comes last. If the server refuses
// it, the effect is that of a lost message. No step deletes a key and writes it again, and
// no step passes through a state in which a held name is free.
//
// A name under contention is nearly always plain: the hash has one exclusive grant, the
// queue, and no other state. Three steps then take a fast path, which matches the whole state
// by one pattern: a new queue entry, the release that grants to the first entry, and the
// confirmation of that grant. The fast path decides before it writes. It tries and writes the
// same fields in the same order as the general path. A new entry is one HSET, which needs no
// trial. A release tries HDEL first. A confirmation lengthens the key's life or tries HDEL,
// and raises the counter, before its HSET. The general path handles every state that the
// pattern does not match, a dead first entry, and a token above the name's last one. A test
// makes random steps on two names, one of them without the fast path. After each step both
// must have the same replies, fields, tokens, times to live and messages.
//
// # Records of other programs
//
// Another program may write to the keys of locks. Then a script ends with an error that names the
// key, before its first write to that key: [driver.CodeRefused]. A name is free only if it has no
// key at all, and a script parses all that it uses. It also checks the state's numbers against the
// length of the hash: the slots, the stack of free slots, and the tombstones. So no number in a
// state decides how long a script runs. A queue may have long gaps between its entries. After 64
// numbers without an entry, a script reads the names of the fields instead. Before it grants to a
// name that is not plain, it checks that no grant stands that the state does not count, and that
// excludes the new one. A test runs all scripts on random and changed hashes.
//
// A program with the right to write to the keys can still end a lock's exclusion, by deleting the
// key. A token at the resource covers that.
//
// # Waiting
//
// A request that may not be granted yet makes a queue entry. When a script ends a grant, it
// grants in the same step to the entries at the head. It does so in order, as far as their
// limits allow. It publishes to the clients of these entries only. Such a lease lasts 2.5 s
// unless its client confirms it. The confirmation sets the requested deadline, and validity
// counts from the sending of the confirmation. The server serves entries strictly in order, also
// those of several processes.
//
// A message may be lost, so clients also refresh their entries. They refresh the first 32
// entries every 0.7 s, and others less often, but at least every 15 s. So ten thousand
// entries do not keep the server busy. When an entry comes near the head, the script
// notifies its client. So with fewer waiters a release sends one message. A refresh also
// looks for grants that have expired, and grants to the head. So a lost message delays a
// waiter by one refresh. An entry is dead, and the scripts skip it, 2.9 s after three missed
// refreshes. So the order outlasts a server that stops for up to four seconds: it may execute a
// release before it reads the refreshes that came meanwhile. If the first confirmation of a
// promoted waiter comes after the 2.5 s, the waiter keeps its grant unless another script has
// removed it. Otherwise it queues again, behind the others. If the server loses its data, waiters
// make new entries, in any order.
//
// The first waiter of a name sends a message, too: to the holder's client, if that has reserved tokens and the time for
// handoffs is over. This client may keep a lock that it does not use, and its watch of the name then reads the state at
// once. Without a message a watch reads it ten times a second.
//
// In a Cluster the message is a PUBLISH, which every node receives. SPUBLISH would save
// the other nodes about 1 us a message. But with it a script may publish only to channels of
// its own hash slot. A client would need up to 4096 subscriptions, and would have to renew
// each one when its slot moves.
//
// # Combined calls
//
// A batch differs from plain calls in one thing: the requests share the answer, the time limit and the refusal of a call.
// Each is decided by the same rules.
//
// On one server, with replicas or under Sentinel, requests of many goroutines share a
// script call, a batch of at most 32. Only two kinds of requests are combined. One is a
// first attempt that does not wait. The other is a release that needs only the ID and token
// of its grant. Each takes the fast path of its script, which decides the usual states,
// under a pcall of its own. Up to four requests at a time are calls of their own, so a serial
// caller sends plain calls. The client delays no request to form a batch. In a Cluster each
// name has its keys in its own hash slot, and [WaitReplicas] waits for each grant. So
// neither combines requests.
//
//   - If the fast path cannot decide a request, the script leaves the lock as it is, and the
//     client sends the request in a call of its own. The batch may have raised the counter of tokens, which
//     does no harm.
//   - A refused request leaves nothing, as in the plain scripts. A release tries nothing before
//     its only write. An acquire undoes its grant if the key's expiry is refused. An error ends
//     no other request of the batch. A full server refuses only the first writes of a script, so
//     it may grant the requests that follow a release in a batch: at most 31.
//   - After a lost answer the outcome of all requests of the batch is unknown. Each caller then
//     does what it does after a plain call: it undoes its request, or repeats its release.
//   - A batch may arrive late, or twice. No acquire is decided after the earliest time limit of
//     the batch's acquires. A name whose request was undone has its tombstone, which
//     the fast path does not grant over. A release names the ID and token of its grant.
//   - A primary that was replaced refuses each write, or loses the grants of a batch like others.
//     The server replicates a script's writes as one transaction.
//   - SentAt of a grant is before the batch is sent. The batch carries the highest token that the
//     client has seen. If the server's clock is behind that token, the batch decides no acquire.
//   - If a caller is cancelled before its batch is sent, its request is not sent. If the caller
//     is cancelled later, the outcome is unknown. The other requests of the batch are not
//     affected.
//   - A server that refuses a whole batch because of one key (NOPERM, MOVED, CROSSSLOT) has
//     executed nothing, so each request is a call of its own. After CROSSSLOT there are no more batches.
//   - A proxy may send a script to the server of its first key, without an error for the other
//     keys. In a request by itself the name's key comes first, so all clients find the name on
//     one server. In a batch another name's key comes first. So the first probe compares the run
//     IDs of the servers that it reaches through 12 keys. If the IDs differ, or only some of the
//     calls are answered, the client makes no batches. It then checks each grant in a call of its
//     own.
//   - A batch without an answer for 250 ms delays no request behind it. At most 16 batches are
//     under way.
//
// A test makes random steps, with and without batches, and requires the same replies and states.
//
// # Release and request in one call
//
// A swap differs from a release and a request in one thing: one step and one answer have both outcomes.
//
// [Store.Swap] releases a grant and makes the request of the next local waiter in one call of the
// acquire script, which releases first. If no entry waits, the script grants the request. Otherwise
// it grants to the first entries and notifies their clients, as a release does, and the request
// becomes the last entry. So a grant of a contended name takes one call in place of two. Each grant
// has a new token, and the order between processes stays. With [WaitReplicas] Swap
// makes two calls.
//
//   - The script checks the time limit and the tombstone of the request before it releases. So a swap
//     that is too late, or whose request was undone, changes neither half.
//   - The swap names the ID and token of the old grant, as a release does. If that grant has ended,
//     the script releases nothing and reports that. It grants or queues the request as usual.
//   - The script releases and grants by one HSET. Before that it reads, and tries every command that
//     the server can refuse. So after a refusal the old grant stands, no entry exists, and the core
//     calls Release. A full server refuses a swap as it refuses a request; the release by itself
//     succeeds. A refused message has the effect of a lost one.
//   - After a lost answer both outcomes are unknown. The client repeats the release, which finds the
//     grant or not. Undo removes the entry or grant of the request and leaves its tombstone. Both
//     calls may arrive before the swap or after it. A late swap finds the tombstone until its time
//     limit has passed.
//   - If a swap is applied twice, the second one does not find the old grant. It confirms the grant of
//     the first one, or refreshes its queue entry.
//   - As for each grant, the token is above the name's last token, the counter, and all tokens that
//     the client has seen. The script raises the counter before it writes the grant.
//   - SentAt is before the send of the swap. So validity ends before the deadline, which counts from
//     the server's time in the same script.
//   - While the hash slot moves and the counter is on another node, the server answers TRYAGAIN to the
//     swap before it runs. Then the steps are those of a request: read the counter, swap without it,
//     raise the counter.
//   - A server that lacks the script has not run it. The client then sends the script's text.
//   - A former primary may apply a swap. That has the same effects as if it applied the two calls. A
//     failover that loses the swap revives the old grant until its deadline. It loses the new grant
//     like every grant; see Failover.
//
// The plain path of the script handles a name in the usual state of contention, with and without
// waiters. The general path handles all other states: shared grants, permits, other limits, a grant
// whose request may still arrive. A test makes random steps, swaps too, and compares the two paths.
//
// # Start before the confirmation
//
// A provisional grant differs from other grants of a queue entry in one thing: the client relies on it when the
// message arrives, before an answer of the server has confirmed it.
//
// A request with [driver.Request.Provisional] may use its grant when the message arrives.
// It then confirms the grant later, by its first renewal. A grant that is released before
// that needs no confirmation. So a grant of a contended name takes two calls, the queue
// entry and the release, or one swap. The request is for one exclusive grant with one
// token, without [WaitReplicas].
//
// Each call that makes or refreshes the queue entry carries a tag: a secret of the request
// and the number of the call. The entry keeps the tag of the last call that was applied.
// The release that promotes the entry raises the bucket's counter to the new token, and
// writes the grant with a deadline of 2.5 s. Then it publishes the token, those 2.5 s and
// the tag. The client starts to use the grant if all of the following is true. Otherwise it
// confirms the grant first, as without Provisional:
//
//   - The tag is that of the last call that was answered with the queue entry. If the
//     message comes before that answer, the client keeps the message until the answer.
//   - The token is above every token of the bucket that the client has seen.
//   - The call with the tag was sent less than a third of the TTL ago, and less than a
//     third of 2.5 s ago.
//   - The last probe found the server safe, at most two seconds ago.
//   - The owner of the request has not changed since that call.
//
// Validity counts from the send of the call with the tag, for the shorter of 2.5 s and the
// TTL. Only a server that has the effect of the call can publish its tag. So the promotion,
// which set the deadline, came after that send, whichever server made it, and however late
// the message is. The confirmation sets a later deadline, as it was sent later and for the TTL.
// So the deadline is never before the end of the validity, as in each other grant.
//
// What can go wrong with each step:
//
//   - The server refuses the release half-way: no client starts, because the script publishes
//     last. The counter may have been raised in vain. A release that may not raise the counter
//     publishes the message that requires a confirmation. So does a release that has no counter
//     because the hash slot moves.
//   - The release has no answer: the promoted client starts. The repeated release finds its
//     grant gone and changes nothing. If it is applied a minute later for the first time, the
//     entry that it promotes is one that was refreshed since.
//   - The message is lost: the next refresh confirms the grant.
//   - The message arrives twice, or late: the client ignores it. The request has its grant
//     already, or its calls have other tags, or the call with the tag was sent too long
//     ago.
//   - The message is forged: only a client that reads the keys of the locks can read the tag. Any
//     other message only makes the client send its next call earlier. The message of a break makes it
//     check the grant, and the server's answer decides.
//   - The grant is broken: the message of a break comes after that of the grant, on the same
//     channel.
//   - A former primary publishes the message: that server had applied the last call that
//     was answered, so the client had no answer from another primary since. The promotion
//     is then a grant that the failover loses, as if it had been answered; see Failover.
//   - The client dies before the confirmation, or starts and then stops running: the lease ends
//     after 2.5 s, and the server grants to the next entry. The client's validity has ended
//     before.
//   - The confirmation has no answer: the deadline is the earlier one or a later one, and the
//     client uses the earlier. A confirmation that is applied twice, or a minute later, prolongs
//     a grant that stands, or finds none. The confirmation creates nothing, so a release before
//     it leaves nothing. A release after it ends the grant. Both name the same token, which does
//     not change.
//   - The confirmation is refused because the grant has ended: the lock is lost.
//   - A call that was sent before the message is applied after it: the call confirms the
//     grant. It keeps the token, since the client had seen no higher one when it sent the
//     call. After the release it finds no entry.
//   - The grant is never confirmed and the key expires: the counter has the token, so a later
//     grant has a larger one.
//
// The cost: until the confirmation, in its first milliseconds, a grant is valid for about
// two seconds, and not for the TTL. So the holder loses the lock after a shorter time
// without the server. A smaller jump of the server's clock is then enough to end the grant
// early. So is a smaller difference between that clock and the clock of a replica that is
// promoted.
package redisstore
