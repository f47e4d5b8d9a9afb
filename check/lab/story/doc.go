// Package story replays on real servers how locks fail. Each story has two clients, one
// server, and the interleaving that breaks the lock.
//
// The package plays each [Story] twice on the same server: with a wrong lock as many
// programs have it, and with holdfast. One goroutine makes every step of both clients, so
// their order is exact. Where a story needs an expired lease, it waits until the server has
// expired it. A client that stalls or dies makes no more steps, and its link to the server
// carries nothing.
//
// The package draws a [Result] as text, as SVG and as a page of HTML. The drawings contain
// no measured times. [Result.OK] reports whether the wrong lock failed and holdfast did
// not.
//
// The stories need the stores of holdfast to be linked: import redisstore, filestore and
// the others. Package lab has the same mistakes as stores that package check convicts.
package story
