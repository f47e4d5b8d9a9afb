//go:build linux || darwin

package run

import (
	"encoding/json"
	"os"
	"sync"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

// kind is the kind of a message between the front and the guardian. The messages go over a socket
// pair. Before its first message, the front sends the orders to the guardian.
type kind byte

const (
	// The front sends these to the guardian.
	msgSignal       kind = iota + 1 // the front received this signal
	msgContinue                     // the front was continued, or cannot be stopped
	msgConfirm                      // the front has received msgLimit
	msgRequestLimit                 // the front requests msgLimit

	// The guardian sends these to the front.
	msgSuspend // stop, with this signal of the terminal
	msgStarted // the process ID of the command, which is also the ID of its group
	msgLimit   // the deadline of the command, by proc.Boottime; 0 is forever
	msgHeld    // a section may begin, with this token: the front ends, the guardian continues
	msgDone    // the run has ended with this status
	msgLeave   // end with this status: the guardian continues without the front
)

type message struct {
	Kind  kind
	Value int64
	Slot  int // of msgHeld: the slot of the lock, -1 without one
}

// link is one end of the socket pair, over which JSON goes. A read returns the end of file when the process at
// the other end has died in any way, because no third process has the socket open.
type link struct {
	*json.Decoder
	*json.Encoder
	in   chan message // the received messages; closed when the other process has died
	mu   sync.Mutex
	out  chan message  // nil once closed
	sent chan struct{} // closed when flush was called and all messages are written
}

// queued limits the messages that wait for a stopped process. A further signal is lost, which is
// acceptable, because the system coalesces signals as well. Other messages do not fill the queue:
// they are few, or the sender waits for an answer before it sends the next one.
const queued = 64

// newLink starts the writing of messages. The caller starts read. Before that, and before the first message, the front
// encodes the orders, and the guardian decodes them.
func newLink(f *os.File) *link {
	l := &link{Decoder: json.NewDecoder(f), Encoder: json.NewEncoder(f), in: make(chan message), out: make(chan message, queued), sent: make(chan struct{})}
	go l.write(l.out)
	return l
}

// read delivers the other end's messages, and closes in when that process has died.
func (l *link) read() {
	defer close(l.in)
	for {
		var m message
		if l.Decode(&m) != nil {
			return
		}
		l.in <- m
	}
}

func (l *link) write(out chan message) {
	defer close(l.sent)
	for m := range out {
		_ = l.Encode(m) // the other process may have died; read reports that
	}
}

// send queues a message. It never waits, and drops a message beyond queued.
func (l *link) send(k kind, value int64) { l.queue(message{Kind: k, Value: value}) }

func (l *link) queue(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.out <- m:
	default:
	}
}

// flush waits until all messages are written. send does nothing after it.
func (l *link) flush() {
	l.mu.Lock()
	out := l.out
	l.out = nil
	l.mu.Unlock()
	close(out)
	<-l.sent
}

// orders contains the Options that the front sends to the guardian, as JSON. The store's URL and the
// command need not be valid UTF-8. They are bytes here, because JSON would change them as text.
type orders struct {
	Options
	Store, Path       []byte // of Options, and of its Command
	Args              [][]byte
	Front, FrontGroup int
}

func (w orders) options() Options {
	o := w.Options
	o.Store, o.Command = string(w.Store), proc.Command{Path: string(w.Path), Env: os.Environ()}
	for _, a := range w.Args {
		o.Command.Args = append(o.Command.Args, string(a))
	}
	return o
}
