package run

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
)

// ending are the signals that end a wait; the command gets them like the others
// once it runs.
var ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// signals receives this process's signals from the beginning to the end, so that
// none falls between two of its stages.
type signals struct {
	ch    chan os.Signal
	ended atomic.Int32 // the first signal that ended a wait
	stops []os.Signal  // those of stopping that were not ignored at the start
}

func listen() *signals {
	s := &signals{ch: make(chan os.Signal, 32)}
	for _, sig := range append(forwarded(), ending...) {
		// Under nohup, or behind a script's "&", a signal is ignored and stays so,
		// for the command as well.
		if !signal.Ignored(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	for _, sig := range stopping() {
		if !signal.Ignored(sig) {
			s.stops = append(s.stops, sig)
		}
	}
	return s
}

// catchStops receives the terminal's stop signals as well, while a command runs
// that can be stopped: the stop key's is passed on, and neither stops this
// process before the command.
func (s *signals) catchStops() {
	if len(s.stops) > 0 {
		signal.Notify(s.ch, s.stops...)
	}
}

// interrupt cancels with the first ending signal, until stop is called. The
// other signals are for the command and come to nothing before it runs.
func (s *signals) interrupt(cancel context.CancelCauseFunc) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-s.ch:
				if slices.Contains(ending, sig) {
					s.ended.CompareAndSwap(0, int32(sig.(syscall.Signal)))
					cancel(errSignal(sig.(syscall.Signal)))
				}
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// interrupted is the signal that ended a wait, or 0.
func (s *signals) interrupted() syscall.Signal { return syscall.Signal(s.ended.Load()) }
