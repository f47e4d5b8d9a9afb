package server

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/printable"
)

// encodedOwner caches the text of the last owner. Most requests have the same one.
type encodedOwner struct {
	owner driver.Owner
	text  string
}

// EncodeOwner returns the owner of a request as one word.
func (s *Server) EncodeOwner(o driver.Owner) string {
	o.ID, o.Since = "", time.Time{}
	if w := s.lastOwner.Load(); w != nil && w.owner == o {
		return w.text
	}
	text := OwnerText(o)
	s.lastOwner.Store(&encodedOwner{o, text})
	return text
}

// Clip shortens a text that is only for people to read.
func Clip(s string) string { return printable.Clip(s, 1024) }

// OwnerText returns an owner as one word, "PID&HOST&INSTANCE&REASON".
func OwnerText(o driver.Owner) string {
	return strings.Join([]string{strconv.Itoa(o.PID), url.QueryEscape(Clip(o.Host)), url.QueryEscape(Clip(o.Instance)), url.QueryEscape(Clip(o.Reason))}, "&")
}

// ReadOwner parses the text of an owner. ok is false if the text has another form.
func ReadOwner(id, text string, since int64) (o driver.Owner, ok bool) {
	o = driver.Owner{ID: id, Since: time.UnixMicro(since)}
	part := strings.Split(text, "&")
	if len(part) != 4 {
		return o, false
	}
	var err error
	o.PID, err = strconv.Atoi(part[0])
	ok = err == nil
	for i, to := range []*string{&o.Host, &o.Instance, &o.Reason} {
		*to, err = url.QueryUnescape(part[i+1])
		ok = ok && err == nil
	}
	return o, ok
}
