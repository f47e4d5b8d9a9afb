// Package zk is the small ZooKeeper client that the recipes of zkstore need: one
// session, its reconnection, requests that are pipelined and bounded by
// contexts, watches, multi, digest authentication and TLS.
//
// It exists because the trust in a lock needs to know three things that the
// common client does not tell: when a request was sent, on which connection its
// answer was lost, and which answers have passed the leader. It keeps them in
// [Session.Proof], [Call.Conn] and [Call.Sent].
//
// What it does not do, on purpose: it never repeats a request by itself, and it
// never re-establishes watches after a reconnection. Whoever waits is told of
// the reconnection and reads again, which no lost event can spoil.
//
// The encoding is ZooKeeper's public zookeeper.jute; the meaning of sessions,
// connections and touches was read in the server's sources (3.8 and 3.9):
// SessionTrackerImpl, LearnerHandler, Leader, PrepRequestProcessor.
package zk
