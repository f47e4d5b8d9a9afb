package console

import (
	"strings"
	"testing"
)

func newTest(width int, rewrites bool) (*Printer, *strings.Builder) {
	var b strings.Builder
	p := newPrinter(&b)
	p.rewrites = rewrites
	if width > 0 {
		p.width = func() int { return width }
	}
	return p, &b
}

func TestLineIsCleanAndComplete(t *testing.T) {
	p, b := newTest(0, false)
	p.Hide([]string{"hidden"})
	p.Line("%s", "holdfast: a://u:pw@h: holdfast: hidden\n\nof two:\n\tfirst\tone\n\tsecond \x1b]0;title\x07 line")
	p.Flush()
	if got, want := b.String(), "holdfast: a://u:xxxxx@h: xxxxx; of two: first one; second \\x1b]0;title\\a line\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestStatusFitsTheLine: Status rewrites its line. The line is never longer than the terminal is
// wide, and the Printer removes it before it writes another line.
func TestStatusFitsTheLine(t *testing.T) {
	p, b := newTest(20, true)
	p.Status("as long as this")
	p.Line("stays")
	p.Status("again")
	p.Done()
	p.Done()
	const clear = "\r\x1b[K"
	p.Flush()
	if got, want := b.String(), clear+"holdfast: as long a"+clear+"holdfast: stays\n"+clear+"holdfast: again"+clear; got != want {
		t.Errorf("%q, want %q", got, want)
	}

	p, b = newTest(20, false) // a terminal that cannot rewrite a line
	p.Status("only the first, whatever its length")
	p.Status("second")
	p.Done()
	p.Flush()
	if got, want := b.String(), "holdfast: only the first, whatever its length\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}

	p, b = newTest(0, true) // no terminal
	p.Status("nothing")
	p.Done()
	p.Flush()
	if b.Len() > 0 {
		t.Errorf("%q", b.String())
	}
}

// blocked is a writer that blocks until the test reads.
type blocked struct {
	text   strings.Builder
	reader chan struct{}
}

func (b *blocked) Write(p []byte) (int, error) {
	<-b.reader
	return b.text.Write(p)
}

// TestMessagesDoNotWaitForTheirReader: Line returns although no process reads the output. The queued
// messages arrive when a process reads again.
func TestMessagesDoNotWaitForTheirReader(t *testing.T) {
	b := &blocked{reader: make(chan struct{})}
	p := newPrinter(b)
	for range 3 * maxQueued {
		p.Line("line")
	}
	close(b.reader)
	p.Flush()
	p.Line("too late")
	// The Printer may write one message while the queue is full.
	if got := strings.Count(b.text.String(), "holdfast: line\n"); got != maxQueued+1 && got != maxQueued {
		t.Errorf("%d lines", got)
	}
	if strings.Contains(b.text.String(), "late") {
		t.Error("written after Flush")
	}
}
