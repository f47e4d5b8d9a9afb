package view

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

// Page writes all fields of one lock, for people. It shortens no text.
func Page(w io.Writer, st driver.State, now time.Time) error {
	var b strings.Builder
	name := Text(st.Name)
	switch n := len(st.Holders); {
	case n == 0 && len(st.Waiters) == 0:
		fmt.Fprintf(&b, "%s is free\n", name)
	case n == 0:
		fmt.Fprintf(&b, "%s is not held at the moment\n", name)
	case n == 1:
		fmt.Fprintf(&b, "%s is held\n", name)
	default:
		fmt.Fprintf(&b, "%s is held by %d holders\n", name, n)
	}
	for _, h := range st.Holders {
		fmt.Fprintf(&b, "\n  %s\n", Process(h.Owner))
		field(&b, "token", shape.Token(h.Token))
		field(&b, "mode", shape.Mode(h.Limit))
		if h.Slot >= 0 {
			field(&b, "slot", slot(h.Slot))
		}
		field(&b, "since", when(h.Owner, now))
		switch h.TTL {
		case driver.Forever:
			field(&b, "ends", "with its process, or when it is released")
		case 0:
			field(&b, "ends", "unknown")
		default:
			field(&b, "ends", fmt.Sprintf("in %s if it is not renewed", left(h.TTL)))
		}
		if h.Note != "" {
			field(&b, "note", Text(h.Note))
		}
	}
	if n := len(st.Waiters); n > 0 {
		fmt.Fprintf(&b, "\n%d waiting\n", n)
		digits := len(fmt.Sprint(n))
		for i, o := range st.Waiters {
			note := ""
			if o.Note != "" {
				note = ", " + Text(o.Note)
			}
			fmt.Fprintf(&b, "  %*d  %s, %s, since %s%s\n", digits, i+1, Process(o.Owner), shape.Mode(o.Limit), when(o.Owner, now), note)
		}
	}
	return write(w, b.String())
}

// Deadlocks writes the cycles of processes through a lock, for people.
func Deadlocks(w io.Writer, cycles [][]shape.Wait) error {
	var b strings.Builder
	process := func(p shape.Process) string {
		return Process(driver.Owner{Host: p.Host, PID: p.PID, Instance: p.Instance})
	}
	for _, cycle := range cycles {
		b.WriteString("\npossible deadlock\n")
		for _, step := range cycle {
			fmt.Fprintf(&b, "  %s waits for %s, held by %s\n", process(step.Waiter), Text(step.Name), process(step.Holder))
		}
	}
	return write(w, b.String())
}

func write(w io.Writer, text string) error {
	if ASCII() {
		text = escaped(text)
	}
	_, err := io.WriteString(w, text)
	return err
}

func field(b *strings.Builder, key, value string) { fmt.Fprintf(b, "    %-6s %s\n", key, value) }

func when(o driver.Owner, now time.Time) string {
	if o.Since.IsZero() {
		return "unknown"
	}
	return fmt.Sprintf("%s (%s)", shape.Time(o.Since), Age(now.Sub(o.Since)))
}
