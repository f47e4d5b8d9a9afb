// Package check tortures a store of holdfast and judges what happened.
//
// Workers, each a process of its own (or, on a store that lives in one process, a
// Locker of its own), take locks and work inside them while they are killed,
// stopped for longer than their leases, and cut off from the store. Everything
// they see is written to a history, and the history is judged by rules that do
// not ask the store: see [Rule]. What a store declares in its Guarantees decides
// what it is held to.
//
//	r, err := check.Run(ctx, check.Config{URL: "file:///var/lib/locks"})
//	if err != nil {
//		return err // the check could not be carried out
//	}
//	r.Summary(os.Stdout)
//	r.Explain(os.Stdout)
//
// Package checktest does this in a test, and `holdfast check` on the command
// line.
//
// # The history
//
// history.jsonl has one [Event] per line. Moments are nanoseconds on a clock that
// all processes of a machine share and nobody sets: CLOCK_BOOTTIME on Linux,
// CLOCK_MONOTONIC on macOS, both of which run through a suspend. Each worker
// writes a file of its own, a line per write, so that a kill costs no more than
// the line being written; they are put together at the end, in order of time.
//
// Each event stands on the side of the accused. A lock counts as held from the
// moment its holder had it, which is after the store gave it, to the first of:
// the moment before its holder let go, its loss, the moment before its process
// was killed, and the end of the trust it last told of. The clock is read before
// the trust that is left, so a pause between the two only makes it shorter. What
// is convicted on such a history is guilty; what is guilty for less than the
// microseconds in between may go free.
//
// # The verdict
//
// [Judge] asks each question twice where it can: a sweep over the whole history,
// which finds the events to show, and porcupine, which looks for any order of the
// operations that a sequential lock, or register, allows. A history is cut into
// pieces for porcupine where nothing can reach across; the comments at the cuts
// argue why.
//
// # The faults
//
// Of workers: kill (SIGKILL, then a new life), pause (SIGSTOP beyond the TTL),
// close (their Locker, while locks are held and awaited); for workers that are
// goroutines, vanish (the client is never heard of again). Of the link between a
// worker and its store: cut, drop-answers, delay. By an operator: break. A store
// that a run has started itself adds its own: the memory store's are those of its
// Script; see [StoreFault].
//
// # Seeds
//
// The same seed and configuration give the same schedule of work and of faults.
// They do not give the same history: what a machine makes of a schedule varies,
// so a rare fault may need a seed more than once.
package check
