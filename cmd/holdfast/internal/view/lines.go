package view

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

// Lines writes the output for scripts: a line for each holder, for each awaited name without
// a holder, for each broken record and, on request, for each waiter. The fields, with tabs between them, are name,
// state, mode, token, slot, since, TTL in seconds, host:pid, instance, reason, note, and the
// number of waiters or the waiter's position.
func Lines(w io.Writer, st driver.State, waiters bool) error {
	count := strconv.Itoa(len(st.Waiters))
	for _, h := range st.Holders {
		err := line(w, st.Name, "held", shape.Mode(h.Limit), shape.Token(h.Token), slot(h.Slot), since(h.Owner), secondsLeft(h.TTL),
			address(h.Owner), h.Instance, shape.Reason(h.Owner), h.Note, count)
		if err != nil {
			return err
		}
	}
	if state, note := withoutHolder(st, "awaited"); state != "" {
		if err := line(w, st.Name, state, "", "", "", "", "", "", "", "", note, count); err != nil {
			return err
		}
	}
	if !waiters {
		return nil
	}
	for i, o := range st.Waiters {
		err := line(w, st.Name, "waiting", shape.Mode(o.Limit), "", "", since(o.Owner), "",
			address(o.Owner), o.Instance, shape.Reason(o.Owner), o.Note, strconv.Itoa(i+1))
		if err != nil {
			return err
		}
	}
	return nil
}

// withoutHolder returns the state and the note of the row that no holder has: "broken" and the error
// of a broken record, or awaited for a name without holders. The state is empty if there is no such
// row.
func withoutHolder(st driver.State, awaited string) (state, note string) {
	switch {
	case st.Err != nil:
		return "broken", st.Err.Error()
	case len(st.Holders) == 0:
		return awaited, ""
	}
	return "", ""
}

// Rows returns the number of rows that a table has for a state.
func Rows(st driver.State, waiters bool) int {
	n := len(st.Holders)
	if state, _ := withoutHolder(st, "free"); state != "" {
		n++
	}
	if waiters {
		n += len(st.Waiters)
	}
	return n
}

// line writes the fields with tabs between them. Text quotes a field that contains a tab, and
// writes an empty field as "-".
func line(w io.Writer, fields ...string) error {
	for i, f := range fields {
		fields[i] = Text(f)
	}
	_, err := fmt.Fprintln(w, strings.Join(fields, "\t"))
	return err
}

// Process returns a description of a process that fits into a sentence.
func Process(o driver.Owner) string {
	s := Text(driver.Owner{Host: o.Host, PID: o.PID}.Client())
	if o.Instance != "" {
		s += ", " + Text(o.Instance)
	}
	if r := shape.Reason(o); r != "" {
		s += " (" + Text(r) + ")"
	}
	return s
}

// address returns the host:pid of an owner.
func address(o driver.Owner) string {
	if o.Host == "" && o.PID == 0 {
		return ""
	}
	if o.PID == 0 {
		return o.Host
	}
	return o.Host + ":" + strconv.Itoa(o.PID)
}

func slot(n int) string {
	if n < 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func since(o driver.Owner) string {
	if o.Since.IsZero() {
		return ""
	}
	return shape.Time(o.Since)
}

// secondsLeft formats the remaining time of a lease for scripts.
func secondsLeft(d time.Duration) string {
	if d == driver.Forever || d == 0 {
		return ""
	}
	return strconv.FormatFloat(*shape.Seconds(d), 'f', 3, 64)
}

// Age formats a duration for people: to the second, from an hour on to the minute, and from a day
// on to the hour.
func Age(d time.Duration) string {
	d = max(d, 0).Truncate(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

func age(o driver.Owner, now time.Time) string {
	if o.Since.IsZero() {
		return none
	}
	return Age(now.Sub(o.Since))
}

// left formats the remaining time of a lease for people.
func left(d time.Duration) string {
	switch {
	case d == driver.Forever:
		return "none"
	case d == 0:
		return "unknown"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", max(d, 0).Seconds())
	}
	return Age(d)
}

// Event writes an event for scripts: time, name, event, mode, token or position, host:pid,
// instance, reason and note, with tabs between them.
func Event(w io.Writer, e shape.Event) error {
	var o shape.Owner
	number, note := "", e.Error
	switch {
	case e.Holder != nil:
		o, number, note = e.Holder.Owner, e.Holder.Token, e.Holder.Note
	case e.Waiter != nil:
		o, number, note = e.Waiter.Owner, strconv.Itoa(e.Waiter.Position), e.Waiter.Note
	}
	host := address(driver.Owner{Host: o.Host, PID: o.PID})
	return line(w, e.Time, e.Name, e.Event, o.Mode, number, host, o.Instance, o.Reason, note)
}
