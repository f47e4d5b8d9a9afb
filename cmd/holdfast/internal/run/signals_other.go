//go:build !unix

package run

import (
	"os"
	"syscall"
)

// signals_unix.go documents these names. Systems other than Unix have no job control. No signal that
// this process receives has a negative number, and it does not receive SIGPIPE.
const (
	sigCont = syscall.Signal(-1)
	sigTstp = syscall.Signal(-2)
	sigTtin = syscall.Signal(-3)
	sigTtou = syscall.Signal(-4)
	sigPipe = syscall.SIGPIPE
)

func forwarded() []os.Signal { return nil }

func stopping() []os.Signal { return nil }
