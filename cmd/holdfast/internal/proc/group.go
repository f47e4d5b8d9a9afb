//go:build linux || darwin

package proc

import (
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Group is a running command. It consists of its leader, which is the started process, and the
// leader's descendants in the same process group. If the system hands orphans to this process, the
// Group also includes the descendants outside that process group.
//
// The group announces the leader's end before it reaps the leader. Until Reap the system
// cannot give the leader's number to another process, so a signal for the group reaches no
// other process.
type Group struct {
	course

	mu     sync.Mutex // held while a signal is sent, and while the leader is reaped
	reaped bool
}

// course reports the course of a process, the leader of a Group or that of a Section.
type course struct {
	pid         int
	stopped     chan syscall.Signal // nil if its stops are not visible
	ended, reap chan struct{}
	once        sync.Once
	left        chan struct{} // nil if the processes that it leaves behind are not visible
	gone        chan struct{}
	status      Status // set before gone is closed
}

// Start runs the command. If a terminal is given and its owner is in the foreground, the
// command starts in the foreground.
func Start(c Command, t *Terminal) (*Group, error) {
	adoptOrphans()
	path, args := c.Path, c.Args
	if !t.atStart() {
		t = nil
	}
	if t != nil || len(c.OwnPID) > 0 {
		exe, err := self()
		if err != nil {
			return nil, notRunnable(c.Args[0], err)
		}
		tasks := c.OwnPID
		if t != nil {
			tasks = append(slices.Clone(tasks), foregroundTask)
			t.SaveModes()
		}
		path, args = exe, append([]string{exe, StepArg, strings.Join(tasks, ","), c.Path}, c.Args...)
	}
	pid, err := forkExec(path, args, c.Env)
	if err != nil {
		return nil, notRunnable(c.Args[0], err)
	}
	if t != nil {
		t.lentTo = pid
	}
	g := &Group{course: course{
		pid:     pid,
		stopped: make(chan syscall.Signal, 1),
		ended:   make(chan struct{}),
		reap:    make(chan struct{}),
		left:    make(chan struct{}),
		gone:    make(chan struct{}),
	}}
	go g.watch()
	return g, nil
}

// forkExec starts a process as the leader of a group of its own, with this
// process's standard streams.
func forkExec(path string, args, env []string) (pid int, err error) {
	defer heedOutputStops()()
	return syscall.ForkExec(path, args, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		// There is no parent-death signal, because the kernel sends it when the forking thread
		// exits, and sends it to only one process of the command.
		Sys: &syscall.SysProcAttr{Setpgid: true},
	})
}

// PID returns the number of the process, which is also that of a Group.
func (c *course) PID() int { return c.pid }

// Stopped returns the channel of the signals that stop the process.
func (c *course) Stopped() <-chan syscall.Signal { return c.stopped }

// Ended returns a channel that is closed when the process has ended.
func (c *course) Ended() <-chan struct{} { return c.ended }

// Reap lets a Group reap its leader. The caller calls it after Ended is closed. Gone is closed
// after Reap, when no process of the command is left.
func (c *course) Reap() { c.once.Do(func() { close(c.reap) }) }

// Left returns a channel that is closed if processes of the command are left after Reap.
func (c *course) Left() <-chan struct{} { return c.left }

// Gone returns a channel that is closed after Reap, when no process of the command is left.
func (c *course) Gone() <-chan struct{} { return c.gone }

// Status returns how the process ended. It is valid after Gone is closed.
func (c *course) Status() Status { return c.status }

// Signal sends a signal to the group. It returns no error if the group is gone.
func (g *Group) Signal(s syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped {
		return signalLeftInGroup(g.pid, s)
	}
	return signalGroup(g.pid, s)
}

func signalGroup(pgrp int, s syscall.Signal) error { return signalPID(-pgrp, s) }

// signalPID sends a signal to a process, or to a group if pid is negative. It returns no error if that is gone.
func signalPID(pid int, s syscall.Signal) error {
	if err := syscall.Kill(pid, s); err != nil && err != syscall.ESRCH {
		return err
	}
	return nil
}

// SignalAll sends a signal to the group and to the descendants that have left it. It returns
// the processes that this process has no right to signal.
func (g *Group) SignalAll(s syscall.Signal) (denied []Process, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	inGroup := !g.reaped
	if inGroup || !seesTree() {
		// The group signal reaches all members at once, also processes that are being
		// started. After the leader was reaped, the group keeps its number only while it has
		// members.
		err = signalGroup(g.pid, s)
	}
	denied = signalDescendants(syscall.Getpid(), s, g.pid, inGroup)
	return denied, err
}

// SignalLeavers sends a signal to the descendants outside the leader's group.
func (g *Group) SignalLeavers(s syscall.Signal) (denied []Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return signalDescendants(syscall.Getpid(), s, g.pid, true)
}

// watch waits for every child of this process, because a process that gets orphans must also reap
// them. No other function waits for children at the same time.
func (g *Group) watch() {
	for {
		c, err := peek(g.pid)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			// Not reached: the leader is a child that was not reaped yet.
			panic("holdfast: waiting for the command: " + err.Error())
		case c.pid != g.pid:
			var ws syscall.WaitStatus
			_, _ = syscall.Wait4(c.pid, &ws, syscall.WNOHANG|syscall.WUNTRACED, nil)
		case c.stop:
			if sig, ok := takeStop(g.pid); ok {
				select {
				case g.stopped <- sig:
				default: // the channel already has a stop that its reader has not received
				}
			}
		default:
			g.finish()
			return
		}
	}
}

// finish reaps the leader and waits for the other processes.
func (g *Group) finish() {
	close(g.ended)
	<-g.reap
	g.mu.Lock()
	ws := reapOne(g.pid)
	g.reaped = true
	g.mu.Unlock()
	g.status = statusOf(ws)
	awaitOthers(g.pid, func() { close(g.left) })
	close(g.gone)
}

// reapOne waits until a child has ended, reaps it, and returns its status.
func reapOne(pid int) (ws syscall.WaitStatus) {
	for {
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR {
			return ws
		}
	}
}

func statusOf(ws syscall.WaitStatus) Status {
	if ws.Signaled() {
		return Status{Signal: ws.Signal()}
	}
	return Status{Code: ws.ExitStatus()}
}

func signalName(s syscall.Signal) string { return unix.SignalName(s) }
