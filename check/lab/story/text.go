//go:build linux || darwin

package story

import (
	"fmt"
	"io"
	"strings"
)

// The widths of a client's column and of the server's. With the three lifelines a line has
// 79 characters.
const (
	sideWidth   = 29
	middleWidth = 17
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
	fmt.Fprintf(&b, "%s: %s\n", r.Story.Name, r.Story.Title)
	part := func(title string, run *Run) {
		b.WriteString("── " + title + " " + strings.Repeat("─", 75-len(title)) + "\n")
		for i := range run.Steps {
			b.WriteString(run.Steps[i].line() + "\n")
		}
		mark := "✓"
		if run.Violated {
			mark = "✗"
		}
		b.WriteString(mark + " " + run.Outcome + "\n")
	}
	fmt.Fprintf(&b, "%-*s%s%*s\n", sideWidth+1, "client A █: relies on the lock", centre(r.Story.Server, middleWidth+2), sideWidth+1, "client B")
	part("wrong: "+r.Story.Code, &r.Wrong)
	part("holdfast", &r.Right)
	if r.Wrong.Stalls {
		b.WriteString(Stalls + "\n")
	}
	b.WriteString(wrap("Lesson: "+r.Story.Lesson, 79))
	if r.Story.Mistake != "" {
		b.WriteString("A check convicts this mistake: holdfast lab " + r.Story.Mistake + "\n")
	}
	_, err := io.WriteString(w, g.Replace(b.String()))
	return err
}

// line returns the text of a step. The answer is in the server's column.
func (t Step) line() string {
	left, middle, right := "", t.Answer, ""
	switch arrow := t.Answer != ""; {
	case t.Actor == Server:
		middle = t.Text
	case t.Actor == A && arrow:
		left = " " + t.Text + " " + strings.Repeat("─", max(sideWidth-len(t.Text)-3, 0)) + "▶"
	case t.Actor == A:
		left = " " + t.Text
	case arrow:
		right = "◀" + strings.Repeat("─", max(sideWidth-len(t.Text)-3, 0)) + " " + t.Text + " "
	default:
		right = fmt.Sprintf("%*s", sideWidth-1, t.Text)
	}
	bar := map[bool]string{false: "│", true: "█"}
	return bar[t.Holds[A]] + pad(left, sideWidth) + "│" + centre(middle, middleWidth) + "│" + pad(right, sideWidth) + bar[t.Holds[B]]
}

func pad(s string, width int) string { return s + strings.Repeat(" ", max(width-len([]rune(s)), 0)) }

func centre(s string, width int) string {
	space := max(width-len(s), 0)
	return pad(strings.Repeat(" ", space/2)+s, width)
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
