// Package protect tests what a lock protects, with processes that are stopped and killed, on
// every store: guards, versioned values and sequences.
//
// A server whose binary is missing is skipped, and with HOLDFAST_REQUIRE_SERVERS=1 fails.
// The flag -long makes the runs long. With -v they print the numbers of docs/choosing.md.
package protect
