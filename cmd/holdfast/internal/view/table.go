package view

import (
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/holdfast-go/holdfast/driver"
)

// column is one of a table's.
type column struct {
	head string
	// least is how narrow it may become where the terminal is; 0 for as wide as
	// its longest cell.
	least int
	// always shows it, also when there is nothing in it.
	always bool
	right  bool
	// dull is what is not worth a column when every cell says it.
	dull string
}

// The columns, and the order in which they give way.
var (
	columns = []column{
		{head: "NAME", least: 8, always: true},
		{head: "MODE", always: true},
		{head: "TOKEN", always: true, right: true},
		{head: "SLOT", right: true},
		{head: "AGE", always: true, right: true},
		{head: "HOLDER", least: 8, always: true},
		{head: "INSTANCE", least: 8},
		{head: "REASON", least: 6},
		{head: "TTL", right: true, dull: "none"},
		{head: "NOTE", least: 8},
		{head: "QUEUE", always: true, right: true},
	}
	shrink = []string{"REASON", "INSTANCE", "HOLDER", "NAME", "NOTE"}
)

// Table lays the states out for a terminal of that width: the heading first, then
// a line for each holder and, if asked for, each waiter.
func Table(states []driver.State, now time.Time, waiters bool, width int) []string {
	rows := make([][]string, 0, len(states))
	for _, st := range states {
		rows = append(rows, rowsOf(st, now, waiters)...)
	}
	return layOut(rows, width)
}

func rowsOf(st driver.State, now time.Time, waiters bool) [][]string {
	count, name := strconv.Itoa(len(st.Waiters)), Text(st.Name)
	var rows [][]string
	for _, h := range st.Holders {
		rows = append(rows, []string{name, orNone(mode(h.Limit)), token(h.Token), orNone(slot(h.Slot)), age(h.Owner, now),
			Text(place(h.Owner)), Text(h.Instance), Text(reason(h.Owner)), left(h.TTL), Text(h.Note), count})
	}
	if len(st.Holders) == 0 {
		rows = append(rows, []string{name, "free", none, none, none, none, none, none, none, none, count})
	}
	if !waiters {
		return rows
	}
	for i, w := range st.Waiters {
		rows = append(rows, []string{"  waiter " + strconv.Itoa(i+1), orNone(mode(w.Limit)), none, none, age(w.Owner, now),
			Text(place(w.Owner)), Text(w.Instance), Text(reason(w.Owner)), none, none, none})
	}
	return rows
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// layOut fits rows into a width.
func layOut(rows [][]string, width int) []string {
	widths := make([]int, len(columns)) // 0: not shown
	total := 0
	for c, col := range columns {
		shown := col.always
		widths[c] = len(col.head)
		for _, r := range rows {
			shown = shown || r[c] != none && r[c] != col.dull
			widths[c] = max(widths[c], ansi.StringWidth(r[c]))
		}
		if !shown {
			widths[c] = 0
			continue
		}
		total += widths[c] + len(gap)
	}
	total -= len(gap)
	for _, head := range shrink {
		for c, col := range columns {
			if col.head == head && widths[c] > col.least && total > width {
				cut := min(widths[c]-col.least, total-width)
				widths[c] -= cut
				total -= cut
			}
		}
	}
	heads := make([]string, len(columns))
	for c, col := range columns {
		heads[c] = col.head
	}
	lines := []string{join(heads, widths, width)}
	for _, r := range rows {
		lines = append(lines, join(r, widths, width))
	}
	return lines
}

const gap = "  "

func join(cells []string, widths []int, width int) string {
	var b strings.Builder
	for c, text := range cells {
		if widths[c] == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(gap)
		}
		text = ansi.Truncate(text, widths[c], "…")
		pad := strings.Repeat(" ", max(widths[c]-ansi.StringWidth(text), 0))
		if columns[c].right {
			text = pad + text
		} else {
			text += pad
		}
		b.WriteString(text)
	}
	// A line that is still too long is cut: one that wraps is no table.
	return ansi.Truncate(strings.TrimRight(b.String(), " "), width, "…")
}
