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
	faultKillLeader  = "kill-leader"
	// The faults of a server, or of the link between it and all its clients.
	faultCutServer     = "cut-server"
	faultSilenceServer = "silence-server"
	faultDropServer    = "drop-server-answers"
	faultDelayServer   = "delay-server"
	faultPauseServer   = "pause-server"
	faultKillServer    = "kill-server"
	// faultStall stops a server for 2 to 4 s. A server that keeps its queue does not change its
	// order then.
	faultStall = "stall-server"
	// faultRolling restarts the servers of a group one after another.
	faultRolling = "rolling-restart"
	// faultFull leaves a server no place for further connections. faultRevoke takes one of the rights of the
	// clients' user away.
	faultFull   = "refuse-connections"
	faultRevoke = "revoke-right"
	// faultPauseGateway stops a holdfast serve for longer than the TTL, and faultKillGateway kills it.
	faultPauseGateway = "pause-gateway"
	faultKillGateway  = "kill-gateway"
	// The faults of the link between it and its workers.
	faultCutGateway     = "cut-gateway"
	faultSilenceGateway = "silence-gateway"
	faultDropGateway    = "drop-gateway-answers"
	faultDelayGateway   = "delay-gateway"
)

// unreachable are the faults in which a holder hears nothing of its server.
var unreachable = []string{
	faultPause, faultCut, faultDrop,
	faultCutServer, faultSilenceServer, faultDropServer, faultPauseServer, faultKillServer, faultStall, faultRolling,
	faultPauseGateway, faultKillGateway, faultCutGateway, faultSilenceGateway, faultDropGateway,
}

// emptying are the faults in which a store loses data that it has kept, beside those that lose
// acknowledged writes.
var emptying = []string{"flush", "restart-empty", "evict-keys"}

// beyondTTL are the faults that last longer than the TTL.
var beyondTTL = []string{faultPause, faultPauseLeader, faultStallLeader, faultPauseGateway}

// processFaults need a worker in a process of its own.
var processFaults = []string{faultKill, faultPause}

// goroutineFaults replace processFaults if workers are goroutines.
var goroutineFaults = []string{faultVanish}

var workerFaults = []string{faultCut, faultDrop, faultDelay, faultClose}
