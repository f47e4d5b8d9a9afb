// Package layouts keeps locks on a Redis server in the formats of other client libraries, so that programs with
// such a library and programs with holdfast share locks.
//
//	s, err := layouts.Open(ctx, "redis://localhost:6379", layouts.Redisson)
//
// or, with a blank import of package redisstore, a URL with the parameter layout, as in
// redis://localhost:6379?layout=redisson. docs/redis-layouts.md describes what each layout can do. The client, the
// probes of the servers, the check of held locks, replicas and failover are those of package redisstore.
//
// # Why it is safe
//
// Each step is one script that makes the same transition as the other client's own. Before
// it grants it checks what the other client would check, so the two exclude each other by
// the server's order of scripts. The owner that it writes is unique to the request. So the
// script ends no lock but its own, and no other client takes the owner for a re-entry. A grant
// ends by its lease at the server, or by a script that names its owner.
//
// The scripts handle a request without an answer as package redisstore does. It carries the
// server's time after which the server refuses it. Until then an undo and a release leave
// the request's ID behind, and a break leaves its owner. They are in a key beside the lock,
// which expires. The other clients do not read that key.
//
// A script executes each command that the server may refuse before it changes the lock, and
// then commands that the server has just accepted. So a missing right, a full server or a
// hash slot that moves leaves a lock as it was.
//
// All deadlines are by the server's clock. Where Redisson writes the Java client's wall
// clock (queue entries of a fair lock, permits), the scripts write the server's time in the
// same unit. A Java client whose clock is ahead then ends them early. The guarantees state
// that. Holders notice it within three seconds, and waiters queue again.
//
// # Tokens
//
// The token of a grant is the largest of three numbers: the server's clock in microseconds, one more than the last token
// of the name, and one more than the highest token that this client has seen. The key beside the lock has the last
// token, while a grant stands and for ten seconds after its release; in the layout plain, for ten seconds after the grant.
// So tokens rise unless the clock is set back, or a failover leads to a replica whose clock is behind. Then they rise
// for a client that has seen the higher ones, and for all clients as long as the key beside the lock has the last one. After
// that, a client that has seen no token of the name may get one that is lower by as much as the clock.
//
// A lock of another client has no token and changes none. A grant of holdfast before that lock and one after it have
// rising tokens. So a resource that compares tokens refuses a former holder with holdfast once a later holder with
// holdfast has been there. It cannot judge the other client, and until then it does not refuse the former holder.
//
// In the layout redisson-fenced the token is Redisson's own counter of the name, which every grant of every client
// increments, so all clients share one order. Neither the clock nor the tokens that this client has seen raise it. So it
// starts again after the server has lost its data, and repeats after a failover to a replica without the last increments.
//
// # Waiting
//
// A waiter sends a request, subscribes, and sends the request again. It repeats the request when a message
// comes, when the holder's lease expires, and after a second. So a lost message of another client costs a
// second, and not a lease. Where other clients send no messages, it repeats the request as often as they do.
//
// Other clients keep no queue entry, so the first request after a release gets the lock. A message
// reaches a waiter of this process sooner than a waiter in Java, and a client that locks again at once
// overtakes every waiter that polls. Two rules keep each side from starving the other:
//
//   - A turn is a run of grants of this process, without a pause in which another client would have got
//     the lock. It ends with the first release after the length of the turn. The waiters of this process then
//     send no request for a while. In the layouts with messages there are turns only after a sign of
//     another client: it listens for the message of a release, or holds the name. No client sees the
//     waiters that poll, so in the layouts without messages every run is a turn.
//   - In the layouts without messages, a waiter that sees the lock pass from one grant of another client
//     to another was overtaken, and polls every millisecond.
package layouts
