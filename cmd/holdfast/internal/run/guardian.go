//go:build linux || darwin

package run

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/printable"
)

// errFrontGone ends a wait whose front has died. errFrontStopped ends a wait whose front a shell
// has stopped.
var (
	errFrontGone    = errors.New("holdfast run has died")
	errFrontStopped = errors.New("holdfast run is stopped")
)

// remoteFront is the front as the guardian knows it: the link to it, and its state.
type remoteFront struct {
	pid   int
	group int
	link  *link
	gone  chan struct{} // closed when it has died

	// onRequest sends the limit when the front requests it. Any goroutine may call it.
	onRequest atomic.Pointer[func()]

	mu        sync.Mutex
	continued chan struct{} // closed when the front is continued; nil while it is not stopped
	leave     func()        // withdraws the queue entry; nil when there is none
	unread    atomic.Bool   // the front has not yet confirmed the last limit
	lastLimit atomic.Int64  // the last limit sent
}

// Guard runs the guardian: it takes the lock, runs the command, and returns the exit status.
// The words are the arguments that proc.StartGuardian passes after GuardianArg.
func Guard(words []string, p *console.Printer) int {
	if len(words) != 2 {
		words = []string{"", ""}
	}
	conn, err := proc.Become(words[0])
	if err != nil {
		p.Line("%v", err)
		return exit.Usage
	}
	sigs := listen()
	l := newLink(conn)
	var w orders
	if err := l.Decode(&w); err != nil {
		return exit.Lost // the front has died already
	}
	p.Hide(printable.Secrets(string(w.Store)))
	f := &remoteFront{pid: w.Front, group: w.FrontGroup, link: l, gone: make(chan struct{})}
	go f.link.read()
	go f.listen(sigs)
	r := &runner{Options: w.options(), printer: p, sigs: sigs, front: f}
	status, rest := r.run()
	if rest == nil {
		f.link.send(msgDone, int64(status))
		f.link.flush()
		return status
	}
	// A reader of the output must not wait for this process.
	p.Flush()
	proc.Detach(3)
	f.link.send(msgLeave, int64(status))
	f.link.flush()
	rest()
	return status
}

// listen handles the front's messages.
func (f *remoteFront) listen(sigs *signals) {
	defer close(f.gone)
	for m := range f.link.in {
		switch m.Kind {
		case msgSignal:
			sigs.add(syscall.Signal(m.Value))
		case msgContinue:
			f.mu.Lock()
			if f.continued != nil {
				close(f.continued)
				f.continued = nil
			}
			f.mu.Unlock()
			sigs.add(syscall.SIGCONT)
		case msgConfirm:
			f.unread.Store(false)
		case msgRequestLimit:
			f.lastLimit.Store(0) // so that setValidity sends the next limit even if it has not changed
			f.unread.Store(false)
			f.answerRequest()
		}
	}
}

// answerRequest sends the front the end of the lock's validity.
func (f *remoteFront) answerRequest() {
	if onRequest := f.onRequest.Load(); onRequest != nil {
		(*onRequest)()
	}
}

// dead reports whether the front has died.
func (f *remoteFront) dead() bool {
	select {
	case <-f.gone:
		return true
	default:
		return false
	}
}

// suspend makes the front stop itself, as a shell expects of a job.
func (f *remoteFront) suspend(sig syscall.Signal) { f.link.send(msgSuspend, int64(sig)) }

// suspendWaiting stops the front while the guardian waits for the lock and no command runs. The
// guardian itself does not stop, because a request to the store may be unfinished. It withdraws its
// queue entry, so that no other client waits for a stopped job.
func (f *remoteFront) suspendWaiting(sig syscall.Signal) {
	f.mu.Lock()
	if f.continued == nil {
		f.continued = make(chan struct{})
	}
	if f.leave != nil {
		f.leave()
	}
	f.mu.Unlock()
	f.suspend(sig)
}

// whileWaiting sets the function that withdraws the queue entry when the front is stopped; nil
// removes it. whileWaiting reports whether the front is already stopped.
func (f *remoteFront) whileWaiting(leave func()) (stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leave = leave
	return f.continued != nil
}

// stopped reports whether the front was stopped and has not been continued.
func (f *remoteFront) stopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.continued != nil
}

// await returns when a stopped front is continued or has died, or when ctx ends.
func (f *remoteFront) await(ctx context.Context) {
	f.mu.Lock()
	continued := f.continued
	f.mu.Unlock()
	if continued == nil {
		return
	}
	select {
	case <-continued:
	case <-f.gone:
	case <-ctx.Done():
	}
}

// setValidity sends the front the time until which the command may run. It sends nothing while the
// front has not confirmed the last limit, because then the front is probably stopped.
func (f *remoteFront) setValidity(left time.Duration) {
	if left == driver.Forever {
		return
	}
	until := proc.Boottime() + int64(left)
	// The caller calls this every second, but the limit changes only with a renewal.
	if old := time.Duration(until - f.lastLimit.Load()); old.Abs() < time.Millisecond {
		return
	}
	if f.unread.CompareAndSwap(false, true) {
		f.sendLimit(until)
	}
}

// limit sends the limit, even if the front has not confirmed the last one.
func (f *remoteFront) limit(left time.Duration) { f.sendLimit(proc.Boottime() + int64(left)) }

// noLimit ends the front's supervision of the limit.
func (f *remoteFront) noLimit() { f.sendLimit(0) }

func (f *remoteFront) sendLimit(until int64) {
	f.lastLimit.Store(until)
	f.link.send(msgLimit, until)
}
