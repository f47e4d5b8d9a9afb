// Package zkstore keeps locks in ZooKeeper, as ephemeral sequential nodes in the
// layouts of Curator's recipes, so that Go and Java share one lock.
//
//	store, err := zkstore.Open(ctx, "zk://zk1,zk2,zk3/locks")
//	locker, err := holdfast.New(store)
//
// By URL: zk://[user:password@]host[:port][,host[:port]...]/root, with the parameters layout
// (readwrite, mutex, semaphore), tick, grace, acl=creator, and tls=true with ca, cert and
// key. A name is one node below the root; characters that a node's name cannot have are
// escaped as %XX. See docs/zookeeper.md.
//
// # Safety
//
// A request makes a node that ends with its session. All nodes of a name are a queue in the order
// of their numbers. A node is a grant when every node before it is a grant, and with it the number
// of grants exceeds the limit of none of them. A client sees all nodes before its own, because the
// server that answered the creation had applied everything before it. The list may still contain
// nodes that have gone, which only makes the client wait. A waiter watches the nearest nodes of
// which one must go before its own node can become a grant: the predecessor, for an exclusive lock.
// It reads again after an event or a reconnection. So grants exclude one another as long as their
// nodes exist. The rest of the argument is how long a node exists.
//
// An exclusive entry with at most three nodes before it watches all of them and its own, on one
// connection. When all of them have gone, it is a grant without a read. A deletion that a server
// reports is committed, a deleted node never returns, and no new node precedes the entry. So the
// entry is the first. A server executes transactions and sends their events in one order. So the
// deletion of the entry's own node would have been reported before, and a later one ends a grant
// that is watched already. A server that is cut off reports late, which makes the client wait
// longer. The validity of such a grant runs from the requests that set the watches. If these are
// older than a quarter of the TTL, the client reads the queue. Another event and a new
// connection end the count: the client reads the queue again. An entry further
// behind waits for the last node but one, and then reads and counts. Nodes of other clients are not
// counted, since Curator's holder of a write lock can put the node of a reader before the entry.
// Nodes of the same client are not watched.
//
// A node exists until its session ends, unless a client deletes it by hand. The leader decides the
// session's end. The server of a client may be cut off from the leader and not notice. Then it
// continues to answer pings and reads for seconds. Meanwhile the leader may have ended the session,
// and another client may hold the lock. So only requests that have passed the leader count. The
// session is proven to exist until send + T - tick. Of the answered heartbeats, the last but one
// was sent at the time send. T is the session timeout, and tick is the servers' tickTime. The proof
// is at type proof in internal/zk. A session is four ticks longer than the TTLs of its grants, so
// that the proof always reaches at least a TTL from now. The client grants and renews a lock only
// from an instant for which that is true, its SentAt. The client deletes a grant that was not
// renewed in time, although its session continues.
//
// The proof has three assumptions. The clocks of the servers run at the same rate within the core's
// margin, a tenth. A running leader sends its pings. [Tick] is not below the servers' tickTime. The
// proof fails if a leader is stopped and cut off from its followers at once, and their connections
// do not end. Then the leader may confirm heartbeats for syncLimit ticks.
//
// The client loses no node of a request. The names of these nodes are derived from the request's
// ID, so a client finds them after a lost answer. A create on a lost connection must not arrive
// later. So every create is one transaction with a check of the version of a node of the session's
// own, the guard. A change of that version makes all earlier creates fail. After that and a sync, a
// node that does not exist cannot appear. Requests on one connection are executed in order, so
// there a sync is enough. A session that one server reports as expired may continue at another: the
// client deletes its guard, and the nodes of its requests. After each reconnection the client
// deletes the nodes of the session that belong to none of its requests. They come from a copy from
// which the ensemble was restored.
//
// A release deletes a node whose name is used once, which proves that the node existed. If the next
// entry in the queue is of the same client, it becomes a grant before the answer. Both nodes are
// this client's, and every entry behind waits for both. The same round trip reads the entry: if an
// operator has deleted it, the client ends that grant.
//
// Swap deletes the node of a grant and creates that of the next request in one transaction,
// which the server writes to its disk once. The new node is behind every other, and its number is
// larger, so the order stays and the token rises. The transaction has the checks of every create.
// It cannot be applied in part. If the old node is gone, nothing is created: the client reports
// that the grant had ended, and creates the node alone. If the server refuses the transaction,
// nothing is applied, and the caller releases with Release. If the answer is lost, both
// outcomes are open. Then the client looks for the new node, whose name it knows, once no request
// on the lost connection can be executed any more. If that node exists, the grant was released.
// Otherwise the client repeats the transaction. A transaction that arrives late, or twice, finds
// the guard changed or the old node gone, and does nothing. If the request ends before that, both
// outcomes are unknown: the caller repeats the release, and undoes the request. Each answer to the
// transaction, also a refusal, follows a commit by a majority. So a deposed leader sends none.
//
// The token is 64 times the sum of a base and the czxid of the grant's node, which rises with every
// transaction of the ensemble. The 63 numbers above it are the grant's own, too, for handoffs inside
// a process. The node's content has how many of them the request has reserved. The base is 0 until
// the ensemble is restored from an older copy, and its transactions get numbers that were used before. A client notices that by a transaction of its own
// with a lower number than one that it has seen. Its sessions are over then, and it raises the base
// above every token that it has seen. Each create checks the version of the node that contains the
// base.
//
// # Which servers a client uses
//
// A client uses the servers of the URL, and those that the ensemble lists in /zookeeper/config. It reads and watches the
// list on each connection of a session, so it follows a reconfig. The servers of the URL always stay in use. The client
// follows a list only if it contains a server that the client uses already, perhaps under another name of its host.
// Otherwise the URL names a proxy, or the servers have other addresses on the client's network. Servers have an address
// for clients in the list only if their configuration has it in the line server.N, and never one for TLS. So a client with
// TLS uses the servers of the URL alone.
//
// The list comes from the ensemble, over a session with it, and one of its addresses is known to lead there. Unlike etcd,
// ZooKeeper has no number of an ensemble to compare. If an address of the list led to another ensemble on the client's
// network, that ensemble would not have the client's sessions. It would report them as expired, which ends their locks.
// An address that leads elsewhere is a mistake as in a URL.
//
// # Guarded writes
//
// Guarded writes use a session of their own. So a guarded write that the server refuses, or that a
// slow link delays, does not end the connection of the locks.
package zkstore
