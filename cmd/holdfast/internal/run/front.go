package run

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/say"
)

// front is the process that the user has started. It has the terminal's keys, its
// shell's job control and the signals; the lock and the command are the
// guardian's.
type front struct {
	Options
	say      *say.Printer
	sigs     *signals
	link     *link
	guardian *proc.Guardian

	command int // the command's number, once it was started
	done    bool
	left    bool // the guardian goes on without this process
	token   int64
	slot    int64
	status  int

	trust  *time.Timer
	until  int64 // the command may run until then, by proc.Boottime
	asked  bool  // the guardian, whether it may longer
	killed bool  // the command, because there was no answer
}

// Run starts the guardian, which takes the lock and runs the command, and answers
// the exit status.
func Run(o Options, p *say.Printer) int {
	f := &front{Options: o, say: p, sigs: listen(), trust: newTimer()}
	f.sigs.catchStops()
	terminal := proc.OpenTerminal(proc.ProcessGroup())
	terminal.SaveModes()
	g, conn, err := proc.StartGuardian(o.Name)
	if err != nil {
		p.Line("cannot start the guardian: %v", err)
		return exit.NotExecutable
	}
	orders := toOrders(o)
	orders.Front, orders.FrontGroup = os.Getpid(), proc.ProcessGroup()
	// A guardian that has died is seen by its end.
	_ = orders.give(conn)
	f.guardian, f.link = g, newLink(conn)
	go f.link.read()
	f.serve()
	if !f.done {
		f.abandoned()
		terminal.Reclaim()
	}
	return f.status
}

// serve returns when the guardian has ended and nothing more can be heard of it.
func (f *front) serve() {
	in := f.link.in
	for in != nil && !f.left {
		select {
		case sig := <-f.sigs.ch:
			f.signal(sig)
		case m, ok := <-in:
			if !ok {
				in = nil
				break
			}
			f.hear(m)
		case <-f.trust.C:
			f.unsure()
		}
	}
	if !f.left {
		<-f.guardian.Ended()
	}
}

// signal tells the guardian of one that this process got.
func (f *front) signal(sig os.Signal) {
	switch n, _ := sig.(syscall.Signal); n {
	case 0, sigPipe, sigTtin:
	case sigCont:
		f.continued()
	default:
		f.link.send(tellSignal, int64(n))
	}
}

func (f *front) hear(m message) {
	switch m.kind {
	case saySuspend:
		f.suspend(syscall.Signal(m.value))
	case sayStarted:
		f.command = int(m.value)
	case sayTrust:
		f.trusted(m.value)
		f.link.send(tellHeard, 0)
	case sayToken:
		f.token = m.value
	case saySlot:
		f.slot = m.value
	case sayHeld:
		f.held()
	case sayLeave:
		f.done, f.left, f.status = true, true, int(m.value)
	case sayDone:
		f.done, f.status = true, int(m.value)
		if f.killed {
			f.status = exit.Lost // the guardian may have come back in time for a release
		}
	}
}

// held prints what a shell makes of the lock of its section, and ends.
func (f *front) held() {
	f.done, f.left, f.status = true, true, exit.OK
	vars := []string{
		EnvName + "=" + quoted(f.Name), EnvToken + "=" + strconv.FormatInt(f.token, 10),
		EnvHeld + "=" + f.heldBy(), EnvGuardian + "=" + strconv.Itoa(f.guardian.PID),
	}
	if f.slot >= 0 {
		vars = append(vars, EnvSlot+"="+strconv.FormatInt(f.slot, 10))
	}
	if _, err := fmt.Println("export " + strings.Join(vars, " ")); err != nil {
		f.say.Line("%v: %q is released", err, f.Name)
		f.guardian.Signal(syscall.SIGTERM)
		f.status = exit.Output
	}
}

// quoted is s as a shell's word.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// suspend stops this process and its group, so that its shell takes over.
func (f *front) suspend(sig syscall.Signal) {
	if !proc.Suspend(sig) {
		f.continued()
	}
}

func (f *front) continued() {
	f.sigs.catchStops()
	f.link.send(tellGoOn, 0)
}

// The guardian ends the command before the lock ends, or, where it has less time
// than it would need, not much later. It says beforehand until when: when it has
// not done so by then, it is stopped, and this process does it.

// lead is how long before that the guardian is asked, and late how long a process
// that has been stopped itself waits for the answer.
const (
	lead = 250 * time.Millisecond
	late = time.Second
)

// trusted is told until when the command may run, 0 for as long as it likes.
func (f *front) trusted(until int64) {
	f.until, f.asked = until, false
	f.trust.Stop()
	if until != 0 && !f.killed {
		left := max(time.Duration(until-proc.Boottime()), 0)
		f.trust.Reset(left - min(lead, left/4))
	}
}

// unsure is called when that is nearly over.
func (f *front) unsure() {
	left := time.Duration(f.until - proc.Boottime())
	switch {
	case !f.asked:
		f.asked = true
		f.link.send(tellAsk, 0)
		if left <= 0 {
			left = late // news may be on its way
		}
		f.trust.Reset(left)
	case left > 0: // the timer was early
		f.trust.Reset(left)
	default:
		f.killed = true
		f.say.Line("the guardian of %q (pid %d) does not answer, and the lock is not sure any more: the command is killed", f.Name, f.guardian.PID)
		f.guardian.KillTree(f.command)
	}
}

// abandoned is called when the guardian has ended without a word.
func (f *front) abandoned() {
	how := f.guardian.Status()
	killed, denied := f.guardian.KillOrphans(f.command)
	if f.command == 0 && killed == 0 {
		f.say.Line("waiting for %q: the guardian (pid %d) has ended: %s", f.Name, f.guardian.PID, how)
		f.status = how.Shell()
		if f.status == exit.OK {
			f.status = exit.Lost
		}
		return
	}
	f.status = exit.Lost
	f.say.Line("the guardian of %q (pid %d) has ended (%s), and the lock with it: the command was killed, with all that it had started", f.Name, f.guardian.PID, how)
	for _, p := range denied {
		f.say.Line("%s runs as another user and goes on", p)
	}
}
