// Package shape is the JSON form of the states of locks, and of their changes. The command prints it, and package
// console serves it.
package shape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/printable"
)

// List is the output of `holdfast ls --json`. Scripts rely on the types of this file, and
// docs/command.md describes them. So a change of the library's types must not change them.
type List struct {
	At    string `json:"at"` // the time of the request
	Locks []Lock `json:"locks"`
}

// Lock is one name.
type Lock struct {
	Name    string   `json:"name"`
	Held    bool     `json:"held"`
	Holders []Holder `json:"holders"`
	Waiters []Waiter `json:"waiters"`
	Error   string   `json:"error,omitempty"` // of a broken record
	// Deadlocks are the cycles of processes through this name. Only the form of a single lock has them.
	Deadlocks [][]Wait `json:"deadlocks,omitempty"`
}

// Owner is a holder or a waiter.
type Owner struct {
	ID       string `json:"id"`
	Host     string `json:"host"`
	PID      int    `json:"pid"`
	Instance string `json:"instance"`
	Reason   string `json:"reason"`
	// Since is a time of the store's clock if the store has one. It is null if unknown.
	Since *string  `json:"since"`
	Age   *float64 `json:"age_seconds"`
	Mode  string   `json:"mode"`
	Limit *int     `json:"limit"` // null for shared
}

// Holder is a grant.
type Holder struct {
	// Token is a string, because tokens are below 2^63, and the numbers of JavaScript, jq
	// and others are exact only below 2^53.
	Token string   `json:"token"`
	Slot  *int     `json:"slot"`
	TTL   *float64 `json:"ttl_seconds"` // null if the grant does not expire, or if that is unknown
	Note  string   `json:"note"`
	Owner
}

// Waiter is a queue entry.
type Waiter struct {
	Position int    `json:"position"` // from 1
	Note     string `json:"note"`
	Owner
}

// OfList returns the JSON form of several states.
func OfList(states []driver.State, now time.Time) List {
	l := List{At: Time(now), Locks: []Lock{}}
	for _, st := range states {
		l.Locks = append(l.Locks, Of(st, now))
	}
	return l
}

// Of returns the JSON form of one state.
func Of(st driver.State, now time.Time) Lock {
	l := Lock{Name: st.Name, Held: len(st.Holders) > 0, Holders: []Holder{}, Waiters: []Waiter{}}
	if st.Err != nil {
		l.Error = st.Err.Error()
	}
	for _, h := range st.Holders {
		l.Holders = append(l.Holders, OfHolder(h, now))
	}
	for i, w := range st.Waiters {
		l.Waiters = append(l.Waiters, OfWaiter(w, i+1, now))
	}
	return l
}

// OfHolder returns the JSON form of one holder.
func OfHolder(h driver.Holder, now time.Time) Holder {
	s := Holder{Token: Token(h.Token), Note: h.Note, Owner: owner(h.Owner, h.Limit, now)}
	if h.Slot >= 0 {
		s.Slot = &h.Slot
	}
	if h.TTL != driver.Forever && h.TTL != 0 {
		s.TTL = Seconds(h.TTL)
	}
	return s
}

// OfWaiter returns the JSON form of a waiter. position counts from 1.
func OfWaiter(w driver.Waiter, position int, now time.Time) Waiter {
	return Waiter{Position: position, Note: w.Note, Owner: owner(w.Owner, w.Limit, now)}
}

func owner(o driver.Owner, limit int, now time.Time) Owner {
	s := Owner{ID: o.ID, Host: o.Host, PID: o.PID, Instance: o.Instance, Reason: Reason(o), Mode: Mode(limit)}
	if !o.Since.IsZero() {
		since := Time(o.Since)
		s.Since, s.Age = &since, Seconds(now.Sub(o.Since))
	}
	if limit > 0 && limit != driver.Unlimited {
		s.Limit = &limit
	}
	return s
}

// Reason returns an owner's reason without the passwords of URLs in it.
func Reason(o driver.Owner) string { return printable.Redact(o.Reason) }

// Seconds rounds to milliseconds. A negative difference between two clocks becomes 0.
func Seconds(d time.Duration) *float64 {
	s := math.Round(max(d, 0).Seconds()*1000) / 1000
	return &s
}

// Time formats a time as RFC 3339 in UTC, to the millisecond.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Token returns the JSON form of a token.
func Token(t uint64) string { return strconv.FormatUint(t, 10) }

// Mode returns how a grant of that limit excludes others.
func Mode(limit int) string {
	switch {
	case limit == driver.Exclusive:
		return "exclusive"
	case limit == driver.Unlimited:
		return "shared"
	case limit > 0:
		return "limit " + strconv.Itoa(limit)
	}
	return ""
}

// JSON writes v as JSON and escapes all unprintable characters. The standard library escapes only
// some control characters. JSON indents the output unless line is set.
func JSON(w io.Writer, v any, line bool) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if !line {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil {
		return err
	}
	// Outside of strings, JSON has only printable ASCII and line ends. So every character that is
	// escaped here is inside a string.
	var out strings.Builder
	printable.Walk(b.String(), func(text string, safe bool) {
		if safe || text == "\n" {
			out.WriteString(text)
			return
		}
		for _, unit := range utf16.Encode([]rune(text)) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	})
	_, err := io.WriteString(w, out.String())
	return err
}
