//go:build linux || darwin

package check

// The faults that a worker, or the link between it and its store, can have.
const (
	// faultKill is SIGKILL for a worker's process, which is started anew when the
	// fault ends. faultPause is SIGSTOP for longer than the TTL, then SIGCONT.
	faultKill  = "kill"
	faultPause = "pause"
	// faultCut lets neither requests nor answers of one worker pass. faultDrop
	// loses its next answers, after the store has done what was asked. faultDelay
	// makes both late.
	faultCut   = "cut"
	faultDrop  = "drop-answers"
	faultDelay = "delay"
	// faultClose closes a worker's Locker while it is at work, and opens another.
	faultClose = "close"
	// faultVanish is what the store sees of a kill, for a worker that is no process
	// of its own: from one moment on nothing comes from its client any more. The
	// worker goes on with another.
	faultVanish = "vanish"
	// faultBreak takes a lock away as an operator would.
	faultBreak = "break"
	// faultHeal ends a fault of the link. It is not planned.
	faultHeal = "heal"
	// faultPauseLeader is SIGSTOP for the server that leads, and faultStallLeader keeps
	// its disk from taking anything, for longer than the TTL.
	faultPauseLeader = "pause-leader"
	faultStallLeader = "stall-disk"
)

// beyondTTL are the faults that last longer than the TTL.
var beyondTTL = []string{faultPause, faultPauseLeader, faultStallLeader}

// processFaults need a process of its own.
var processFaults = []string{faultKill, faultPause}

// goroutineFaults stand in for them where workers are goroutines.
var goroutineFaults = []string{faultVanish}

// workerFaults apply to every store.
var workerFaults = []string{faultCut, faultDrop, faultDelay, faultClose}
