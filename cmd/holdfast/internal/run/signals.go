package run

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
)

// ending are the signals that end a wait; a running command gets them like the others.
var ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// signals receives this process's signals from the beginning to the end, so that none is
// lost between two stages.
type signals struct {
	ch    chan os.Signal
	ended atomic.Int32 // the first signal that ended a wait
	stops []os.Signal  // the stop signals that were not ignored at the start
}

func listen() *signals {
	s := &signals{ch: make(chan os.Signal, 32)}
	catch := func(sig os.Signal) bool {
		// Under nohup, or behind a script's "&", HUP and INT are ignored and stay so, also
		// for the command. A Go program cannot see that of other signals.
		return !signal.Ignored(sig)
	}
	for _, sig := range append(forwarded(), ending...) {
		if catch(sig) {
			signal.Notify(s.ch, sig)
		}
	}
	for _, sig := range stopping() {
		if catch(sig) {
			s.stops = append(s.stops, sig)
		}
	}
	return s
}

// got adds a signal that came over the link. Like signal.Notify, it drops a signal if the
// queue is full.
func (s *signals) got(sig os.Signal) {
	select {
	case s.ch <- sig:
	default:
	}
}

// catchStops receives the terminal's stop signals as well, again after a stop: the command
// stops first.
func (s *signals) catchStops() {
	if len(s.stops) > 0 {
		signal.Notify(s.ch, s.stops...)
	}
}

// interrupt calls cancel at the first ending signal, and when gone is closed, until stop is
// called. suspend handles the terminal's stop signal. The other signals are for the command
// and have no effect before it runs.
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
					cancel(errSignal(n))
				case n == sigTstp:
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
