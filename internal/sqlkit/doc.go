// Package sqlkit provides what the stores on SQL databases share: connections that run
// scripts and notice their end, a small pool of them, and two engines.
//
// [NewOptimistic] keeps a name's grants in one row that every change replaces by
// compare-and-set; package record has the engine. [Sessions] keeps each grant on a database session of its own: the end of
// the session frees the lock. Neither engine depends on a dialect: a store passes in the
// statements, the form of their results, and the meaning of the server's errors. [Options]
// has the options that these stores have in common.
//
// Statements carry their values as literals. So one script is one round trip, and nothing
// stays prepared on a server or a pooler. Stores build the literals from hexadecimal
// bytes and from numbers alone.
package sqlkit
