//go:build linux || darwin

package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/driver"
)

// checkInterval is the longest interval between two checks of the remaining validity. The check repeats,
// because a timer does not advance while the machine is suspended.
const checkInterval = time.Second

// job is the work under a lock: a command, or the process of a section.
type job interface {
	PID() int
	Stopped() <-chan syscall.Signal
	Ended() <-chan struct{}
	Reap()
	Left() <-chan struct{}
	Gone() <-chan struct{}
	Status() proc.Status
	Signal(syscall.Signal) error
	SignalAll(syscall.Signal) ([]proc.Process, error)
	SignalLeavers(syscall.Signal) []proc.Process
}

// supervision controls a command from its start to its end, in one goroutine.
type supervision struct {
	*runner
	lock     *holdfast.Lock
	group    job
	terminal *proc.Terminal

	check  *time.Timer // the next check of the remaining validity
	kill   *time.Timer // the time of SIGKILL, set when the group has got its first signal
	killAt time.Time   // zero while kill is not set
	failed bool        // the lock was lost, or could not be kept
	ended  bool        // the command itself has ended
	// atTerminal is set if the command had the terminal when it ended.
	atTerminal   bool
	reportedKill bool
	denied       map[proc.Process]bool // the user has been warned of these processes
}

// killInterval is the interval at which the supervision repeats SIGKILL while a process is left, because
// processes may start while it searches for them.
const killInterval = 100 * time.Millisecond

// run supervises the command until no process of it is left, and returns the exit status.
func (s *supervision) run() int {
	send := func() { s.front.setValidity(s.lock.Remaining()) }
	s.front.onRequest.Store(&send)
	s.check, s.kill = newTimer(), newTimer()
	s.checkValidity()
	var limit <-chan time.Time
	if s.MaxHold > 0 {
		t := time.NewTimer(s.MaxHold)
		defer t.Stop()
		limit = t.C
	}
	var wanted <-chan struct{}
	if s.OnWanted != 0 {
		wanted = s.lock.Wanted()
	}
	ended, left, lost := s.group.Ended(), s.group.Left(), s.lock.Context().Done()
	front := s.front.gone
	if s.Section != 0 {
		front = nil // the front of a section ends as soon as the lock is held
	}
	for {
		select {
		case sig := <-s.sigs.ch:
			if s.Section != 0 && slices.Contains(ending, sig) && !s.failed {
				return exit.OK
			}
			s.forward(sig)
		case sig := <-s.group.Stopped():
			s.stopped(sig)
		case <-limit:
			if s.ended || s.failed {
				break
			}
			s.end(s.grace)
			s.printer.Line("the command has held %q for its maximum of %s: it gets SIGTERM, and SIGKILL in %s", s.Name, s.MaxHold, round(s.grace))
		case <-wanted:
			wanted = nil
			if !s.ended && s.killAt.IsZero() {
				s.printer.Line("another client waits for %q: the command gets %s", s.Name, proc.SignalName(s.OnWanted))
				s.signal(s.OnWanted)
			}
		case <-s.check.C:
			s.checkValidity()
		case <-lost:
			lost = nil
			s.lost()
		case <-s.kill.C:
			s.killAll()
		case <-ended:
			ended = nil
			s.leaderEnded()
		case <-left:
			left = nil
			s.leftBehind()
		case <-front:
			front = nil
			s.frontGone()
		case <-s.group.Gone():
			s.front.onRequest.Store(nil)
			s.front.noLimit()
			return s.status()
		}
	}
}

// newTimer makes a timer that is not set.
func newTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// checkValidity ends the command when the lock's remaining validity is no longer than the grace.
func (s *supervision) checkValidity() {
	left := s.lock.Remaining()
	if left == driver.Forever || s.failed {
		return
	}
	if s.lock.Context().Err() != nil {
		s.lost()
		return
	}
	if left > s.grace {
		if s.killAt.IsZero() {
			s.front.setValidity(left)
		}
		s.check.Reset(min(left-s.grace, checkInterval))
		return
	}
	s.failed = true
	// SIGKILL comes a little early, because a process needs a moment to end.
	left -= min(s.grace/10, 100*time.Millisecond)
	s.end(left)
	why := ""
	if e := s.renewal.Load(); e != nil && e.Err != nil {
		why = fmt.Sprintf(" (%v)", e.Err)
	}
	s.printer.Line("%q cannot be renewed%s and is valid for %s only: the command gets SIGTERM, and SIGKILL before that ends", s.Name, why, round(left))
}

// lost ends the command because the lock's context has ended.
func (s *supervision) lost() {
	var e *holdfast.LostError
	if !errors.As(context.Cause(s.lock.Context()), &e) {
		e = &holdfast.LostError{Cause: driver.CauseClosed}
	}
	within := s.grace
	if e.Cause == holdfast.CauseExpired || e.Cause == holdfast.CauseSlept {
		within = 0 // the grace has passed already
	}
	if s.failed && within > 0 {
		return // the command has got its signal, and the time of SIGKILL is set
	}
	first := !s.failed
	s.failed = true
	s.end(within)
	if !first {
		return
	}
	how := "SIGTERM, and SIGKILL in " + round(within)
	if within == 0 {
		how = "SIGKILL"
	}
	why := string(e.Cause)
	if e.Err != nil {
		why += ": " + e.Err.Error()
	}
	s.printer.Line("%q is lost (%s), token %d: the command gets %s", s.Name, why, s.lock.Token(), how)
}

// end sends SIGTERM to the command and its processes, and sets the time of SIGKILL. If within is 0, it
// sends SIGKILL at once. It does nothing if an earlier time is set.
func (s *supervision) end(within time.Duration) {
	at := time.Now().Add(within)
	first := s.killAt.IsZero()
	if !first && s.killAt.Before(at) {
		return
	}
	s.killAt = at
	if within <= 0 {
		s.killAll()
		return
	}
	s.killAfter(within)
	if first {
		s.terminate()
	}
}

// killAfter sets the time of SIGKILL. It also sends a limit to the front, for the case that this
// process is stopped. The limit is a little later, but not after the end of the lock's validity.
func (s *supervision) killAfter(within time.Duration) {
	s.kill.Reset(within)
	s.front.onRequest.Store(nil)
	deadline := within + time.Second
	if left := s.lock.Remaining(); left > within {
		deadline = min(deadline, left)
	}
	s.front.limit(deadline)
}

// terminate sends SIGTERM to the command and to all processes that it has started. SIGCONT
// continues the stopped ones, so that they handle SIGTERM.
func (s *supervision) terminate() {
	s.signalAll(syscall.SIGTERM)
	s.signalAll(syscall.SIGCONT)
}

// killAll sends SIGKILL to all processes. It sets the timer for the next call, because it has to
// repeat this until no process is left.
func (s *supervision) killAll() {
	s.front.noLimit()
	denied := s.signalAll(syscall.SIGKILL)
	if s.ended && !s.failed && !s.reportedKill {
		s.reportedKill = true
		switch {
		case proc.Blind():
			s.printer.Line("killed what the command left behind in its process group; without /proc the rest is invisible, and %q is kept until it ends", s.Name)
		case len(denied) == 0:
			s.printer.Line("killed what the command left behind")
		}
	}
	s.kill.Reset(killInterval)
}

func (s *supervision) signalAll(sig syscall.Signal) (denied []proc.Process) {
	denied, err := s.group.SignalAll(sig)
	if len(denied) == 0 && err != nil {
		s.cannot(sig, err)
	}
	s.warn(denied, sig)
	return denied
}

// warn reports the processes that this process has no right to signal, such as a command that has
// become another user. The guardian keeps the lock until they end, unless the lock is lost or in doubt.
func (s *supervision) warn(denied []proc.Process, sig syscall.Signal) {
	for _, p := range denied {
		if !s.denied[p] {
			if s.denied == nil {
				s.denied = map[proc.Process]bool{}
			}
			s.denied[p] = true
			then := fmt.Sprintf("%q is kept until it ends", s.Name)
			if s.failed {
				then = "it continues without the lock"
			}
			s.printer.Line("%s runs as another user and cannot be sent %s: %s", p, proc.SignalName(sig), then)
		}
	}
}

func (s *supervision) signal(sig syscall.Signal) {
	if err := s.group.Signal(sig); err != nil {
		s.cannot(sig, err)
	}
}

func (s *supervision) cannot(sig syscall.Signal, err error) {
	s.printer.Line("cannot send %s to the command: %v", proc.SignalName(sig), err)
}

func (s *supervision) forward(sig os.Signal) {
	switch n, _ := sig.(syscall.Signal); n {
	case 0, syscall.SIGPIPE, syscall.SIGTTIN:
	case syscall.SIGCONT:
		s.continued()
	default:
		s.signal(n)
	}
}

// stopped handles a command that was stopped. If the terminal stopped it, the front stops as well,
// so that the shell gets the terminal.
func (s *supervision) stopped(sig syscall.Signal) {
	if s.terminal == nil {
		return
	}
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if s.terminal.Wanted(s.group.PID()) {
			s.signal(syscall.SIGCONT)
			return
		}
	case syscall.SIGTSTP:
	default:
		return // the sender of SIGSTOP will send SIGCONT to the same process
	}
	s.terminal.TakeBack()
	s.front.suspend(sig)
}

// continued continues the command after the front or this process may have been stopped.
func (s *supervision) continued() {
	// The lock is checked first: if its validity ended meanwhile, the command must not continue.
	s.checkValidity()
	s.terminal.Lend(s.group.PID())
	s.signal(syscall.SIGCONT)
}

// frontGone ends the command because the front has died: no process could report how it ended.
func (s *supervision) frontGone() {
	// The front's parent may still run, and may need the terminal. A shell with job control has
	// taken the terminal already, and sets its own modes.
	if s.terminal.TakeBack() {
		s.terminal.RestoreModes()
	}
	if !s.killAt.IsZero() {
		return // SIGTERM was sent already, and the time of SIGKILL is set
	}
	s.printer.Line("holdfast run (pid %d) has died: its command gets SIGTERM, and SIGKILL in %s; then %q is released", s.front.pid, round(s.grace), s.Name)
	s.end(s.grace)
}

// leaderEnded handles the end of the command itself. Processes that it has started may still run.
func (s *supervision) leaderEnded() {
	s.ended = true
	s.atTerminal = s.terminal.TakeBack()
	// The command's process group gets the signals now, because before Reap no other process can
	// get the group's number. leftBehind signals the other descendants.
	s.signal(syscall.SIGTERM)
	s.signal(syscall.SIGCONT)
	s.group.Reap()
}

// leftBehind ends the processes that are left after the command itself has ended.
func (s *supervision) leftBehind() {
	s.warn(s.group.SignalLeavers(syscall.SIGTERM), syscall.SIGTERM)
	s.group.SignalLeavers(syscall.SIGCONT)
	switch {
	case s.killAt.IsZero():
		s.killAt = time.Now().Add(s.grace)
		s.killAfter(s.grace)
	case !time.Now().Before(s.killAt):
		s.killAll()
	}
}

// status returns the exit status of the whole run.
func (s *supervision) status() int {
	st := s.group.Status()
	if st.Signal != 0 && s.atTerminal {
		s.terminal.RestoreModes()
	}
	if s.failed {
		if s.Section == 0 { // the status of another process is unknown
			s.printer.Line("the command was ended because its lock was lost or in doubt; it had: %s", st)
		}
		return exit.Lost
	}
	return st.Shell()
}
