//go:build linux || darwin

package proc

import (
	"sync"
	"syscall"
)

// Section is a process that this one did not start, and which ends by itself: a shell
// that has taken a lock for the rest of its script.
type Section struct {
	pid   int
	ended chan struct{}
	once  sync.Once
	gone  chan struct{}
}

// Attach watches over a process. It fails if there is none with this number.
func Attach(pid int) (*Section, error) {
	s := &Section{pid: pid, ended: make(chan struct{}), gone: make(chan struct{})}
	await, err := watchEnd(pid)
	if err != nil {
		return nil, err
	}
	go func() {
		await()
		close(s.ended)
	}()
	return s, nil
}

// PID is the process's number.
func (s *Section) PID() int { return s.pid }

// Stopped is nil: this process does not learn of it.
func (s *Section) Stopped() <-chan syscall.Signal { return nil }

// Ended is closed when the process has ended.
func (s *Section) Ended() <-chan struct{} { return s.ended }

// Reap is called after Ended.
func (s *Section) Reap() { s.once.Do(func() { close(s.gone) }) }

// Left is nil: what the process leaves behind is not seen.
func (s *Section) Left() <-chan struct{} { return nil }

// Gone is closed by Reap.
func (s *Section) Gone() <-chan struct{} { return s.gone }

// Status is not known to this process, which is not the parent.
func (s *Section) Status() Status { return Status{} }

// Signal does nothing: no caller sends a section a signal through its guardian.
func (s *Section) Signal(syscall.Signal) error { return nil }

// SignalAll sends a signal to the process and to its descendants, and returns those
// that this process has no right to send it to.
func (s *Section) SignalAll(sig syscall.Signal) ([]Process, error) {
	select {
	case <-s.ended:
		return nil, nil
	default:
		return signalSection(s.pid, sig)
	}
}

// SignalLeavers does nothing.
func (s *Section) SignalLeavers(syscall.Signal) []Process { return nil }

// Exists reports whether there is a process with this number.
func Exists(pid int) bool { return syscall.Kill(pid, 0) != syscall.ESRCH }
