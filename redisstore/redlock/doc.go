// Package redlock keeps locks on several independent Redis servers: a grant needs the
// votes of a majority, so it survives the failure of a minority. Unlike other
// implementations of the Redlock algorithm it has fencing tokens, and a server that lost
// its data has no vote until every lease that it may have forgotten has expired.
//
//	s, err := redlock.Open(ctx, "redlock://?node=one:6379&node=two:6379&node=three:6379", "")
//
// or [New] over stores of package redisstore. Use 3, 5 or 7 servers.
//
// # Votes
//
// A lock is one string per name at each server, set with SET NX PX: the server's vote.
// Its value begins with the ballot, which is unique per attempt, and only that ballot's
// client renews or deletes it. That is the format of redsync, so with
// [Config.Redsync] both share locks.
//
// A request goes to all servers at once, and is granted when a quorum, n/2+1, has voted. The
// other answers are settled in the background. The validity of the grant runs from before
// the first request was sent, for the TTL. Each vote stands longer than that: by one
// percent for drift, and by twice [Config.Skew] for clocks that are set within their
// tolerance.
//
// # Exclusion
//
// Two quorums have a server in common. That server gives its vote to one ballot at a
// time. So of two grants at once one would have lost a vote before its validity ended. A
// server loses a vote early in three ways:
//
//   - It restarts, fails over, or loses its data. The hash holdfast:redlock names the
//     replication ID with which the server was admitted. Each script that votes compares
//     it with the server's own, and refuses at a replica. A process draws a new ID when it
//     starts and each time it becomes a primary. So the two differ after each restart and
//     after each failover, also one back to the same process, and also where data was
//     kept, since the newest writes may be missing. A primary also draws a new ID for its
//     first replica, and when it has had none for repl-backlog-ttl: it waits in vain then.
//     DEBUG RELOAD NOSAVE, a command for tests, loses data and keeps the ID. A server whose
//     ID differs measures a wait, by its own clock: the longest TTL of the fleet. No vote
//     that it has forgotten counts after that.
//   - Its clock is set ahead. Every request carries the fleet's time: the median of the
//     clocks that a majority has shown, on the monotonic clock of the client. A server
//     whose own clock differs by more than Skew does not vote. A client that sees that
//     withholds the server, which waits as after a restart once its clock is right. A jump
//     ahead and back that no client sees is not noticed.
//   - An operator deletes the key. Nothing prevents that.
//
// # Withdrawn and late requests
//
// Each server has at most one request of a ballot on its way, so that they take effect in
// order. A vote whose answer was lost is withdrawn with a tombstone, which refuses the
// request if it comes later. A request that comes later than Skew is refused by the
// server's clock, so the tombstone may expire after a few seconds. A ballot that has no
// quorum ends all its votes, and never becomes a grant afterwards.
//
// # Tokens
//
// Each server has 4096 counters, each for several names. A vote raises the counter to the
// token that the client proposes, and returns what it was. The client proposes more than
// it has seen of any server, and at least the fleet's microseconds. If a quorum of voters
// had smaller counters, the proposed token is the grant's: one round trip. Otherwise the
// client writes a token above all their counters to the servers that voted, and needs a
// quorum of acknowledgements: two round trips. An acknowledgement counts only if the
// script finds the vote.
//
// Tokens rise: an earlier grant of the name raised the counters of a quorum while its
// votes stood there. One of these servers votes for the later grant, after that vote has
// ended, and so shows a counter that is at least the earlier token.
//
// A restarted server would break that. It is admitted with the largest counters of a
// quorum of the other servers, read after the wait. A token that it has forgotten was
// written to n/2 of the n-1 others at least, before the wait was over, and a quorum of
// these includes one that has it. A server that has no vote because of its clock has kept
// its counters, and is read like the others. Where fewer servers have kept theirs, all
// servers have to answer: the largest counters of all are taken, and none below the
// fleet's time. Tokens then rise as long as the clocks were not set back.
//
// model/redlock.pml is a model of these rules, which spin checks exhaustively for small
// fleets; planted mistakes are found.
//
// # Renewal and healing
//
// A renewal counts if a quorum confirms it before the previous validity ends. A server
// that does not have the vote gets it again in the same step, if it may vote and no other
// ballot has it. So a held lock returns to servers that return. That is safe because all
// these votes appear while the grant is valid: no other ballot can have had a quorum in
// between. A renewal that is confirmed later does not count, so nothing is revived.
//
// # Contention
//
// A request is busy when another ballot has a quorum. Where votes are split, the ballot
// with the most votes, and of equals the one with the smaller identifier, requests the others
// again; the rest withdraw and pause for a random time that grows. So one of them wins.
// A waiter has an entry in a queue at each server, ordered by the fleet's time at which
// it began. A release notifies the first of them. Waiters look by themselves once a
// second, and when the holder's lease ends. The order is not guaranteed.
//
// # Limits
//
// Locks are exclusive. A quorum of votes for each of n holders is no argument for a limit
// of n, so other limits are refused with an error of code Unsupported.
package redlock
