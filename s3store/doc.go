// Package s3store keeps locks in a bucket of S3 or of a compatible server, on the engine of package [record].
//
//	s3://[KEY:SECRET@]bucket[/prefix][?region=REGION][&endpoint=https://HOST[:PORT]][&skew=1s]
//	    [&ca=FILE][&cert=FILE&key=FILE][&server_name=NAME][&require_tls=true]
//
// Without credentials in the URL they are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN of the
// environment; [OpenWithKeys] gets them from a function. Without region it is AWS_REGION, or us-east-1. Without
// endpoint it is the one of AWS in the region. docs/s3.md lists the rights and the costs.
//
// # Safety
//
// A record is an object. The store writes each version with If-Match and the ETag that it replaces, or with
// If-None-Match: * if there is no object. The server compares and writes in one step. An ETag may be a hash of the
// content: the engine never writes the same data twice.
//
// Not every server does that. So the first request of a process to a bucket is a probe, with an object of its own:
// sixteen writers create it at the same time, sixteen replace one version, and of each only one may succeed. A write
// under a condition that does not hold must fail, also if there is no object. A read must have the write before
// it. A server that fails is refused for the life of the process. Such a probe is no proof: it may miss a
// moment between the comparison and the write that is short. It finds servers that have no comparison, and those
// whose moment is a file or a request of their own.
//
// The client sends a write once, follows no redirect, and signs the conditions. A write that got no connection is
// CodeUnavailable. A write without an answer has an unknown outcome. Two servers refuse If-Match for an object that
// does not exist differently: with 404 or 412. Both are a conflict, as is 409, with which S3 refuses a write during
// another one. A read that a cache has answered (header Age) is refused.
//
// # Time
//
// The conditional write has no clock, so grants expire by the clock of the server, as its answers give it. No clock of
// a client is compared. The time of a read is the header Date. A grant ends when the Date of a later read is its TTL
// after both the Date of the read before the grant, and the Last-Modified of the grant:
//
//   - Date alone would end grants too early. Servers make that header once a second, and one that was stopped may
//     answer with a Date from before. Last-Modified is made for each write, which follows the read.
//   - Last-Modified alone would end them too early if a proxy makes the header Date and its clock is ahead of the
//     storage's.
//
// Both have seconds, so each grant lasts a second longer than its client relies on it. One server's clock is compared
// with itself. Several servers at one address, as those of AWS, may differ by skew, and each grant lasts that much
// longer, too. The probe refuses an address whose answers differ by more. If a clock is set forward, grants end early.
// If it is set back, a grant lasts for one TTL from then.
//
// The other way is that each client measures how long it has seen a version. That needs no clock of the server, but a
// process that tries once, as a cron job does, would never see a lock expire.
//
// # Waiting
//
// S3 notifies no client. A waiting process reads the record at intervals of up to half a second, which all its
// waiters share, and writes when it is free.
package s3store
