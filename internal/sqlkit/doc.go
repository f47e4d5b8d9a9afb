// Package sqlkit is what holdfast's stores on SQL databases share: connections
// that run scripts and notice their end, a small pool of them, and two engines.
//
// [Optimistic] keeps a name's grants in one row that every change replaces by
// compare-and-set. [Sessions] keeps each grant on a database session of its own,
// whose end frees it. Neither knows a dialect: a store hands in the statements,
// what they answer, and what the server's errors mean. [Options] are what such stores
// are opened with.
//
// A third party's store on another database can be made of the same pieces.
// Statements carry their values as literals, so that one script is one round
// trip and nothing is left prepared on a server or a pooler; the stores build the
// literals from bytes in hexadecimal and from numbers alone.
package sqlkit
