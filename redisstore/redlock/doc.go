// Package redlock keeps locks on several independent Redis servers: a grant needs the
// votes of a majority, so it survives the failure of a minority. Unlike other
// implementations of the Redlock algorithm, redlock has fencing tokens. A server that
// lost its data has no vote until every lease that it may have forgotten has expired.
//
//	s, err := redlock.Open(ctx, "redlock://?node=one:6379&node=two:6379&node=three:6379")
//
// or [New] over stores of package redisstore. Use 3, 5 or 7 servers.
//
// # Votes
//
// A lock is one string per name at each server, set with SET NX PX: the server's vote.
// The value begins with the ballot, which is unique per attempt. Only the client of
// that ballot renews or deletes the value. That is the format of redsync. With
// [Redsync] clients of redsync and of redlock share locks.
//
// The client sends a request to all servers at once, and has the grant when a quorum,
// n/2+1, has voted. It handles the other answers in the background. The validity of the
// grant runs from before the first request was sent, for the TTL. Each vote stands
// longer than that: by one percent for drift, and by twice [Skew] for clocks
// that are set within their tolerance.
//
// # Exclusion
//
// Two quorums have a server in common. That server gives its vote to one ballot at a
// time. So of two grants at once one would have lost a vote before its validity ended. A
// server loses a vote early in three ways:
//
//   - It restarts, fails over, or loses its data. The hash holdfast:redlock names the
//     replication ID with which the server was admitted. Each script that votes
//     compares it with the server's own, and refuses at a replica. A process draws a
//     new ID when it starts and each time it becomes a primary. So the two differ after
//     each restart and after each failover, also one back to the same process. They
//     differ even if the data was kept, since the newest writes may be missing. A
//     primary also draws a new ID for its first replica, and after it has had no
//     replica for repl-backlog-ttl. Its votes are then withheld without need. DEBUG
//     RELOAD NOSAVE, a command for tests, loses data and keeps the ID. A server whose
//     ID differs does not vote for a while, measured by its own clock: until every vote
//     that it may have forgotten has expired, even one for the fleet's longest TTL.
//   - Its clock is set ahead. Every request carries the fleet's time: the median of the
//     clocks that a majority has shown, on the monotonic clock of the client. A server
//     whose own clock differs by more than Skew does not vote. A client that finds such
//     a clock withholds the server. Once the clock is right, the server waits as after
//     a restart. If a clock jumps ahead and back before a client measures it, no client
//     notices that.
//   - An operator deletes the key. Nothing prevents that.
//
// # Withdrawn and late requests
//
// Each server has at most one request of a ballot in flight, so that requests take
// effect in order. The client withdraws a vote whose answer was lost, and leaves a
// tombstone. If the request arrives later, the server finds the tombstone and refuses
// it. A server also refuses a request that is late by more than Skew by its clock, so
// the tombstone may expire after a few seconds. A ballot without a quorum never becomes
// a grant afterwards, because the client ends all its votes.
//
// # Tokens
//
// Each server has 4096 counters, each for several names. A vote raises the counter to
// the token that the client proposes, and returns the counter's value before. The
// client proposes a token above all that it has seen of any server, and at least the
// fleet's microseconds. If a quorum of voters had smaller counters, the grant has the
// proposed token: one round trip. Otherwise the client writes a token above all their
// counters to the servers that voted, and needs a quorum of acknowledgements: two round
// trips. An acknowledgement counts only if the script finds the vote.
//
// Tokens rise: an earlier grant of the name raised the counters of a quorum while its
// votes stood there. One of these servers votes for the later grant after the earlier
// vote has ended. So it shows a counter that is at least the earlier token.
//
// A restarted server may have forgotten tokens. So the client that admits it gives it
// the largest counters of a quorum of the other servers, read after the wait. A token
// that the server has forgotten was written to n/2 of the n-1 others at least, before
// the wait was over. A quorum of these includes one that has it. A server that has no
// vote because of its clock has kept its counters, and is read like the others. If
// fewer servers have kept their counters, all servers have to answer. The client then
// takes the largest counters of all servers, and at least the fleet's time. Tokens then
// rise as long as the clocks were not set back.
//
// # Kept locks
//
// A release with keep replaces each vote by a kept lock, for that time. It succeeds when a quorum keeps
// the lock; a server without the vote does not count. A server that finds the request late by more than
// Skew changes nothing, and the client repeats the request, until the TTL has passed. No client renews a
// kept lock. So the client that admits a restarted server gives it the kept locks of the others, with
// their counters. Each server that keeps the lock has it before the TTL has passed, and so before the
// wait of a server that restarted meanwhile is over. A quorum of the others includes one that keeps the lock
// or has taken it over. The servers also list their kept locks in holdfast:redlock:kept, because a clock
// that is set ahead lets the keys expire.
//
// model/redlock.pml is a model of these rules, which spin checks exhaustively for small
// fleets. Tests plant mistakes in the model and require that spin finds them.
//
// # Renewal and healing
//
// A renewal counts if a quorum confirms it before the previous validity ends. If a
// server does not have the vote, the same step requests the vote again. The server
// votes if it is admitted and no other ballot has its vote. So a server that was
// restarted votes for held locks again. That is safe because all these votes appear
// while the grant is valid: no other ballot can have had a quorum in between. A renewal
// that is confirmed later does not count, so it revives no grant that has ended.
//
// # Contention
//
// A request is busy when another ballot has a quorum. If several ballots have a part of
// the votes, only one continues: the one with the most votes, and of equal ones that
// with the smaller identifier. Its client requests the missing votes again. The other
// clients withdraw their ballots and pause for a random time that grows. So one ballot
// wins. A waiter has an entry in a queue at each server, ordered by the fleet's time at
// which its wait began. A release notifies the first waiter. Waiters also send their
// requests again once a second, and when the holder's lease ends.
//
// # Order
//
// A server also has one position for each name: the request that has waited longest, of those that it has seen. A
// waiter that finds the name taken, or kept for another one, sets the position, unless an older one is there. While it
// stands and the lock is free, the server gives no vote to a younger request, nor to one that does not wait. So a
// client that takes a lock again at once does not keep a waiter out.
//
//   - Age is the fleet's time at which the wait began, and of equal ones the smaller identifier. The client sends that
//     number to all servers, so they agree about which of two requests is older. Positions may differ between servers
//     only until the older request reaches the others. So they converge, and the oldest waiter is refused by no position.
//   - A position expires after [driver.PositionTime] unless its waiter repeats the request. So a dead waiter delays
//     the others by that time, at most ten seconds. The vote for a waiter removes its position, as does the end of its
//     wait, also after a vote that is answered later. The release removes a position that a grant has left at a
//     server that had voted for another client.
//   - A position gives no vote and ends none, and the renewal of a grant ignores positions. So no claim of safety relies
//     on them: a server that has lost a position, a client of a former version and a client of redsync pass waiters.
//
// A free lock costs no more requests. A server that is silent is sent one request in each probeInterval.
//
// # Limits
//
// Locks are exclusive. A server's vote is for one holder, so several holders cannot
// each have a quorum. The store refuses other limits with an error of code Unsupported.
package redlock
