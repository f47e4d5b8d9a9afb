// Package redisstore keeps locks on a Redis server, with replicas, under Redis
// Sentinel or in a Redis Cluster. It speaks rueidis; package goredis, a module of
// its own, uses a go-redis client that the program has already. Redis 6.2 or
// later is needed, which has SET with NX and GET; it is tested on 7.0.
//
//	s, err := redisstore.Open("redis://user:password@localhost:6379/0")
//
// or, through a blank import, any URL that [Open] describes.
//
// # What is where
//
// A name lives in one key, holdfast:{BUCKET}:NAMESPACE:NAME. While one grant holds
// it and nobody waits, the key is a string; else it is a hash of the grants, the
// places in order of arrival, and when each of them ends. BUCKET is one of 4096,
// by a hash of namespace and name, and puts the key into a slot with the bucket's
// counter, holdfast:{BUCKET}. The counters are all that stays when nothing is held
// or awaited, however many names there were.
//
// Every step is one script, so it is atomic. Deadlines are set and judged by the
// server's clock. A grant's deadline stands inside the key; the key's own time to
// live only clears away what everyone has left.
//
// # Waiting
//
// A request that may not be granted takes a place. Whoever ends a grant, in the
// same script, grants to the places at the head as far as the rule allows, in
// their order, and publishes to those clients alone. Such a grant lasts 2.5 s
// unless its client confirms it: that call sets the deadline that was asked for,
// and is what trust is counted from. If the place at the head is one of the client
// that releases, it is granted for good in the release itself, whose sending then
// counts: one call for a release and a grant. As places are served strictly in
// order, other processes get their turn.
//
// A message may be lost, so a place is refreshed as well: every 0.7 s within eight
// of the head, further back less often, down to every 15 s, since ten thousand
// places must not keep the server busy; one that comes near the head is told. A
// refresh also looks for grants that have run out, and grants to the head. A lost
// message thus costs that long. A place that has missed three refreshes is dead
// and is skipped. If the server loses its memory those who waited take new places,
// in whatever order they come.
//
// # Why it is safe
//
// Exclusion. Grants are made by scripts at the one server that holds the key, each
// by the rule that a grant of limit n never stands beside more than n-1 others. A
// grant ends at the server's deadline or by a script that names its ID and token.
// The client's trust began before the request that set the deadline was sent, so
// it ends first, as long as the server's clock does not jump ahead.
//
// Requests without an answer. A request may arrive long after whoever sent it has
// given up. Each request that creates something carries the server's time after
// which it is refused, ten seconds after its sending, as far as the client knows
// that time; one that comes too late because the clock was guessed wrongly is sent
// again. Undo removes what a request has left and, if it could still arrive,
// leaves its ID behind as void until then: a delayed request finds its time past,
// or itself void. Only requests without a place create one; a refresh that comes
// late finds its place gone, and does nothing. When a first request had no answer
// and a second was granted, Release leaves the ID as void too. After an undo that was
// not answered the ID is not used again, since it may still arrive. No request is ever
// repeated by the client library: it is sent once, and what is sent again here
// carries the same ID, by which the scripts know it. An older SentAt than that of
// the request that was applied would be safe; a newer one is never used.
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
// Failover. Redis answers before its replicas have a write. A replica that is
// promoted without it does not know the grant: the holder learns of that within
// the declared notice or, unreachable, when trust ends, and the token tells the
// resource. [WaitReplicas] makes a grant and a renewal count only when so many
// replicas have acknowledged it, by WAIT on the connection that wrote it. With as
// many as there are, a failover to any of them loses no lock. With fewer it may
// promote one that has not acknowledged. A primary that was cut off and does not
// know of its successor goes on answering: let it refuse writes, by
// min-replicas-to-write 1 and min-replicas-max-lag.
//
// Cluster. All keys of a step are in one slot. While the slot moves, a step that
// names a key that is there and one that is not would be answered TRYAGAIN all the
// time: refreshes, renewals, releases and undos name the name's key alone. A new
// grant needs the counter as well; when it is answered TRYAGAIN the counter is
// read by itself, the grant is made by itself, and the counter is raised before
// anyone hears of the grant. Between the two the name's own key knows the token,
// so it would take a client that dies just then and a clock that is set back to
// repeat it.
//
// Memory. A server that is full refuses new requests before it has changed
// anything; what is held can be renewed, confirmed and released. A server that
// would evict keys instead is refused, see [Insist].
//
// What happens when
//
//   - a holder dies: its grant ends by its TTL, and the head of the queue, which
//     knows when, is granted within milliseconds of that.
//   - the server restarts without its data, or FLUSHALL is run: holders are told
//     within three seconds, waiters go on waiting.
//   - the subscription's connection is lost: waiters look every 0.7 s until it
//     stands again, and once when it does.
//   - the server's clock is set ahead: grants end early. Set back: they last
//     longer.
package redisstore
