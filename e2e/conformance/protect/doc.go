// Package protect tests guards, versioned values and sequences on every store. The tests
// stop and kill processes that use them.
//
// If a server is missing, its tests are skipped. With HOLDFAST_REQUIRE_SERVERS=1 they fail.
// The flag -long makes the runs long. With -v they print how long each way takes.
package protect
