//go:build linux || darwin

package check

// The faults of a worker, or of the link between it and its store.
const (
	// faultKill is SIGKILL for a worker's process; a new process starts when the fault ends.
	// faultPause is SIGSTOP for longer than the TTL, then SIGCONT.
	faultKill  = "kill"
	faultPause = "pause"
	// faultCut stops requests and answers of one worker. faultDrop loses its next answers,
	// after the store has executed the requests. faultDelay delays both.
	faultCut   = "cut"
	faultDrop  = "drop-answers"
	faultDelay = "delay"
	// faultClose closes a working Locker and opens another.
	faultClose = "close"
	// faultVanish is a kill as the store sees it, for a worker without a process of its own:
	// its client sends nothing more. The worker continues with another client.
	faultVanish = "vanish"
	// faultBreak breaks a lock like an operator.
	faultBreak = "break"
	// faultHeal ends a fault of the link. It is not planned.
	faultHeal = "heal"
	// faultPauseLeader is SIGSTOP for the leading server, and faultStallLeader stops the
	// writes to its disk, both for longer than the TTL.
	faultPauseLeader = "pause-leader"
	faultStallLeader = "stall-disk"
)

// beyondTTL are the faults that last longer than the TTL.
var beyondTTL = []string{faultPause, faultPauseLeader, faultStallLeader}

// processFaults need a process of its own.
var processFaults = []string{faultKill, faultPause}

// goroutineFaults replace them if workers are goroutines.
var goroutineFaults = []string{faultVanish}

var workerFaults = []string{faultCut, faultDrop, faultDelay, faultClose}
