package run

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/redact"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/say"
	"github.com/holdfast-go/holdfast/driver"
)

// errFrontGone ends a wait after its front has died, errFrontStopped after a shell has
// stopped the front.
var (
	errFrontGone    = errors.New("holdfast run has died")
	errFrontStopped = errors.New("holdfast run is stopped")
)

// fore is the guardian's view of the front.
type fore struct {
	pid   int
	group int
	link  *link
	gone  chan struct{} // closed when it has died

	// onRequest answers a request of the front for the limit. Any goroutine may call it.
	onRequest atomic.Pointer[func()]

	mu        sync.Mutex
	goOn      chan struct{} // closed when it is continued; nil when it was not stopped
	leave     func()        // leaves the queue; nil when there is nothing to leave
	unread    atomic.Bool   // the front has not yet confirmed the last limit
	lastLimit atomic.Int64  // the last limit sent
}

// Guard runs the guardian: it takes the lock, runs the command, and returns the exit status.
// The words are those of proc.StartGuardian.
func Guard(words []string, p *say.Printer) int {
	if len(words) != 2 {
		words = []string{"", ""}
	}
	conn, err := proc.Become(words[0])
	if err != nil {
		p.Line("%v", err)
		return exit.Usage
	}
	sigs := listen()
	w, err := take(conn)
	if err != nil {
		return exit.Lost // the front has died already
	}
	p.Hide(redact.Secrets(string(w.Store)))
	f := &fore{pid: w.Front, group: w.FrontGroup, link: newLink(conn), gone: make(chan struct{})}
	go f.link.read()
	go f.listen(sigs)
	r := &runner{Options: w.options(), say: p, sigs: sigs, front: f}
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
func (f *fore) listen(sigs *signals) {
	defer close(f.gone)
	for m := range f.link.in {
		switch m.kind {
		case msgSignal:
			sigs.got(syscall.Signal(m.value))
		case msgContinue:
			f.mu.Lock()
			if f.goOn != nil {
				close(f.goOn)
				f.goOn = nil
			}
			f.mu.Unlock()
			sigs.got(sigCont)
		case msgConfirm:
			f.unread.Store(false)
		case msgRequestLimit:
			f.lastLimit.Store(0) // the next limit is sent in any case
			f.unread.Store(false)
			f.answerRequest()
		}
	}
}

// answerRequest answers the front's request for the end of the lock's validity.
func (f *fore) answerRequest() {
	if onRequest := f.onRequest.Load(); onRequest != nil {
		(*onRequest)()
	}
}

// dead reports whether the front has died.
func (f *fore) dead() bool {
	select {
	case <-f.gone:
		return true
	default:
		return false
	}
}

// suspend makes the front stop, as a shell expects of a job.
func (f *fore) suspend(sig syscall.Signal) { f.link.send(msgSuspend, int64(sig)) }

// suspendWaiting stops the front while no command runs that must stop first. The guardian is
// not stopped, because it may be in the middle of a request to the store. It leaves the
// queue, so that no other client waits for a stopped job.
func (f *fore) suspendWaiting(sig syscall.Signal) {
	f.mu.Lock()
	if f.goOn == nil {
		f.goOn = make(chan struct{})
	}
	if f.leave != nil {
		f.leave()
	}
	f.mu.Unlock()
	f.suspend(sig)
}

// whileWaiting sets the function that leaves the queue when the front is stopped, or nil. It
// reports whether the front is already stopped.
func (f *fore) whileWaiting(leave func()) (stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leave = leave
	return f.goOn != nil
}

// stopped reports whether the front was stopped and has not been continued.
func (f *fore) stopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.goOn != nil
}

// await returns when a stopped front is continued or has died, or when ctx ends.
func (f *fore) await(ctx context.Context) {
	f.mu.Lock()
	goOn := f.goOn
	f.mu.Unlock()
	if goOn == nil {
		return
	}
	select {
	case <-goOn:
	case <-f.gone:
	case <-ctx.Done():
	}
}

// setValidity sends until when the command may run, unless the front has not confirmed the
// last limit, because it is stopped.
func (f *fore) setValidity(left time.Duration) {
	if left == driver.Forever {
		return
	}
	until := proc.Boottime() + int64(left)
	// The call comes every second, and the limit differs after a renewal.
	if old := time.Duration(until - f.lastLimit.Load()); old.Abs() < time.Millisecond {
		return
	}
	if f.unread.CompareAndSwap(false, true) {
		f.sendLimit(until)
	}
}

// limit sends the limit in any case.
func (f *fore) limit(left time.Duration) { f.sendLimit(proc.Boottime() + int64(left)) }

// noLimit ends the front's supervision of the limit.
func (f *fore) noLimit() { f.sendLimit(0) }

func (f *fore) sendLimit(until int64) {
	f.lastLimit.Store(until)
	f.link.send(msgLimit, until)
}
