package run

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/driver"
)

// look is the longest interval between two checks of the remaining validity: no timer
// detects a suspended machine.
const look = time.Second

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

	check  *time.Timer // of the remaining validity
	kill   *time.Timer // set when the group has got its first signal
	killAt time.Time   // zero while kill is not set
	failed bool        // the lock was lost, or could not be kept
	ended  bool        // the command itself has ended
	// atTerminal: the command had the terminal when it ended.
	atTerminal   bool
	reportedKill bool
	denied       map[proc.Process]bool // the user has been warned of these processes
}

// again is the interval of the search for processes to kill, while any is left: a process
// may start during a search.
const again = 100 * time.Millisecond

// run returns when no process is left.
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
	ended, left, lost := s.group.Ended(), s.group.Left(), s.lock.Context().Done()
	front := s.front.gone
	if s.Section != 0 {
		front = nil // it ends as soon as the lock is held
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
			s.say.Line("the command has held %q for its maximum of %s: it gets SIGTERM, and SIGKILL in %s", s.Name, s.MaxHold, round(s.grace))
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

// checkValidity ends the command while enough validity is left for that.
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
		s.check.Reset(min(left-s.grace, look))
		return
	}
	s.failed = true
	// A little early: a process needs a moment to die.
	left -= min(s.grace/10, 100*time.Millisecond)
	s.end(left)
	s.say.Line("%q cannot be renewed and is valid for %s only: the command gets SIGTERM, and SIGKILL before that ends", s.Name, round(left))
}

// lost is called when the lock's context has ended.
func (s *supervision) lost() {
	var e *holdfast.LostError
	if !errors.As(context.Cause(s.lock.Context()), &e) {
		e = &holdfast.LostError{Cause: driver.CauseClosed}
	}
	within := s.grace
	if e.Cause == holdfast.CauseExpired || e.Cause == holdfast.CauseSlept {
		within = 0 // the grace came before
	}
	if s.failed && within > 0 {
		return // it has got its signal, and the time is set
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
	s.say.Line("%q is lost (%s), token %d: the command gets %s", s.Name, why, s.lock.Token(), how)
}

// end sends the command the signal and sets the time of SIGKILL, if that is not set for
// earlier.
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

// killAfter sets the time of SIGKILL, also at the front, for the case that this process is
// stopped. The front's time is a little later, but not after the lock's end.
func (s *supervision) killAfter(within time.Duration) {
	s.kill.Reset(within)
	s.front.onRequest.Store(nil)
	deadline := within + time.Second
	if left := s.lock.Remaining(); left > within {
		deadline = min(deadline, left)
	}
	s.front.limit(deadline)
}

// terminate sends SIGTERM to the command and to all that it has started, also to stopped
// processes.
func (s *supervision) terminate() {
	s.signalAll(syscall.SIGTERM)
	s.signalAll(sigCont)
}

// killAll kills until no process is left.
func (s *supervision) killAll() {
	s.front.noLimit()
	denied := s.signalAll(syscall.SIGKILL)
	if s.ended && !s.failed && !s.reportedKill {
		s.reportedKill = true
		switch {
		case proc.Blind():
			s.say.Line("killed what the command left behind in its process group; without /proc the rest is invisible, and %q is kept until it ends", s.Name)
		case len(denied) == 0:
			s.say.Line("killed what the command left behind")
		}
	}
	s.kill.Reset(again)
}

func (s *supervision) signalAll(sig syscall.Signal) (denied []proc.Process) {
	denied, err := s.group.SignalAll(sig)
	if len(denied) == 0 && err != nil {
		s.cannot(sig, err)
	}
	s.warn(denied, sig)
	return denied
}

// warn reports the processes that a signal cannot be sent to, such as a command that became
// another user. The lock is kept as long as they run, if the store allows that.
func (s *supervision) warn(denied []proc.Process, sig syscall.Signal) {
	for _, p := range denied {
		if !s.denied[p] {
			if s.denied == nil {
				s.denied = map[proc.Process]bool{}
			}
			s.denied[p] = true
			s.say.Line("%s runs as another user and cannot be sent %s: %q is kept until it ends", p, proc.SignalName(sig), s.Name)
		}
	}
}

func (s *supervision) signal(sig syscall.Signal) {
	if err := s.group.Signal(sig); err != nil {
		s.cannot(sig, err)
	}
}

func (s *supervision) cannot(sig syscall.Signal, err error) {
	s.say.Line("cannot send %s to the command: %v", proc.SignalName(sig), err)
}

func (s *supervision) forward(sig os.Signal) {
	switch n, _ := sig.(syscall.Signal); n {
	case 0, sigPipe, sigTtin:
	case sigCont:
		s.continued()
	default:
		s.signal(n)
	}
}

// stopped is called when the command was stopped. If the terminal stopped it, the front
// stops as well, so that its shell takes over.
func (s *supervision) stopped(sig syscall.Signal) {
	if s.terminal == nil {
		return
	}
	switch sig {
	case sigTtin, sigTtou:
		if s.terminal.Wanted(s.group.PID()) {
			s.signal(sigCont)
			return
		}
	case sigTstp:
	default:
		return // the sender of SIGSTOP will send SIGCONT to the same process
	}
	s.terminal.TakeBack()
	s.front.suspend(sig)
}

// continued is called when the front may have been stopped, or this process.
func (s *supervision) continued() {
	// First the lock: if it expired meanwhile, the command must not continue.
	s.checkValidity()
	s.terminal.Lend(s.group.PID())
	s.signal(sigCont)
}

// frontGone is called when no front is left that could report how the command ended.
func (s *supervision) frontGone() {
	// The front's parent lives on, and may need the terminal. A shell with job control has
	// taken it already, and sets its own modes.
	if s.terminal.TakeBack() {
		s.terminal.RestoreModes()
	}
	if !s.killAt.IsZero() {
		return // the command is being ended already
	}
	s.say.Line("holdfast run (pid %d) has died: its command gets SIGTERM, and SIGKILL in %s; then %q is released", s.front.pid, round(s.grace), s.Name)
	s.end(s.grace)
}

// leaderEnded is called when the command itself has ended. Processes that it has started may
// still run.
func (s *supervision) leaderEnded() {
	s.ended = true
	s.atTerminal = s.terminal.TakeBack()
	// Its process group gets the signals now: before Reap no other process can get the
	// number of the group. leftBehind signals the other descendants.
	s.signal(syscall.SIGTERM)
	s.signal(sigCont)
	s.group.Reap()
}

// leftBehind is called when the command has ended and other processes have not.
func (s *supervision) leftBehind() {
	s.warn(s.group.SignalLeavers(syscall.SIGTERM), syscall.SIGTERM)
	s.group.SignalLeavers(sigCont)
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
		s.say.Line("the command was ended because its lock was lost or in doubt; it had: %s", st)
		return exit.Lost
	}
	return st.Shell()
}
