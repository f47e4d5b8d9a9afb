package view

import (
	"math"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/redact"
	"github.com/holdfast-go/holdfast/driver"
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
	Position int `json:"position"` // from 1
	Owner
}

// ShapeOfList returns the JSON form of several states.
func ShapeOfList(states []driver.State, now time.Time) List {
	l := List{At: Time(now), Locks: []Lock{}}
	for _, st := range states {
		l.Locks = append(l.Locks, ShapeOf(st, now))
	}
	return l
}

// ShapeOf returns the JSON form of one state.
func ShapeOf(st driver.State, now time.Time) Lock {
	l := Lock{Name: st.Name, Held: len(st.Holders) > 0, Holders: []Holder{}, Waiters: []Waiter{}}
	for _, h := range st.Holders {
		l.Holders = append(l.Holders, ShapeOfHolder(h, now))
	}
	for i, w := range st.Waiters {
		l.Waiters = append(l.Waiters, ShapeOfWaiter(w, i+1, now))
	}
	return l
}

// ShapeOfHolder returns the JSON form of one holder.
func ShapeOfHolder(h driver.Holder, now time.Time) Holder {
	s := Holder{Token: token(h.Token), Note: h.Note, Owner: owner(h.Owner, h.Limit, now)}
	if h.Slot >= 0 {
		s.Slot = &h.Slot
	}
	if h.TTL != driver.Forever && h.TTL != 0 {
		s.TTL = seconds(h.TTL)
	}
	return s
}

// ShapeOfWaiter returns the JSON form of a waiter. position counts from 1.
func ShapeOfWaiter(w driver.Waiter, position int, now time.Time) Waiter {
	return Waiter{Position: position, Owner: owner(w.Owner, w.Limit, now)}
}

func owner(o driver.Owner, limit int, now time.Time) Owner {
	s := Owner{ID: o.ID, Host: o.Host, PID: o.PID, Instance: o.Instance, Reason: reason(o), Mode: mode(limit)}
	if !o.Since.IsZero() {
		since := Time(o.Since)
		s.Since, s.Age = &since, seconds(now.Sub(o.Since))
	}
	if limit > 0 && limit != driver.Unlimited {
		s.Limit = &limit
	}
	return s
}

// reason returns an owner's reason without the passwords of URLs in it.
func reason(o driver.Owner) string { return redact.Text(o.Reason) }

// seconds rounds to milliseconds. A negative difference between two clocks becomes 0.
func seconds(d time.Duration) *float64 {
	s := math.Round(max(d, 0).Seconds()*1000) / 1000
	return &s
}

// Time formats a time as RFC 3339 in UTC, to the millisecond.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func token(t uint64) string { return strconv.FormatUint(t, 10) }

func mode(limit int) string {
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
