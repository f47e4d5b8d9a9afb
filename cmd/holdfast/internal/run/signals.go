//go:build linux || darwin

package run

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// ending contains the signals that end a wait or a section. A running command gets them like the
// other signals.
var ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// received contains all signals that this process receives. It forwards them to the command, except SIGPIPE,
// which it receives so that a closed standard error does not kill it.
var received = append([]os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGPIPE}, ending...)

// Named returns the signal that a name such as TERM or SIGUSR1 means, of those that end a command or that run forwards.
func Named(name string) (syscall.Signal, error) {
	var names []string
	for _, sig := range received {
		n := sig.(syscall.Signal)
		if n == syscall.SIGCONT || n == syscall.SIGPIPE {
			continue
		}
		short := strings.TrimPrefix(proc.SignalName(n), "SIG")
		if strings.TrimPrefix(strings.ToUpper(name), "SIG") == short {
			return n, nil
		}
		names = append(names, short)
	}
	return 0, fmt.Errorf("give one of %s", strings.Join(names, ", "))
}

// signals receives this process's signals from the start of the process to its end, so that no
// signal is lost between the wait and the command.
type signals struct {
	ch    chan os.Signal
	ended atomic.Int32 // the first signal that ended a wait
}

// listen begins to receive the signals, except for the stop signals (see catchStops).
func listen() *signals {
	s := &signals{ch: make(chan os.Signal, 32)}
	for _, sig := range received {
		// Under nohup, or behind a script's "&", HUP and INT are ignored. They stay ignored, also
		// for the command. For other signals a Go program cannot detect that they are ignored.
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	return s
}

// add adds a signal that came over the link. Like signal.Notify, it drops the signal if the
// channel is full.
func (s *signals) add(sig os.Signal) {
	select {
	case s.ch <- sig:
	default:
	}
}

// catchStops makes the front receive the terminal's stop signals, so that the command can stop
// first. The front calls it again after each stop.
func (s *signals) catchStops() { signal.Notify(s.ch, syscall.SIGTSTP, syscall.SIGTTIN) }

// interrupt handles the signals while no command runs. It calls cancel at a signal of ending, or
// when gone is closed, and suspend at SIGTSTP. It drops the other signals, which are for a command.
// It ends when the caller calls stop.
func (s *signals) interrupt(gone <-chan struct{}, cancel context.CancelCauseFunc, suspend func(syscall.Signal)) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-s.ch:
				n, _ := sig.(syscall.Signal)
				switch {
				case slices.Contains(ending, sig):
					s.ended.CompareAndSwap(0, int32(n))
					cancel(proc.Interrupted(n))
				case n == syscall.SIGTSTP:
					suspend(n)
				}
			case <-gone:
				gone = nil
				cancel(errFrontGone)
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// interrupted returns the signal that ended a wait, or 0.
func (s *signals) interrupted() syscall.Signal { return syscall.Signal(s.ended.Load()) }
