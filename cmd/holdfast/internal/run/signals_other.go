//go:build !unix

package run

import (
	"os"
	"syscall"
)

// This system does not have these signals. The numbers are never those of a received signal.
const (
	sigCont = syscall.Signal(-1)
	sigTstp = syscall.Signal(-2)
	sigTtin = syscall.Signal(-3)
	sigTtou = syscall.Signal(-4)
	sigPipe = syscall.SIGPIPE
)

func forwarded() []os.Signal { return nil }

func stopping() []os.Signal { return nil }
