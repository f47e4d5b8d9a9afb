// Package zk is the small ZooKeeper client that the recipes of zkstore need: one session, its
// reconnection, pipelined requests with contexts, watches, multi, digest authentication and TLS.
//
// The validity of a lock depends on three facts that the usual Go client, go-zookeeper, does not report:
// when a request was sent, on which connection its answer was lost, and until when the session is
// proven to exist. This client reports them in [Call.Sent], [Call.Conn] and [Session.Proof].
//
// On purpose, it never repeats a request by itself, and it never restores watches after a
// reconnection. A waiter is notified of the reconnection and reads again, so that a lost
// event does no harm.
//
// The encoding is ZooKeeper's public zookeeper.jute. The meaning of sessions, connections and
// touches follows the server's sources (3.8 and 3.9): SessionTrackerImpl, LearnerHandler,
// Leader, PrepRequestProcessor.
package zk
