//go:build linux || darwin

package run

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// front is the process that the user has started. It handles the terminal's keys, the shell's job
// control, and the signals. The guardian holds the lock and runs the command.
type front struct {
	Options
	printer  *console.Printer
	sigs     *signals
	link     *link
	guardian *proc.Guardian

	command  int  // the command's number, once it was started
	done     bool // status is the exit status
	detached bool // the guardian continues without this process
	status   int

	validity  *time.Timer
	until     int64 // when the front kills the command, by proc.Boottime; 0 is never
	requested bool  // front has sent the guardian a request for a later limit
	killed    bool  // front has killed the command, because the guardian did not answer
}

// Run starts the guardian, which takes the lock and runs the command. Run returns the exit
// status.
func Run(o Options, p *console.Printer) int {
	f := &front{Options: o, printer: p, sigs: listen(), validity: newTimer()}
	f.sigs.catchStops()
	terminal := proc.OpenTerminal(proc.ProcessGroup())
	terminal.SaveModes()
	o.EndsWith = endsWith(o.Section)
	if o.Section != 0 {
		// The script expects that a pipe ends, and that the lock of flock is released, when it closes the descriptor.
		proc.CloseInherited()
	}
	g, conn, err := proc.StartGuardian(o.Name)
	if err != nil {
		p.Line("cannot start the guardian: %v", err)
		return exit.NotExecutable
	}
	orders := orders{
		Options: o, Store: []byte(o.Store), Path: []byte(o.Command.Path),
		Front: os.Getpid(), FrontGroup: proc.ProcessGroup(),
	}
	for _, a := range o.Command.Args {
		orders.Args = append(orders.Args, []byte(a))
	}
	f.guardian, f.link = g, newLink(conn)
	// An error here means that the guardian has died. The link then ends, and serve returns.
	_ = f.link.Encode(orders)
	go f.link.read()
	f.serve()
	if !f.done {
		f.abandoned()
		terminal.Reclaim()
	}
	return f.status
}

// endsWith names what ends the guardian together with this process, or with that of a section.
func endsWith(section int) string {
	pid := os.Getpid()
	unit, _ := strconv.Atoi(os.Getenv("SYSTEMD_EXEC_PID"))
	switch {
	case pid == 1:
		return "the end of process 1 ends every process of this container"
	case unit > 0 && (unit == pid || unit == os.Getppid() || unit == section):
		return fmt.Sprintf("the end of process %d ends every process of this unit of systemd (with KillMode=process it does not: then unset SYSTEMD_EXEC_PID)", unit)
	}
	return ""
}

// serve handles the guardian's messages and the signals. It returns when the guardian has ended and
// the front has read its last message, or when the guardian continues without the front.
func (f *front) serve() {
	in := f.link.in
	for in != nil && !f.detached {
		select {
		case sig := <-f.sigs.ch:
			f.signal(sig)
		case m, ok := <-in:
			if !ok {
				in = nil
				break
			}
			f.handle(m)
		case <-f.validity.C:
			f.checkGuardian()
		}
	}
	if !f.detached {
		<-f.guardian.Ended()
	}
}

// signal forwards a signal of this process to the guardian.
func (f *front) signal(sig os.Signal) {
	switch n, _ := sig.(syscall.Signal); n {
	case 0, syscall.SIGPIPE, syscall.SIGTTIN:
	case syscall.SIGCONT:
		f.continued()
	default:
		f.link.send(msgSignal, int64(n))
	}
}

func (f *front) handle(m message) {
	switch m.Kind {
	case msgSuspend:
		f.suspend(syscall.Signal(m.Value))
	case msgStarted:
		f.command = int(m.Value)
	case msgLimit:
		f.setLimit(m.Value)
		f.link.send(msgConfirm, 0)
	case msgHeld:
		f.sectionHeld(uint64(m.Value), m.Slot)
	case msgLeave:
		f.done, f.detached, f.status = true, true, int(m.Value)
	case msgDone:
		f.done, f.status = true, int(m.Value)
		if f.killed {
			f.status = exit.Lost // the guardian may have continued, and then released the lock with another status
		}
	}
}

// sectionHeld prints the lock of a section as shell code, and lets the front end.
func (f *front) sectionHeld(token uint64, slot int) {
	f.done, f.detached, f.status = true, true, exit.OK
	code := fmt.Sprintf("export %s=%s %s=%d %s=%s %s=%d", EnvName, quoted(f.Name), EnvToken, token,
		EnvHeld, quoted(f.heldBy(token)), EnvGuardian, f.guardian.PID)
	if slot >= 0 {
		code += fmt.Sprintf(" %s=%d", EnvSlot, slot)
	} else {
		code = "unset " + EnvSlot + "; " + code // that of an earlier section
	}
	if _, err := fmt.Println(code); err != nil {
		f.printer.Line("%v: %q is released", err, f.Name)
		f.guardian.Signal(syscall.SIGTERM)
		f.status = exit.Output
	}
}

// quoted returns s as one word of a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// suspend stops this process and its group, so that the shell gets the terminal.
func (f *front) suspend(sig syscall.Signal) {
	if !proc.Suspend(sig) {
		f.continued()
	}
}

func (f *front) continued() {
	f.sigs.catchStops()
	f.link.send(msgContinue, 0)
}

// The guardian ends the command before the lock's validity ends, or shortly after if too little
// time is left. It sends this limit to the front in advance. If the guardian is stopped, it does
// not end the command by the limit. Then the front kills the command.

// requestLead is the time before the limit at which the front requests a later limit from the guardian. If
// the front itself was stopped beyond the limit, it waits answerTimeout for the answer.
const (
	requestLead   = 250 * time.Millisecond
	answerTimeout = time.Second
)

// setLimit sets the time until which the command may run; 0 is no limit.
func (f *front) setLimit(until int64) {
	f.until, f.requested = until, false
	f.validity.Stop()
	if until != 0 && !f.killed {
		left := max(time.Duration(until-proc.Boottime()), 0)
		f.validity.Reset(left - min(requestLead, left/4))
	}
}

// checkGuardian requests a later limit when the limit is near, and kills the command after the
// limit.
func (f *front) checkGuardian() {
	left := time.Duration(f.until - proc.Boottime())
	switch {
	case !f.requested:
		f.requested = true
		f.link.send(msgRequestLimit, 0)
		if left <= 0 {
			left = answerTimeout // a later limit may be on its way
		}
		f.validity.Reset(left)
	case left > 0: // the timer was early
		f.validity.Reset(left)
	default:
		f.killed = true
		f.printer.Line("the guardian of %q (pid %d) does not answer, and the lock is no longer valid: the command is killed", f.Name, f.guardian.PID)
		f.guardian.KillTree(f.command)
	}
}

// abandoned handles a guardian that has ended without its last message: it kills the command and
// reports that.
func (f *front) abandoned() {
	how := f.guardian.Status()
	killed, denied := f.guardian.KillOrphans(f.command)
	if f.command == 0 && killed == 0 {
		f.printer.Line("waiting for %q: the guardian (pid %d) has ended: %s", f.Name, f.guardian.PID, how)
		f.status = how.Shell()
		if f.status == exit.OK {
			f.status = exit.Lost
		}
		return
	}
	f.status = exit.Lost
	f.printer.Line("the guardian of %q (pid %d) has ended (%s), and the lock with it: the command was killed, with all that it had started", f.Name, f.guardian.PID, how)
	for _, p := range denied {
		f.printer.Line("%s runs as another user and continues", p)
	}
}
