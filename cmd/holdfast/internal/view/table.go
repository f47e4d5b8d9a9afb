package view

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

// column is one column of a table.
type column struct {
	head string
	// least is the column's least width on a narrow terminal. If it is 0, the table does not cut the
	// column's cells.
	least int
	// always is set if the table has the column also when all its cells are empty.
	always bool
	right  bool
	// hideIfAll is a value of no interest: the table has no column whose cells all have it.
	hideIfAll string
	// tail is set if a cut text keeps its end, which is the process number.
	tail bool
}

// The columns, and the order in which a narrow table drops them. NAME and HOLDER stay.
var (
	columns = []column{
		{head: "NAME", least: 10, always: true},
		{head: "MODE", always: true},
		{head: "TOKEN", always: true, right: true},
		{head: "SLOT", right: true},
		{head: "AGE", always: true, right: true},
		{head: "HOLDER", least: 12, always: true, tail: true},
		{head: "INSTANCE", least: 8},
		{head: "REASON", least: 8},
		{head: "TTL", right: true, hideIfAll: "none"},
		{head: "NOTE", least: 8},
		{head: "QUEUE", always: true, right: true},
	}
	leaveOut = []string{"INSTANCE", "REASON", "SLOT", "TTL", "MODE", "TOKEN", "NOTE", "QUEUE", "AGE"}
)

// Table returns the lines of a table for a terminal of that width. The first line is the heading.
// A line for each holder follows and, on request, for each waiter.
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
		rows = append(rows, []string{name, cmp.Or(shape.Mode(h.Limit), none), shape.Token(h.Token), cmp.Or(slot(h.Slot), none), age(h.Owner, now),
			Text(address(h.Owner)), Text(h.Instance), Text(shape.Reason(h.Owner)), left(h.TTL), Text(h.Note), count})
	}
	if state, note := withoutHolder(st, "free"); state != "" {
		rows = append(rows, []string{name, state, none, none, none, none, none, none, none, Text(note), count})
	}
	if !waiters {
		return rows
	}
	for i, w := range st.Waiters {
		rows = append(rows, []string{"  waiter " + strconv.Itoa(i+1), cmp.Or(shape.Mode(w.Limit), none), none, none, age(w.Owner, now),
			Text(address(w.Owner)), Text(w.Instance), Text(shape.Reason(w.Owner)), none, Text(w.Note), none})
	}
	return rows
}

func layOut(rows [][]string, width int) []string {
	if ASCII() {
		for _, r := range rows {
			for c := range r {
				r[c] = escaped(r[c])
			}
		}
	}
	widths := fullWidths(rows)
	dropColumns(widths, width)
	cutColumns(widths, width)
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

// fullWidths returns the width of each column that cuts no cell, and 0 for a column that is not shown.
func fullWidths(rows [][]string) []int {
	widths := make([]int, len(columns))
	for c, col := range columns {
		shown := col.always
		widths[c] = len(col.head)
		for _, r := range rows {
			shown = shown || r[c] != none && r[c] != col.hideIfAll
			widths[c] = max(widths[c], ansi.StringWidth(r[c]))
		}
		if !shown {
			widths[c] = 0
		}
	}
	return widths
}

// dropColumns sets the width of columns to 0, in the order of leaveOut, until the other columns can be cut
// to a line of the given width.
func dropColumns(widths []int, width int) {
	for _, head := range leaveOut {
		if total(widths, true) <= width {
			break
		}
		widths[slices.IndexFunc(columns, func(c column) bool { return c.head == head })] = 0
	}
}

// cutColumns makes columns narrower until a line has at most the given width. The widest column is cut
// first, so that one long name does not shorten the other columns.
func cutColumns(widths []int, width int) {
	for total(widths, false) > width {
		widest := -1
		for c, col := range columns {
			if col.least > 0 && widths[c] > col.least && (widest < 0 || widths[c] > widths[widest]) {
				widest = c
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
}

// total returns the width of a line with columns of these widths. With least it returns the smallest
// width to which the columns can be cut.
func total(widths []int, least bool) int {
	sum := -len(gap)
	for c, w := range widths {
		if w == 0 {
			continue
		}
		if least && columns[c].least > 0 {
			w = min(w, columns[c].least)
		}
		sum += w + len(gap)
	}
	return sum
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
		if columns[c].tail {
			text = cutHost(text, widths[c])
		}
		text = Cut(text, widths[c])
		pad := strings.Repeat(" ", max(widths[c]-ansi.StringWidth(text), 0))
		if columns[c].right {
			text = pad + text
		} else {
			text += pad
		}
		b.WriteString(text)
	}
	// A line that is still too long is cut, because a wrapped line breaks the table.
	return Cut(strings.TrimRight(b.String(), " "), width)
}

// cutHost cuts the host of host:pid, and keeps the process number.
func cutHost(text string, width int) string {
	i := strings.LastIndexByte(text, ':')
	if i < 0 || ansi.StringWidth(text) <= width || len(text)-i+1 >= width {
		return text
	}
	return Cut(text[:i], width-(len(text)-i)) + text[i:]
}

// Cut cuts a text that is wider than a width, with a visible mark.
func Cut(s string, width int) string {
	if ASCII() {
		return ansi.Truncate(escaped(s), width, "~")
	}
	return ansi.Truncate(s, width, "…")
}

// ASCII reports whether the user's terminal shows ASCII only: the locale is C or POSIX. It
// reports false if the environment names no locale.
func ASCII() bool {
	for _, key := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(key); v != "" {
			return v == "C" || v == "POSIX"
		}
	}
	return false
}

// escaped escapes all characters beyond ASCII like a Go string.
func escaped(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxASCII }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if r <= unicode.MaxASCII {
			b.WriteRune(r)
		} else {
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}
