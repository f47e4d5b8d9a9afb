// Package zkstore keeps locks in ZooKeeper, as ephemeral sequential nodes in the
// layouts of Curator's recipes, so that Go and Java share one lock.
//
//	store, err := zkstore.Open(ctx, "zk://zk1,zk2,zk3/locks")
//	locker, err := holdfast.New(store)
//
// By URL: zk://[user:password@]host[:port][,host[:port]...]/root, with the
// parameters layout (readwrite, mutex, semaphore), tick, grace, acl=creator, and
// tls=true with ca, cert and key. A name is one node below the root; what cannot
// be a node's name is escaped as %XX. docs/zookeeper.md tells more.
//
// # Safety
//
// A request makes a node that ends with its session. All nodes of a name are a
// queue in the order of their numbers; a node is a grant when every node before it
// is, and no limit among them or its own forbids that many. A node sees all those
// before it, since the server that answered its creation has applied everything up
// to it; what it sees may be late in what has gone, which only makes it wait.
// Whoever waits watches the nearest nodes of which one must go before its turn can
// come, the predecessor for an exclusive lock, and reads again when it is told so
// or has reconnected. So grants exclude one another as long as their nodes stand,
// and what remains is to know how long a node stands.
//
// A node stands until its session ends, unless somebody deletes it by hand. The
// session's end is the leader's decision, and the server that a client is
// connected to may be cut off from the leader and not know: it goes on answering
// pings and reads for seconds after the leader has ended the session and another
// client was granted the lock. Therefore only what has passed the leader counts.
// The session is known to stand until send + T - tick, where send is that of the
// heartbeat before the last one that was answered, T the session timeout and tick
// the servers' tickTime; why, is argued at proof in internal/zk. Sessions are made
// four ticks longer than the TTLs that they carry, so that this is always at least
// a TTL from now: a grant is given, and renewed, only from a moment for which that
// holds, and that moment is its SentAt. A grant that nobody renews in time is
// deleted by this client, although its session lives on.
//
// Nothing of a request is forgotten. Its nodes carry a name made of its ID, by
// which whatever a lost answer has left is found. A create that is still on its way
// on a connection that was lost must not arrive later: every create is one
// transaction with a check of the version of a node of the session's own, the
// guard, and moving that version makes void what was sent before. After that, and
// a sync, what is not there will not come. Requests on one connection are done in
// order, so there a sync is enough. A session that a server calls expired may live
// on with another: its guard is deleted, and what its requests have left.
// After each reconnection the client deletes the nodes of the session that no request of
// its own has: they come from a copy from which the ensemble was restored.
//
// A release deletes a node whose name is used once, which proves that it stood. If
// the next in the queue is of this client as well, it is granted without waiting
// for the answer: both nodes are ours, and everybody behind waits for both.
//
// The token is the czxid of the grant's own node, which rises with every transaction of
// the ensemble, plus a base. The base is 0 until the ensemble was restored from an older
// copy, and its transactions get numbers that they have had before. A client notices that
// by a transaction of its own which is earlier than one that it has seen. Its sessions are
// over then, and it raises the base above all that it knows: each create checks the
// version of the node that holds the base.
//
// Guarded writes go by a session of their own, so that a request that the server does not
// take, or the link takes long for, cannot end the connection of the locks.
package zkstore
