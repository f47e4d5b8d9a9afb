// Package lab contains the classic mistakes of distributed locks, in one catalogue. A reader sees
// the effect of each [Mistake], and a test shows that package check finds it.
//
// [Check] runs a lock as many programs have it, wrong in one respect, on a small key-value server in
// this process. It lets workers compete for the lock under the faults that expose the mistake, and
// returns the verdict. The check acquits the same lock without a mistake, [Control].
//
// [Play] plays a [Story] on a real server: two clients, and the order of steps that breaks the lock.
// It plays the story twice on the same server: with a wrong lock that many programs use, and with
// holdfast. One goroutine executes the steps of both clients, so their order is exact. Where a story
// needs an expired lease, it waits until the server has expired it. A client that stalls or dies
// makes no more steps, and its link to the server carries nothing.
//
// The package draws a [Result] as text and as SVG. The drawings contain no measured times.
// [Result.OK] reports whether the wrong lock failed and holdfast did not.
//
// The stories open the stores of holdfast by URL: import redisstore, filestore and the others.
package lab
