//go:build linux || darwin

package proc

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a running command: the process that was started, its leader, and
// every descendant that stayed in the leader's process group.
//
// The leader's end is announced before it is reaped. Until Reap the system
// cannot give its number to anyone else, so that a signal for the group never
// reaches a stranger.
type Group struct {
	pid     int
	stopped chan syscall.Signal
	ended   chan struct{}
	reap    chan struct{}
	reaped  sync.Once
	gone    chan struct{}
	status  Status // set before gone is closed
}

// Start runs the command. If the terminal is given and this process is in its
// foreground, the command is born in the foreground.
func Start(c Command, t *Terminal) (*Group, error) {
	adoptOrphans()
	path, args := c.Path, c.Args
	if t.atStart() {
		if exe, err := self(); err == nil {
			path, args = exe, append([]string{exe, ForegroundArg, c.Path}, c.Args...)
			t.saveModes()
		} else {
			t = nil // it gets the terminal when it stops for want of it
		}
	} else {
		t = nil
	}
	pid, err := syscall.ForkExec(path, args, &syscall.ProcAttr{
		Env:   c.Env,
		Files: []uintptr{0, 1, 2},
		// No parent-death signal: it fires when the thread that forked exits, and
		// reaches one process of many.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return nil, notRunnable(c.Args[0], err)
	}
	if t != nil {
		t.given = true
	}
	g := &Group{
		pid:     pid,
		stopped: make(chan syscall.Signal, 1),
		ended:   make(chan struct{}),
		reap:    make(chan struct{}),
		gone:    make(chan struct{}),
	}
	go g.watch()
	return g, nil
}

// Stopped tells of the leader being stopped by a signal.
func (g *Group) Stopped() <-chan syscall.Signal { return g.stopped }

// Ended is closed when the leader has ended.
func (g *Group) Ended() <-chan struct{} { return g.ended }

// Reap is called after Ended; from then on the group counts as gone as soon as
// no process is left in it.
func (g *Group) Reap() { g.reaped.Do(func() { close(g.reap) }) }

// Gone is closed when no process of the group is left.
func (g *Group) Gone() <-chan struct{} { return g.gone }

// Status is how the leader ended, once Gone.
func (g *Group) Status() Status { return g.status }

// Signal sends a signal to the group. A group that has gone is no error.
func (g *Group) Signal(s syscall.Signal) error {
	select {
	case <-g.gone:
		return nil
	default:
	}
	if err := syscall.Kill(-g.pid, s); err != nil && err != syscall.ESRCH {
		return err
	}
	return nil
}

// watch is the only place that waits for children, and it waits for any: as the
// first process of a container, and as the one that orphans are handed to, this
// process has others than its own to reap.
func (g *Group) watch() {
	for {
		c, err := peek(g.pid)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			// Not reached while the leader is unreaped.
			panic("holdfast: waiting for the command: " + err.Error())
		case c.pid != g.pid:
			var ws syscall.WaitStatus
			_, _ = syscall.Wait4(c.pid, &ws, syscall.WNOHANG|syscall.WUNTRACED, nil)
		case c.stop:
			if sig, ok := takeStop(g.pid); ok {
				select {
				case g.stopped <- sig:
				default: // one is waiting to be looked at already
				}
			}
		default:
			g.finish()
			return
		}
	}
}

// finish reaps the leader and waits for the rest of its group.
func (g *Group) finish() {
	close(g.ended)
	<-g.reap
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(g.pid, &ws, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	if ws.Signaled() {
		g.status.Signal = ws.Signal()
	} else {
		g.status.Code = ws.ExitStatus()
	}
	// Nothing tells of the end of a group, and only a command that leaves
	// processes behind comes to the pause.
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		reapOrphans()
		if syscall.Kill(-g.pid, 0) == syscall.ESRCH {
			break
		}
		time.Sleep(pause)
	}
	if syscall.Getpid() == 1 {
		// When the first process of a container exits the rest is killed anyway;
		// the lock must not be free before.
		_ = syscall.Kill(-1, syscall.SIGKILL)
		for {
			if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && err != syscall.EINTR {
				break
			}
		}
	}
	close(g.gone)
}

func reapOrphans() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 && err != syscall.EINTR {
			return
		}
	}
}

func signalName(s syscall.Signal) string { return unix.SignalName(s) }
