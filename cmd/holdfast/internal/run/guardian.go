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

// errFrontGone ends a wait for a front that has died, errFrontStopped for one that
// its shell has stopped.
var (
	errFrontGone    = errors.New("holdfast run has died")
	errFrontStopped = errors.New("holdfast run is stopped")
)

// fore is the front as its guardian sees it.
type fore struct {
	pid   int
	group int
	link  *link
	gone  chan struct{} // closed when it has died

	// ask is what answers a question of the front's; it may be called from any
	// goroutine.
	ask atomic.Pointer[func()]

	mu     sync.Mutex
	goOn   chan struct{} // closed when it goes on; nil when it was not stopped
	leave  func()        // leaves the queue; nil when there is nothing to leave
	unread atomic.Bool   // it has not yet heard what it was told of the trust
	told   atomic.Int64  // what that was
}

// Guard is the guardian: it takes the lock, runs the command, and answers the
// exit status. The words are those that proc.StartGuardian gives it.
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
		f.link.send(sayDone, int64(status))
		f.link.flush()
		return status
	}
	// A reader of the output must not wait for this process.
	p.Flush()
	proc.Detach(3)
	f.link.send(sayLeave, int64(status))
	f.link.flush()
	rest()
	return status
}

// listen passes on what the front tells.
func (f *fore) listen(sigs *signals) {
	defer close(f.gone)
	for m := range f.link.in {
		switch m.kind {
		case tellSignal:
			sigs.got(syscall.Signal(m.value))
		case tellGoOn:
			f.mu.Lock()
			if f.goOn != nil {
				close(f.goOn)
				f.goOn = nil
			}
			f.mu.Unlock()
			sigs.got(sigCont)
		case tellHeard:
			f.unread.Store(false)
		case tellAsk:
			f.told.Store(0) // it is to be told again
			f.unread.Store(false)
			f.asked()
		}
	}
}

func (f *fore) asked() {
	if ask := f.ask.Load(); ask != nil {
		(*ask)()
	}
}

// dead tells whether the front has died.
func (f *fore) dead() bool {
	select {
	case <-f.gone:
		return true
	default:
		return false
	}
}

// suspend has the front stop, as a shell expects of a job.
func (f *fore) suspend(sig syscall.Signal) { f.link.send(saySuspend, int64(sig)) }

// suspendWaiting has it stop while nothing runs that could be stopped first. This
// process is not stopped: it could be in the middle of something at the store. It
// leaves the queue, so that nobody waits for a stopped job.
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

// whileWaiting sets what leaves the queue when the front is stopped, or nil. It
// answers whether that is so already.
func (f *fore) whileWaiting(leave func()) (stopped bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leave = leave
	return f.goOn != nil
}

// stopped tells whether it was told to stop and has not gone on.
func (f *fore) stopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.goOn != nil
}

// await returns when the front goes on, if it was told to stop, or has died, or
// when ctx ends.
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

// trust tells until when the command may run, unless the front, because it is
// stopped, has not heard the last news.
func (f *fore) trust(left time.Duration) {
	if left == driver.Forever {
		return
	}
	until := proc.Boottime() + int64(left)
	// It comes every second, and is news when the lock has been renewed.
	if old := time.Duration(until - f.told.Load()); old.Abs() < time.Millisecond {
		return
	}
	if f.unread.CompareAndSwap(false, true) {
		f.tell(until)
	}
}

// limit tells it in any case.
func (f *fore) limit(left time.Duration) { f.tell(proc.Boottime() + int64(left)) }

// noLimit: there is nothing to watch over any more.
func (f *fore) noLimit() { f.tell(0) }

func (f *fore) tell(until int64) {
	f.told.Store(until)
	f.link.send(sayTrust, until)
}
