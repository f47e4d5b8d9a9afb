//go:build unix

package run

import (
	"os"
	"syscall"
)

// The job-control signals, by the names that every system has here.
const (
	sigCont = syscall.SIGCONT
	sigTstp = syscall.SIGTSTP
	sigTtin = syscall.SIGTTIN
	sigTtou = syscall.SIGTTOU
	sigPipe = syscall.SIGPIPE
)

// forwarded are the signals that the command gets. SIGPIPE is received so that a
// closed standard error does not kill this process, and goes no further.
func forwarded() []os.Signal {
	return []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, sigCont, sigPipe}
}

// stopping are the signals with which a terminal stops a job.
func stopping() []os.Signal { return []os.Signal{sigTstp, sigTtin} }
