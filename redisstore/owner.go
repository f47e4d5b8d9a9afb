package redisstore

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// ownerText remembers how the last owner was written: mostly it is the same.
type ownerText struct {
	host, instance, reason string
	pid                    int
	text                   string
}

// write writes down who asks, in one word.
func (s *Store) write(o driver.Owner) string {
	if w := s.owner.Load(); w != nil && w.host == o.Host && w.pid == o.PID && w.instance == o.Instance && w.reason == o.Reason {
		return w.text
	}
	text := strings.Join([]string{strconv.Itoa(o.PID), url.QueryEscape(clip(o.Host)), url.QueryEscape(clip(o.Instance)), url.QueryEscape(clip(o.Reason))}, "&")
	s.owner.Store(&ownerText{o.Host, o.Instance, o.Reason, o.PID, text})
	return text
}

// headText remembers how the last request was written: mostly it is the same but
// for its ID.
type headText struct {
	limit          int
	channel, owner string
	ttl            int64 // as the server keeps it
	// text is "LIMIT CHANNEL OWNER ", micros the TTL, millis the life of its key.
	text, micros, millis string
}

// head writes down who asks, and for what.
func (s *Store) head(e *entry) *headText {
	owner := s.write(e.r.From.Owner())
	ttl := s.lasting(e.r.TTL)
	if h := s.asker.Load(); h != nil && h.limit == e.r.Limit && h.ttl == ttl && h.channel == e.channel && h.owner == owner {
		return h
	}
	h := &headText{
		limit: e.r.Limit, channel: e.channel, owner: owner, ttl: ttl,
		text:   strconv.Itoa(e.r.Limit) + " " + e.channel + " " + owner + " ",
		micros: strconv.FormatInt(ttl, 10), millis: strconv.FormatInt(ttl/1000+2, 10),
	}
	s.asker.Store(h)
	return h
}

// clip bounds what is for people to read.
func clip(s string) string {
	const most = 1024
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

func readOwner(id, text string, since int64) driver.Owner {
	o := driver.Owner{ID: id, Since: time.UnixMicro(since)}
	part := strings.Split(text, "&")
	if len(part) != 4 {
		return o
	}
	o.PID, _ = strconv.Atoi(part[0])
	for i, to := range []*string{&o.Host, &o.Instance, &o.Reason} {
		*to, _ = url.QueryUnescape(part[i+1])
	}
	return o
}

// readHolder reads a grant, "SEAT LIMIT CHANNEL OWNER ID TOKEN SINCE AT+TTL" or with
// "SINCE-TOKENS", as an inspection shows it; false if it is none, or has ended by now.
func readHolder(rec string, now int64) (h driver.Holder, ok bool) {
	part := strings.Split(rec, " ")
	if len(part) != 8 {
		return h, false
	}
	id := part[4]
	from, lasts, _ := strings.Cut(part[7], "+")
	seat, err1 := strconv.Atoi(part[0])
	limit, err2 := strconv.Atoi(part[1])
	token, err3 := strconv.ParseUint(part[5], 10, 64)
	began, reserved, many := strings.Cut(part[6], "-")
	since, err4 := strconv.ParseInt(began, 10, 64)
	tokens, err7 := 1, error(nil)
	if many {
		tokens, err7 = strconv.Atoi(reserved)
	}
	at, err5 := strconv.ParseInt(from, 10, 64)
	ttl, err6 := strconv.ParseInt(lasts, 10, 64)
	if errors.Join(err1, err2, err3, err4, err5, err6, err7) != nil || at+ttl <= now {
		return h, false
	}
	h = driver.Holder{Owner: readOwner(id, part[3], since), Token: token, Tokens: tokens, Limit: limit, Slot: slotOf(seat, limit), TTL: time.Duration(at+ttl-now) * time.Microsecond}
	if id == "*" {
		h.ID, h.Note = "", "released, kept for a while"
	}
	return h, true
}

// slotOf is the number of a permit: a seat below its limit that was free. Fewer than
// limit others are beside it, so it is below the limit.
func slotOf(seat, limit int) int {
	if limit > driver.Exclusive && limit <= driver.MaxLimit {
		return seat
	}
	return driver.NoSlot
}
