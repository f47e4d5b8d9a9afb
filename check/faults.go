//go:build linux || darwin

package check

// The faults of a worker, or of the link between it and its store.
const (
	// faultKill kills a worker's process with SIGKILL, and ends with the start of a new
	// process. faultPause stops the process with SIGSTOP for longer than the TTL, then
	// sends SIGCONT.
	faultKill  = "kill"
	faultPause = "pause"
	// faultCut stops the requests and answers of one worker. faultDrop loses the worker's
	// next answers, after the store has executed the requests. faultDelay delays requests
	// and answers.
	faultCut   = "cut"
	faultDrop  = "drop-answers"
	faultDelay = "delay"
	// faultClose closes a worker's Locker in use and opens another.
	faultClose = "close"
	// faultVanish has the effect of a kill on the store, for a worker without a process of
	// its own. The worker's client sends nothing more, and the worker continues with
	// another client.
	faultVanish = "vanish"
	// faultBreak breaks a lock as an operator does.
	faultBreak = "break"
	// faultHeal ends a fault of the link. A plan never contains it.
	faultHeal = "heal"
	// faultPauseLeader stops the leading server with SIGSTOP, and faultStallLeader stops
	// the writes to its disk. Both last longer than the TTL.
	faultPauseLeader = "pause-leader"
	faultStallLeader = "stall-disk"
	// The faults of a server, or of the link between it and all its clients.
	faultCutServer     = "cut-server"
	faultSilenceServer = "silence-server"
	faultDropServer    = "drop-server-answers"
	faultPauseServer   = "pause-server"
	faultKillServer    = "kill-server"
)

// unreachable are the faults in which a holder hears nothing of its server.
var unreachable = []string{
	faultPause, faultCut, faultDrop,
	faultCutServer, faultSilenceServer, faultDropServer, faultPauseServer, faultKillServer,
}

// beyondTTL are the faults that last longer than the TTL.
var beyondTTL = []string{faultPause, faultPauseLeader, faultStallLeader}

// processFaults need a worker in a process of its own.
var processFaults = []string{faultKill, faultPause}

// goroutineFaults replace processFaults if workers are goroutines.
var goroutineFaults = []string{faultVanish}

var workerFaults = []string{faultCut, faultDrop, faultDelay, faultClose}
