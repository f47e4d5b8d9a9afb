// Package say writes what the command has to tell to standard error: lines, and
// on a terminal one line that is rewritten.
package say

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/redact"
)

// Printer writes messages. Its methods may be called from any goroutine.
type Printer struct {
	mu       sync.Mutex
	w        io.Writer
	width    func() int // of the terminal; nil if there is none
	rewrites bool       // the terminal can rewrite a line
	shown    bool       // a line that is to be rewritten stands there
	secrets  []string
}

// New makes a Printer on a file.
func New(f *os.File) *Printer {
	p := &Printer{w: f}
	if width, err := terminalWidth(f); err == nil && width > 0 {
		p.width = func() int {
			if now, err := terminalWidth(f); err == nil && now > 0 {
				return now
			}
			return width
		}
		p.rewrites = os.Getenv("TERM") != "dumb"
	}
	return p
}

// Hide keeps these strings out of all that follows.
func (p *Printer) Hide(secrets []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.secrets = append(p.secrets, secrets...)
}

// Terminal tells whether people are likely to be watching.
func (p *Printer) Terminal() bool { return p.width != nil }

// Line writes one line.
func (p *Printer) Line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintf(p.w, "holdfast: %s\n", p.clean(fmt.Sprintf(format, args...)))
}

// Status shows a line that the next call replaces: on a terminal that cannot
// rewrite, only the first is written.
func (p *Printer) Status(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Terminal() || !p.rewrites && p.shown {
		return
	}
	text := "holdfast: " + p.clean(fmt.Sprintf(format, args...))
	if !p.rewrites {
		fmt.Fprintln(p.w, text)
		p.shown = true
		return
	}
	if r := []rune(text); len(r) >= p.width() {
		// A line that wraps cannot be rewritten.
		text = string(r[:max(p.width()-1, 0)])
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	p.shown = true
}

// Done removes the line that Status shows.
func (p *Printer) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *Printer) clear() {
	if p.shown && p.rewrites {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// clean keeps a message on one line, without passwords, and without the prefix
// that the library puts on its errors.
func (p *Printer) clean(text string) string {
	text = strings.ReplaceAll(strings.TrimPrefix(text, "holdfast: "), ": holdfast: ", ": ")
	text = redact.Text(text, p.secrets...)
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			// Names and reasons are others' words: no control of this terminal.
			return '?'
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
}
