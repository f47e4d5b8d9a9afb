// Package console writes the command's messages to standard error, without passwords. A message is one
// line. On a terminal there is also a status line, which the package rewrites.
package console

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/term"

	"github.com/holdfast-go/holdfast/internal/printable"
)

// writeTimeout is how long a sender waits until its message is written. The wait keeps the
// messages in order with the command's own output. It is limited, because the supervision of a
// lock must not wait for a full pipe or for a terminal that Ctrl-S has stopped.
const writeTimeout = 50 * time.Millisecond

// maxQueued limits the messages in the queue. Further ones are dropped.
const maxQueued = 1024

// Printer writes messages. Its methods may be called from any goroutine.
type Printer struct {
	queue   chan message
	written chan struct{} // closed after Flush, when all messages are written
	stuck   atomic.Bool

	mu       sync.Mutex
	flushed  bool
	width    func() int // returns the terminal's width; nil if there is no terminal
	rewrites bool       // the terminal can rewrite a line
	shown    bool       // the line of Status is shown
	secrets  []string
}

type message struct {
	text string
	done chan struct{}
}

// New returns a Printer that writes to a file.
func New(f *os.File) *Printer {
	p := newPrinter(f)
	if width, ok := Width(f); ok {
		p.width = func() int {
			if now, ok := Width(f); ok {
				return now
			}
			return width
		}
		p.rewrites = os.Getenv("TERM") != "dumb"
	}
	return p
}

// Width returns the width of the terminal w, and false if w is not a terminal.
func Width(w io.Writer) (int, bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, false
	}
	n, _, err := term.GetSize(f.Fd())
	if err != nil {
		return 0, false
	}
	if n <= 0 {
		n = 80 // the terminal does not report its width
	}
	return n, true
}

func newPrinter(w io.Writer) *Printer {
	p := &Printer{queue: make(chan message, maxQueued), written: make(chan struct{})}
	go func() {
		defer close(p.written)
		for m := range p.queue {
			_, _ = io.WriteString(w, m.text) // an error cannot be reported anywhere
			close(m.done)
			if len(p.queue) == 0 {
				p.stuck.Store(false)
			}
		}
	}()
	return p
}

// write is called with mu held.
func (p *Printer) write(text string) {
	if p.flushed {
		return
	}
	m := message{text, make(chan struct{})}
	select {
	case p.queue <- m:
	default:
		return
	}
	if p.stuck.Load() {
		return
	}
	t := time.NewTimer(writeTimeout)
	defer t.Stop()
	select {
	case <-m.done:
	case <-t.C:
		p.stuck.Store(true)
	}
}

// Flush waits until everything is written. Later messages are dropped.
func (p *Printer) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.flushed {
		p.flushed = true
		close(p.queue)
	}
	<-p.written
}

// Hide removes these strings from all later messages.
func (p *Printer) Hide(secrets []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.secrets = append(p.secrets, secrets...)
}

// Terminal reports whether standard error is a terminal.
func (p *Printer) Terminal() bool { return p.width != nil }

// Line writes one line.
func (p *Printer) Line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write(p.clear() + "holdfast: " + p.clean(fmt.Sprintf(format, args...)) + "\n")
}

// Status shows a line that the next call replaces. On a terminal that cannot rewrite a line,
// Status writes only the first one.
func (p *Printer) Status(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Terminal() || !p.rewrites && p.shown {
		return
	}
	text := "holdfast: " + p.clean(fmt.Sprintf(format, args...))
	if !p.rewrites {
		p.write(text + "\n")
		p.shown = true
		return
	}
	if r := []rune(text); len(r) >= p.width() {
		// A line that wraps cannot be rewritten.
		text = string(r[:max(p.width()-1, 0)])
	}
	p.write(clearLine + text)
	p.shown = true
}

// Done removes the line of Status.
func (p *Printer) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if clear := p.clear(); clear != "" {
		p.write(clear)
	}
}

const clearLine = "\r\x1b[K"

// clear returns the bytes that remove the line of Status, if it is shown.
func (p *Printer) clear() string {
	if !p.shown || !p.rewrites {
		return ""
	}
	p.shown = false
	return clearLine
}

// clean returns a message as one line. It removes passwords, and the prefix of the library's errors. Names and
// reasons come from other clients, so it escapes what could control this terminal.
func (p *Printer) clean(text string) string {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "holdfast: "), ": holdfast: ", ": ")
	text = printable.Redact(text, p.secrets...)
	return printable.Escape(joined(text))
}

// joined returns several lines as one, without repeated lines. Libraries report the errors of several
// attempts on several indented lines.
func joined(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var b strings.Builder
	seen := map[string]bool{}
	for i, line := range lines {
		line = strings.ReplaceAll(strings.TrimSpace(line), "\t", " ")
		switch {
		case line == "" || seen[line]:
			continue
		case i > 0 && strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		case i > 0:
			b.WriteString("; ")
		}
		b.WriteString(line)
		seen[line] = true
	}
	return b.String()
}
