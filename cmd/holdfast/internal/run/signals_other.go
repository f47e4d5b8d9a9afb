//go:build !unix

package run

import (
	"os"
	"syscall"
)

// Signals that this system does not have: numbers that never arrive.
const (
	sigCont = syscall.Signal(-1)
	sigTstp = syscall.Signal(-2)
	sigTtin = syscall.Signal(-3)
	sigTtou = syscall.Signal(-4)
	sigPipe = syscall.SIGPIPE
)

func forwarded() []os.Signal { return nil }

func stopping() []os.Signal { return nil }
