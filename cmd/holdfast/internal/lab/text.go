//go:build linux || darwin

package lab

import (
	"fmt"
	"io"
	"strings"

	"github.com/holdfast-go/holdfast/internal/story"
)

// Text draws the result for a terminal of 79 columns, in at most 25 lines, with the time
// downwards. Each client has a column, and the server's answers are between them. A thick
// line marks a client that relies on the lock. If ascii is set, the drawing has only ASCII
// characters.
func (r *Result) Text(w io.Writer, ascii bool) error {
	g := strings.NewReplacer()
	if ascii {
		g = strings.NewReplacer("│", "|", "─", "-", "▶", ">", "◀", "<", "✗", "x", "✓", "+", "█", "#")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", r.Story.Name, r.Mistake.Title)
	part := func(title string, run *Run) {
		b.WriteString("── " + title + " " + strings.Repeat("─", 75-len(title)) + "\n")
		for i := range run.Steps {
			b.WriteString(run.Steps[i].Line() + "\n")
		}
		mark := "✓"
		if run.Violated {
			mark = "✗"
		}
		b.WriteString(mark + " " + run.Outcome + "\n")
	}
	b.WriteString(story.Head(r.Story.Server))
	part("wrong: "+r.Story.Code, &r.Wrong)
	part("holdfast", &r.Right)
	if r.Wrong.Stalls {
		b.WriteString(Stalls + "\n")
	}
	b.WriteString(wrap("Instead: "+r.Mistake.Instead, 79))
	if r.Mistake.Checked() {
		b.WriteString("A check convicts this mistake: holdfast lab " + r.Mistake.Name + "\n")
	}
	_, err := io.WriteString(w, g.Replace(b.String()))
	return err
}

// wrap breaks a text into lines of at most width characters.
func wrap(s string, width int) string {
	var b strings.Builder
	n := 0
	for i, word := range strings.Fields(s) {
		switch {
		case i == 0:
		case n+1+len(word) > width:
			b.WriteString("\n")
			n = 0
		default:
			b.WriteString(" ")
			n++
		}
		b.WriteString(word)
		n += len(word)
	}
	return b.String() + "\n"
}
