// Package otelhooks reports the events of a holdfast Locker to OpenTelemetry, as
// traces and metrics.
//
//	hooks, err := otelhooks.New()
//	if err != nil { ... }
//	locker, err := holdfast.Open(ctx, url, holdfast.WithHooks(hooks))
//
// One value serves any number of Lockers. The package depends on the OpenTelemetry
// API only; the program chooses the SDK and the exporter.
//
// # Metrics
//
// No metric has the name of a lock as an attribute, because the number of names is
// unbounded:
//
//	instrument                  kind, unit               attributes
//	holdfast.acquire.duration   histogram, s             kind, mode, outcome
//	holdfast.hold.duration      histogram, s             kind, mode, outcome
//	holdfast.locks.held         up-down counter, {grant} kind, mode
//	holdfast.waits              gauge, {acquisition}     none
//	holdfast.wait.longest       gauge, s                 none
//	holdfast.losses             counter, {loss}          kind, mode, cause
//	holdfast.renewals           counter, {renewal}       kind, mode, outcome
//	holdfast.undo.failures      counter, {failure}       kind, mode
//	holdfast.conflicts          counter, {conflict}      none
//
// The metric holdfast.conflicts counts the conflicts of updates that have the option of
// [Conflicts]. The full names of the attributes:
//
//   - holdfast.store.kind: the store's recipe, such as "redis" or "memory".
//   - holdfast.mode: "exclusive", "shared" or "semaphore".
//   - holdfast.outcome: of an acquisition "acquired", "busy", "unavailable",
//     "refused", "unsupported", "invalid", "closed", "lost" (the enclosing lock was
//     lost), "timeout" and "canceled" (the caller's context, before the store
//     answered), or "failed"; of a held grant "released", "lost" or "unconfirmed";
//     of a renewal "renewed" or "failed".
//   - holdfast.cause: the cause of a [holdfast.LostError], a value of [holdfast.Cause];
//     "other" for a cause that holdfast does not define.
//
// holdfast.waits counts each goroutine that waits for a lock, or for the answer of a store, and
// holdfast.wait.longest is the time since the first of these acquisitions began. Both need the context that
// Start returns: other hooks of the Locker must derive theirs from it.
//
// With the first acquired lock of a kind and mode, the counters of losses, renewals and failed undos begin
// with 0, so that the first failure is an increase.
//
// The hooks do not report invalid input or a name that the context already holds.
// They do not report a join of a held lock with [holdfast.Reentrant] either: it is
// one grant, counted once. The kind is "unknown" until the store has returned its
// guarantees, for example while it is unreachable.
//
// # What counts as held
//
// holdfast.locks.held counts the grants that callers of this process hold. A grant counts from
// its acquisition until it is released or lost, or until its release fails to be confirmed. The
// store may keep such an unconfirmed grant for some time. Later events, such as a retried release or the
// Unlock of a lost lock, do not change the count. LockAll
// holds one grant per name. A grant that the store keeps for its MinHold after the
// release does not count; a grant that the Locker keeps for its MinHold counts.
//
// The count is exact if all events arrive. Holdfast drops background events other than losses
// when more than 4096 wait for a slow hook. So other hooks of the same Locker must be fast.
//
// # Traces
//
// The span "holdfast.acquire" covers an acquisition, from the request to the grant
// or the failure. It is the parent of the spans of the store's client library. Its attributes
// are the name, the store, its kind, the mode and the limit. At the end the span gets the
// outcome, the time waited in seconds and the token. The event
// "holdfast.queued" reports that the name was held, and its holder. A failure sets
// the status to Error, except for a busy lock, which is a normal result: then the
// span's attributes name the holder. Holdfast reports queueing in the background,
// so a wait of microseconds may end before its event.
//
// The span "holdfast.hold" covers the time a grant is held. It is beside the
// acquire span (or below it, if that is the root of its trace) and linked to it.
// Its events are failed renewals, the end of MaxHold, and the loss. Its status is
// Error if the lock was lost or the release was not confirmed. It has no children:
// the lock's context carries the caller's span. So the work under a lock that is
// held for days, or whose process crashes, has a parent that was exported.
//
// A later failure in the background is a short span of its own, linked to the
// acquire span: "holdfast.release_unconfirmed" for each further attempt,
// "holdfast.undo_failed", and each other event for which no span of its lock is
// recording.
//
// A conflict of an update with the option of [Conflicts] is the event "holdfast.conflict"
// of the caller's span. Its attributes are the key, the number of conflicts of that
// update so far, and the backoff in seconds.
//
// No attribute contains a password: holdfast redacts a store's address before it
// calls a hook. Names, keys, reasons and error texts appear on spans only, and with
// [WithNameOnSpans](false) nowhere.
package otelhooks
