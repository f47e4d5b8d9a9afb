// Package otelhooks reports what a holdfast Locker does to OpenTelemetry, as
// traces and metrics.
//
//	hooks, err := otelhooks.New()
//	if err != nil { ... }
//	locker, err := holdfast.Open(ctx, url, holdfast.WithHooks(hooks))
//
// One value serves any number of Lockers. It needs the OpenTelemetry API alone;
// which SDK and exporter stand behind it is the program's choice.
//
// # Metrics
//
// Metrics are by class and never by the name of a lock, of which there may be
// any number:
//
//	instrument                  kind, unit               attributes
//	holdfast.acquire.duration   histogram, s             kind, mode, outcome
//	holdfast.hold.duration      histogram, s             kind, mode, outcome
//	holdfast.locks.held         up-down counter, {grant} kind, mode
//	holdfast.losses             counter, {loss}          kind, mode, cause
//	holdfast.renewals           counter, {renewal}       kind, mode, outcome
//	holdfast.undo.failures      counter, {failure}       kind, mode
//
// The attributes, by their full names:
//
//   - holdfast.store.kind: the store's recipe, such as "redis" or "memory".
//   - holdfast.mode: "exclusive", "shared" or "semaphore".
//   - holdfast.outcome: of an acquisition "acquired", "busy", "unavailable",
//     "refused", "unsupported", "invalid", "closed", "lost" (the lock under which
//     it was asked for), "timeout" and "canceled" (the caller's context, before
//     the store had answered), or "failed"; of a hold "released", "lost" or
//     "unconfirmed"; of a renewal "renewed" or "failed".
//   - holdfast.cause: that of a [holdfast.LostError], as "expired"; "other" for
//     one that holdfast does not define.
//
// Bad input and a name that the context holds already are not reported, and
// joining a held lock with [holdfast.Reentrant] neither: it is one grant, and
// counted once. The kind is "unknown" as long as the store has not told its
// guarantees, as one that is down from the start.
//
// # What counts as held
//
// holdfast.locks.held counts the grants that a caller of this process relies on.
// A grant counts from the moment it is acquired until the first of: it is
// released, it is lost, or its release was not confirmed (the store may keep it
// a while longer). Whatever is reported afterwards, a release that is tried again
// or the unlocking of a lost lock, changes nothing. LockAll holds one grant per
// name. A grant which the store keeps for its MinHold after the release no longer
// counts; one that the Locker itself keeps for it does.
//
// The count is exact as long as events arrive. Holdfast drops background events
// other than losses when more than 4096 wait for a slow hook, so keep what stands
// beside these hooks fast.
//
// # Traces
//
// "holdfast.acquire" spans an acquisition, from asking to the grant or the
// failure. It is the parent of what the store's client library records
// meanwhile. It has the name, the store, its kind, the mode, limit and, when it
// is over, the outcome, the time waited in seconds and the token; the event
// "holdfast.queued" tells that the name was held, and by whom. Every failure
// sets its status to Error, except a busy lock, which is an answer; there the
// span's own attributes name the holder. Holdfast reports queueing in the
// background, so that a wait of microseconds may be over before its event.
//
// "holdfast.hold" spans the time a grant is held, beside the acquire span (or
// below it, where that is the root of its trace) and linked to it. Failed
// renewals, the end of MaxHold, and the loss are its events. Its status is Error
// when the lock was lost or the release could not be confirmed. It is a leaf: the
// lock's context carries the caller's span, so that work done under a lock which
// is held for days, or whose process crashes, has a parent that was exported.
//
// What fails after that, in the background, is a short span of its own, linked
// to the acquire span: "holdfast.release_unconfirmed" for every further try,
// "holdfast.undo_failed", and any other event that comes when no span of its lock
// is recording.
//
// No attribute holds a password: holdfast redacts a store's address before a
// hook sees it. Names, reasons and error texts appear on spans only, and not
// there either with [WithNameOnSpans](false).
package otelhooks
