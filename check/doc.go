// Package check runs a torture test of a holdfast store and judges the history of the run.
//
// Workers take locks and work inside them. Each worker is a process of its own, or, on a
// store inside one process, a Locker of its own. Meanwhile the check kills workers, stops
// them for longer than their leases, and disconnects them from the store. The workers and
// the check record everything in a history. [Judge] applies rules to the history that do
// not depend on the store: see [Rule]. The Guarantees that a store declares decide which
// rules apply to it.
//
//	r, err := check.Run(ctx, check.Config{URL: "file:///var/lib/locks"})
//	if err != nil {
//		return err // the check could not run
//	}
//	r.Summary(os.Stdout)
//	r.Explain(os.Stdout)
//
// Package checktest runs a check in a test. `holdfast check` runs one on the command line.
//
// # The history
//
// history.jsonl has one [Event] per line. Moments are nanoseconds on a clock that all
// processes of a machine share and no program can set. It is CLOCK_BOOTTIME on Linux and
// CLOCK_MONOTONIC on macOS; both continue during a suspend. Each worker writes a file of its
// own, a line per write, so that a kill loses at most the line being written. At the end the
// check merges the files in order of time.
//
// The recorded times favour the store. A lock counts as held from the moment its holder
// received it, which is after the store granted it. It counts until the first of these
// moments: just before its release, its loss, just before the kill of its process, the last
// recorded end of its validity. The worker reads the clock before it reads the remaining validity. So a
// pause between the two only makes the recorded validity shorter. A violation that such a
// history shows is certain. A violation that lasts only microseconds may stay hidden.
//
// # The verdict
//
// [Judge] sweeps over the whole history and finds the violations, and the events that show
// them. It decides in a second way whether a lock is exclusive and its tokens rise: whether
// there is an order of its grants and ends that a sequential lock allows. For the values,
// porcupine searches for an order.
//
// # The faults
//
// The faults of workers are kill (SIGKILL, then a new process), pause (SIGSTOP beyond the
// TTL) and close. The fault close closes a Locker while locks are held and awaited. A worker
// without a process of its own has the fault vanish instead of kill and pause: the store
// receives nothing more from the worker's client. The faults of the link between a worker and its store are cut,
// drop-answers and delay. The fault break breaks a lock as an operator does. A store that
// the run has started adds its own faults: see [StoreFault].
//
// # Seeds
//
// The same seed and configuration give the same schedule of work and of faults. They do not
// give the same history, because the timing on the machine varies. A rare violation may need
// several runs of its seed.
package check
