// Package redlock tests quorum locks on real servers. It runs the conformance suite on
// fleets of three and five servers, with and without failures of a minority. Other tests
// check the promises of the protections. The tests need a redis-server.
package redlock
