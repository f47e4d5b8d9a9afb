// Package story shows on real servers how locks fail. Each story has two clients, one
// server, and the order of steps that breaks the lock.
//
// The package plays each [Story] twice on the same server: with a wrong lock that many
// programs use, and with holdfast. One goroutine executes the steps of both clients, so
// their order is exact. Where a story needs an expired lease, it waits until the server has
// expired it. A client that stalls or dies makes no more steps, and its link to the server
// carries nothing.
//
// The package draws a [Result] as text, as SVG and as a page of HTML. The drawings contain
// no measured times. [Result.OK] reports whether the wrong lock failed and holdfast did
// not.
//
// The stories open the stores of holdfast by URL: import redisstore, filestore and the others.
// Package lab implements such mistakes on a small server of its own, and package check finds
// them there.
package story
