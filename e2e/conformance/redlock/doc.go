// Package redlock holds the tests of quorum locks on real servers: the conformance suite
// on fleets of three and five, with and without failures of a minority, and what the
// protections promise. The tests need a redis-server.
package redlock
