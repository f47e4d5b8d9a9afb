// Package redisstore keeps locks on a Redis server, with replicas, under Redis
// Sentinel or in a Redis Cluster. It uses rueidis; package goredis, a module of
// its own, uses a go-redis client that the program has already. Redis 6.2 or
// later is needed, which has SET with GET; it is tested on 7.0.
//
//	s, err := redisstore.Open(ctx, "redis://user:password@localhost:6379/0")
//
// or, through a blank import, any URL that [Open] describes.
//
// # Where the locks are
//
// A name has one key, holdfast:{BUCKET}:NAMESPACE:NAME, a hash from its first grant
// on: the grants, the queue entries in order of arrival, and when each of them ends.
// Field s0 is there as long as the key is. So one HSETNX of it grants a free name,
// and fails for every other. BUCKET is one of 4096, by a hash of namespace and name.
// It puts the key into the hash slot of the bucket's counter, holdfast:{BUCKET}. The
// counters are all that remains when nothing is held or awaited, however many names
// there were.
//
// Every step is one script, so it is atomic. Deadlines are set and judged by the
// server's clock. A grant's deadline is a value in the hash. The key's own time to
// live only removes what all clients have left.
//
// # Refused commands
//
// Redis does not roll a script back. A command inside a script can be refused: the
// user lacks the right to it, the server is out of memory, the hash slot is being
// moved and has no such key, the key is of another type. So a script reads first and
// writes last. Before it changes the hash it tries every kind of command that it
// needs, in a way that changes nothing: PEXPIRE only lengthens the key's life or finds
// no key, HDEL of a field that is not there, SET only raises the counter. Then one HSET
// changes the hash, and holds all of the change but the removal of fields, which
// can no longer be refused. The message that wakes a waiter comes last; where it is
// refused it is like a message that is lost. No step deletes a key and writes it again,
// and none passes through a state in which a held name is free.
//
// A name that many clients want is nearly always plain: one exclusive grant stands, and
// nothing else is remembered but the queue. A new queue entry, the release that grants to
// the first entry, and the confirmation of that grant then take a shorter way, which
// matches the whole state by one pattern. It decides before it writes, and tries and writes
// the same fields in the same order as the general way: a new entry is one HSET, which
// needs no trial; a release tries HDEL first; a confirmation lengthens the key's life or
// tries HDEL, and raises the counter, before its HSET. A state that the pattern does not
// match, a dead first entry, and a token above the name's last one continue to the general
// way. A test makes random steps on two names, one of them without the shorter way, and
// requires the same replies, fields, tokens, lives and messages after each.
//
// # Combined calls
//
// On one server, with replicas or under Sentinel, requests of many goroutines share a script
// call, a batch of at most 32. Only the first try of a name and the release of a grant without
// other requests are combined: each is the short way of its script, under a pcall of its own.
// Four requests at a time go by themselves, so a serial caller sends plain calls. No request
// waits for others on purpose. A Cluster has a name's keys in its own hash slot, and
// [WaitReplicas] waits for each grant, so neither combines.
//
//   - A request that its short way does not decide is left as it is, and its client sends it by
//     itself. It may have raised the counter of tokens, which does no harm.
//   - A refused request leaves nothing, as in the plain scripts. A release tries nothing before
//     its only write. An acquire undoes its grant if the key's expiry is refused. An error ends
//     no other request of the batch. A full server refuses only the first writes of a script, so
//     it may grant the requests that follow a release in a batch: at most 31.
//   - An answer that is lost makes all requests of the batch unknown. Each caller then does what
//     it does after a plain call: it undoes its request, or repeats its release.
//   - A batch may arrive late, or twice. No acquire is decided after the earliest time limit of
//     the batch's acquires. A name whose request was undone has its tombstone, which
//     the short way does not grant over. A release names the ID and token of its grant.
//   - A primary that was replaced refuses each write, or loses the grants of a batch like others.
//     The server replicates a script's writes as one transaction.
//   - SentAt of a grant is before the batch is sent. The batch has the highest token that the
//     client has seen when it is sent, and a clock behind that decides no acquire.
//   - A caller that is cancelled before its batch is sent has sent nothing. Later its outcome is
//     unknown, and the others of the batch are not affected.
//   - A server that refuses a whole batch because of one key (NOPERM, MOVED, CROSSSLOT) has
//     executed nothing, so each request goes by itself. After CROSSSLOT there are no more batches.
//   - A batch without an answer for 250 ms delays no request behind it. At most 16 batches are
//     under way.
//
// A test makes random steps, with and without batches, and requires the same replies and states.
//
// # Waiting
//
// A request that may not be granted yet makes a queue entry. A script that ends a grant
// grants, in the same step, to the entries at the head, in their order, as far as the
// rule allows, and publishes to those clients alone. Such a lease lasts 2.5 s unless its
// client confirms it: that call sets the requested deadline, and validity counts
// from its sending. If the first entry is one of the client that releases, it is
// granted in the release itself, whose sending then counts: one call for a release and
// a grant. Entries are served strictly in order, so other processes get their turn.
//
// A message may be lost, so an entry is refreshed as well: every 0.7 s for the first
// eight, less often for others, at least every 15 s, since ten thousand entries must
// not keep the server busy. An entry that comes near the head is notified. A refresh
// also looks for grants that have expired, and grants to the head. So a lost message
// costs that long. An entry that has missed three refreshes is dead and is skipped. If
// the server loses its memory, waiters make new entries, in any order.
//
// In a Cluster the message is a PUBLISH, which every node receives. SPUBLISH would save
// the other nodes about 1 us a message. But a script may publish only to channels of its
// own hash slot: a client would need up to 4096 subscriptions, each renewed when its slot
// moves.
//
// # Start before the confirmation
//
// A request with [driver.Request.Provisional] may start its hold when the message arrives,
// and confirms its grant later, by its first renewal. A hold that ends before needs no
// confirmation, so a contended hold takes two calls: the queue entry and the release. The
// request is for one exclusive grant with one token, without [WaitReplicas].
//
// Each call that makes or refreshes the queue entry carries a tag: a secret of the request
// and the number of the call. The entry keeps the tag of the last call that was applied. The
// release that promotes the entry raises the bucket's counter to the new token, writes the
// grant with a deadline of 2.5 s, and publishes the token, those 2.5 s and the tag. The client
// starts if all of this holds; otherwise it confirms the grant first, as without Provisional:
//
//   - The tag is that of the last call that was answered with the queue entry. A message that
//     comes before that answer waits for it.
//   - The token is above every token of the bucket that the client has seen.
//   - That call was sent less than a third of the TTL ago, and of 2.5 s.
//   - The last probe found the server safe, at most two seconds ago.
//   - The call had the owner that is to be recorded now.
//
// Validity counts from the send of the call with the tag, for the shorter of 2.5 s and the
// TTL. Only a server that has the effect of the call can publish its tag. So the promotion,
// which set the deadline, came after that send, whichever server made it, and however late
// the message is. The confirmation sets a later deadline, as it was sent later and for the TTL.
// So the deadline is never before the end of the validity, as in each other grant.
//
// What can go wrong with each step:
//
//   - The release is refused half-way: it publishes last, so no client starts. The counter may
//     have been raised in vain. A release that may not raise it, or has no counter because
//     the hash slot moves, publishes the message that requires a confirmation.
//   - The release has no answer: the promoted client starts. The repeated release finds its
//     grant gone and changes nothing. If it is applied a minute later for the first time, the
//     entry that it promotes is one that was refreshed since.
//   - The message is lost: the next refresh confirms the grant. It comes twice, or late: the
//     request has its grant, or its calls have other tags, or the send is too long ago. It is
//     forged: the tag is no secret to a client that reads the keys of the locks, and to no
//     other. The message of a break comes after that of the grant, on the same channel.
//   - A former primary publishes it: it had applied the last call that was answered, so the
//     client had no answer from another primary since. The promotion is then a grant that
//     the failover loses, as if it had been answered; see Failover.
//   - The client dies before the confirmation, or has started and stands still: the lease ends
//     after 2.5 s and the next entry is granted. The client's validity has ended before.
//   - The confirmation has no answer: the deadline is the earlier one or a later one, and the
//     client counts the earlier. Applied twice or a minute later it prolongs a grant that
//     stands, or finds none. It creates nothing, so a release before it leaves nothing. A
//     release after it ends the grant. The token that both name does not change.
//   - The confirmation is refused because the grant has ended: the lock is lost.
//   - A call that was sent before the message is applied after it: it confirms the grant. It
//     keeps the token, since the client knew no higher one when it sent the call. After
//     the release it finds no entry.
//   - The grant is never confirmed and the key goes: the counter has the token, so a later
//     grant has a larger one.
//
// What it costs: before the confirmation, in the first milliseconds of a hold, its validity is
// about two seconds, and not the TTL. So less time without the server is a loss, and a
// smaller jump of the server's clock, or difference of a replica's that is promoted just then,
// ends it early.
//
// # Why it is safe
//
// Exclusion. Grants are made by scripts at the one server that holds the key, each
// by the rule that a grant of limit n never stands beside more than n-1 others. A
// grant ends at the server's deadline or by a script that names its ID and token.
// The client's validity began before the request that set the deadline was sent, so
// it ends first, as long as the server's clock does not jump ahead.
//
// Requests without an answer. A request may arrive long after its client has given it
// up. Each request that creates something carries the server's time after which it is
// refused, ten seconds after its sending by the client's estimate of that time. If the
// estimate was wrong and the server refuses it as too late, the client sends it again. Undo removes what
// a request has left and, if the request could still arrive, leaves its ID behind as
// withdrawn until then: a delayed request finds its time past, or itself withdrawn. Only
// requests without an entry create one; a refresh that comes late finds its entry gone,
// and does nothing. When a first request had no answer and a second was granted, Release
// withdraws the ID as well. After an undo that was not answered the ID is not used
// again, since the undo may still arrive. The client library repeats no request: what is
// sent again here carries the same ID, by which the scripts know it. A SentAt older than
// that of the request that was applied would be safe; a newer one is never used.
//
// Tokens. A token is the larger of the server's microseconds and one more than any
// token of the name's bucket, which the counter knows, or, while the key lives,
// the key itself. So it rises when the clock is set back. Clients also send the
// highest token of the bucket that they have seen, so it rises for them after a
// flush or a failover to a replica whose clock is behind; for a client that has
// seen none, as long as the clock is not behind by more than the outage. Lua's
// numbers are exact up to 2^53 microseconds, in the year 2255; beyond that a
// bucket is refused.
//
// Reserved tokens. A grant may have several tokens, for the holders to whom its process
// hands it off. They are the microseconds of the server's clock since the last token of
// the bucket, at most a thousand, and end with the present one: no token is ever ahead
// of the clock, and the counter and the key know the last. A grant that a release has
// promoted takes them when its client confirms it, since nothing else can have been
// granted on an exclusive name meanwhile. A bucket without a counter gives one token,
// which is the clock: it may have been flushed a moment ago. A server that comes back
// with an older counter has been away for longer than the millisecond that a grant
// reaches back, so its tokens rise as well.
//
// Failover. Redis answers before its replicas have a write. A replica that is
// promoted without it does not know the grant: the holder learns of that within
// the declared notice or, if it cannot reach the server, when its validity ends, and
// the token shows the resource. [WaitReplicas] makes a grant and a renewal count only
// when so many replicas have acknowledged it, by WAIT on the connection that wrote it.
// With as many as there are, a failover to any of them loses no lock. With fewer it may
// promote one that has not acknowledged.
//
// A promoted replica judges deadlines by its own clock. Where replicas acknowledge
// grants, each client compares their clocks with their primary's, about once a second
// while it waits or holds. It adds the largest difference to every TTL that it sends,
// but not to the validity that it counts. So no lease expires before its
// holder's validity, whichever is promoted. What remains: a clock that was set ahead
// within the last seconds, and a replica whose clock cannot be read, which the
// guarantees then report. A clock that is ahead by more than ten seconds is refused.
//
// A primary that was cut off and does not know of its successor continues to answer: let
// it refuse writes, by min-replicas-to-write 1 and min-replicas-max-lag. Where several
// servers take writes for the same data (active-active), each grants: they are refused
// as far as they can be recognized, and no guarantee holds on others.
//
// Cluster. All keys of a step are in one hash slot. While it moves, a step that
// names a key that is there and one that is not is answered TRYAGAIN all the
// time: refreshes, renewals, releases and undos name the name's key alone. A new
// grant needs the counter as well; when it is answered TRYAGAIN the counter is
// read by itself, the grant is made by itself, and the counter is raised before
// any client gets the grant. Between the two the name's own key has the token,
// so it would take a client that dies just then and a clock that is set back to
// repeat it.
//
// Memory. A server that is full refuses new requests before it has changed
// anything; what is held can be renewed, confirmed and released. A server that
// evicts keys instead is refused, see [Insist]. The setting may change, and a
// promoted replica or a new node may have another: a request that finds the last probe
// two seconds old makes a new one first. A client finds a new node within two seconds, or
// when another node redirects it. Evicting servers grant nothing more from then on,
// so a lock that they evict has no second holder.
//
// Early ends. Every two seconds the client checks the grants that it has neither renewed
// nor checked: one script call for a hundred grants (in a Cluster for those of one
// bucket), all calls at once. After a lost subscription it checks all grants.
//
// # Layouts of other clients
//
// [WithLayout] makes a store write its locks as another client library does. All above is
// about the native layout. The types are in docs/redis-layouts.md; here is why they are safe.
//
// Each step is one script that makes the same transition as the other client's own. Before
// it grants it checks what the other client would check, so the two exclude each other by
// the server's order of scripts. The owner that it writes is unique to the request, so it
// ends no lock but its own, and no other client takes it for a re-entry.
//
// A request without an answer is handled as in the native layout: it carries the server's
// time after which it is refused. Until then an undo and a release leave its ID behind, and a
// break its owner. That is in a key beside the lock, which expires. The other clients do not
// read it.
//
// A script executes each command that the server may refuse before it changes the lock, and
// then commands that the server has just accepted. So a missing right, a full server or a
// hash slot that moves leaves a lock as it was.
//
// In the layout plain a release and a renewal are one command of the server's, where it has
// it, which compares the whole value. The value is unique to the grant, so a late or repeated
// command has no effect on another grant. Only the answer that the command was applied
// counts; after any other answer the script decides.
//
// Deadlines are the server's. Where Redisson writes the Java client's wall clock (queue
// entries of a fair lock, permits), the scripts write the server's time in the same unit.
// A Java client whose clock is ahead then ends them early: the guarantees say so, holders
// notice within three seconds, and waiters queue again.
//
// What happens when
//
//   - a holder dies: its grant ends by its TTL, and the head of the queue, which
//     has that time, is granted within milliseconds of it.
//   - the server restarts without its data, or FLUSHALL is run: holders are notified
//     within three seconds, waiters continue to wait.
//   - the subscription's connection is lost: waiters refresh every 0.7 s until it
//     is open again, and once when it is.
//   - the server's clock is set ahead: grants end early. Set back: they last
//     longer.
package redisstore
