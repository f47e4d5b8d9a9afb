//go:build linux || darwin

package proc

import (
	"errors"
	"syscall"
)

// Section is a process that this one did not start: a shell that holds a lock for the rest of its
// script. This process is not its parent. So it sees neither the stops and the status of the section,
// nor the processes that the section leaves behind.
type Section struct{ course }

// Attach returns the Section of a process. It fails if the process has ended, or if this process
// cannot end it.
func Attach(pid int) (*Section, error) {
	// The system drops the signals that the first process of a PID namespace gets from inside it, also SIGKILL.
	if pid == 1 {
		return nil, errors.New("the first process of a container or machine gets no signal from inside, " +
			"so hold could not end it after a loss: use holdfast run, also as the first process")
	}
	if syscall.Kill(pid, 0) == syscall.EPERM {
		return nil, errors.New("holdfast has no right to signal this process, for example because it runs as another user, " +
			"so hold could not end it after a loss: use holdfast run")
	}
	s := &Section{course{pid: pid, ended: make(chan struct{}), reap: make(chan struct{}), gone: make(chan struct{})}}
	await, err := watchEnd(pid)
	if err == syscall.ESRCH {
		return nil, errors.New("there is no such process")
	}
	if err != nil {
		return nil, err
	}
	go func() {
		await()
		close(s.ended)
		<-s.reap
		close(s.gone)
	}()
	return s, nil
}

// Signal does nothing. The caller forwards the signals that the guardian received, and those are not for
// the process.
func (s *Section) Signal(syscall.Signal) error { return nil }

// SignalAll sends a signal to the process and to its descendants. It returns the processes that
// this process has no right to signal.
func (s *Section) SignalAll(sig syscall.Signal) ([]Process, error) {
	select {
	case <-s.ended:
		return nil, nil
	default:
		return signalSection(s.pid, sig)
	}
}

// SignalLeavers does nothing: Left is never closed for a section.
func (s *Section) SignalLeavers(syscall.Signal) []Process { return nil }
