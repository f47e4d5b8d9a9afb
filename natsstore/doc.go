// Package natsstore keeps locks in a key-value bucket of NATS JetStream, on the engine of package
// [record]. It needs nats-server 2.11 or later.
//
//	nats://[user:password@|token@]host[:port][,host...]?bucket=NAME[&replicas=3][&skew=500ms]
//	    [&creds=FILE][&tls=true[&ca=FILE][&cert=FILE&key=FILE][&server_name=NAME]][&require_tls=true]
//
// `holdfast init URL`, or [Store.Init], creates the bucket. The store refuses a bucket with fewer replicas than
// the URL has (default 1), or with a setting that loses or removes records: see settings.go. The client connects
// to the hosts of the URL alone. docs/nats.md lists the rights, and the costs.
//
// # Safety
//
// A record is the last message of a subject. The store publishes each version with the header
// Nats-Expected-Last-Subject-Sequence. The leader of the stream compares it and proposes the message in one
// step, and admits no other message of the subject until that one is applied. A new leader first applies all
// that it has. So one write replaces a version.
//
// A read begins with a publish to the subject "clock", whose acknowledgement comes from a quorum. The store then
// reads the record and the clock together, from any replica, and reads again unless that replica has the
// acknowledged message or a later one. A replica has a prefix of the stream, so the answer has every write
// that was confirmed before the read, and none that a quorum lacks. A follower that lags, and a former leader
// that is cut off and still answers reads, as it does for up to 20 s, return an older clock and are not believed.
// Reads of one client share a publish if they wait for it together.
//
// The time of the read is the timestamp of the clock's message, which the leader of the stream has set by its wall
// clock, after the read was sent. If that clock is set forward, grants end early. If it is set back, a grant lasts
// for one TTL from then. So only the clocks of leaders are compared, and the skew is how far two of them may differ.
//
// A former leader may refuse a write that the present leader has applied, because a server that is connected to
// both delivers the write to both. So after a conflict the engine reads the record. If it has the version that the
// write replaces, the outcome is unknown. A write that was applied and replaced by another one before that read
// counts as refused. For locks that makes no difference. For a value the guarantees declare it. The bucket keeps no
// earlier versions of the value. The refusal does not show it either: a leader refuses in the same words while an
// earlier write of the key is under way.
//
// The client library sends nothing later: it does not buffer while it reconnects, and does not repeat a
// publish. A write that was certainly not sent is CodeUnavailable. A write without an answer, and one that the
// server refuses for another reason than its version or its length, has an unknown outcome.
//
// Writes that are acknowledged can be lost, and then a number of the stream names another write. A server syncs
// its disk every 2 minutes unless its sync_interval is always. No client can read that setting. With it and three
// replicas, a lost power supply of one machine loses nothing. The guarantees declare the loss.
//
// A release is also a message to holdfast.wake, which no stream keeps. It names the waiter that is next, which then tries
// again. A message that is lost costs one poll.
package natsstore
