package servers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stallThreads stops the threads of a process whose names begin with name. They stay
// stopped until the caller calls resume. stallThreads needs no privileges if the process is
// a child of this one.
//
// Only the thread that has stopped another thread can resume it. So one goroutine, locked
// to its thread, does both.
func stallThreads(pid int, name string) (resume func(), err error) {
	stalled, over, done := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		stopped, err := stopThreads(pid, name)
		stalled <- err
		if err == nil {
			<-over
		}
		for _, tid := range stopped {
			_ = unix.PtraceDetach(tid) // the process may have been killed
		}
	}()
	if err := <-stalled; err != nil {
		<-done
		return nil, err
	}
	return func() { close(over); <-done }, nil
}

// stopThreads stops the threads for stallThreads. It returns the stopped ones, also with an error.
func stopThreads(pid int, name string) (stopped []int, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return nil, err
	}
	for _, t := range tasks {
		comm, err := os.ReadFile(filepath.Join(t, "comm"))
		if err != nil || !strings.HasPrefix(string(comm), name) {
			continue // the thread has ended, or has another name
		}
		tid, _ := strconv.Atoi(filepath.Base(t))
		if err := stopThread(tid); err != nil {
			return stopped, fmt.Errorf("servers: stopping thread %s of process %d: %w", strings.TrimSpace(string(comm)), pid, err)
		}
		stopped = append(stopped, tid)
	}
	if len(stopped) == 0 {
		return nil, fmt.Errorf("servers: process %d has no thread %s", pid, name)
	}
	return stopped, nil
}

func stopThread(tid int) error {
	if err := unix.PtraceSeize(tid); err != nil {
		return err
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return err
	}
	for {
		_, err := syscall.Wait4(tid, nil, unix.WALL, nil)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
