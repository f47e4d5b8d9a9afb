//go:build unix

package run

import (
	"os"
	"syscall"
)

// The job-control signals. signals_other.go defines the same names for other systems.
const (
	sigCont = syscall.SIGCONT
	sigTstp = syscall.SIGTSTP
	sigTtin = syscall.SIGTTIN
	sigTtou = syscall.SIGTTOU
	sigPipe = syscall.SIGPIPE
)

// forwarded returns the signals that this process receives and forwards to the command. It does not
// forward SIGPIPE; it receives it so that a closed standard error does not kill this process.
func forwarded() []os.Signal {
	return []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, sigCont, sigPipe}
}

// stopping returns the signals with which a terminal stops a job.
func stopping() []os.Signal { return []os.Signal{sigTstp, sigTtin} }
