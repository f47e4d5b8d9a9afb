package redisstore

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// encodedOwner caches the text of the last owner. Most requests have the same one.
type encodedOwner struct {
	host, instance, reason string
	pid                    int
	text                   string
}

// encodeOwner returns the owner of a request as one word.
func (s *Store) encodeOwner(o driver.Owner) string {
	if w := s.lastOwner.Load(); w != nil && w.host == o.Host && w.pid == o.PID && w.instance == o.Instance && w.reason == o.Reason {
		return w.text
	}
	text := strings.Join([]string{strconv.Itoa(o.PID), url.QueryEscape(clip(o.Host)), url.QueryEscape(clip(o.Instance)), url.QueryEscape(clip(o.Reason))}, "&")
	s.lastOwner.Store(&encodedOwner{o.Host, o.Instance, o.Reason, o.PID, text})
	return text
}

// encodedHead caches the first arguments of the last request. Most requests differ only in
// their ID.
type encodedHead struct {
	limit int
	owner string
	ttl   int64 // see serverTTL
	// text is "LIMIT p:CHANNEL OWNER ", micros the TTL, millis the expiry of the key.
	text, micros, millis string
}

// encodeHead returns the first arguments of a request: its limit, channel, owner and TTL.
func (s *Store) encodeHead(e *entry) *encodedHead {
	owner := s.encodeOwner(e.r.From.Owner())
	ttl := ttlMicros(serverTTL(e.r.TTL, e.lead))
	if h := s.lastHead.Load(); h != nil && h.limit == e.r.Limit && h.ttl == ttl && h.owner == owner {
		return h
	}
	h := &encodedHead{
		limit: e.r.Limit, owner: owner, ttl: ttl,
		text:   strconv.Itoa(e.r.Limit) + " p:" + s.channel + " " + owner + " ",
		micros: strconv.FormatInt(ttl, 10), millis: strconv.FormatInt(ttl/1000+2, 10),
	}
	s.lastHead.Store(h)
	return h
}

// clip shortens a text that is only for people to read.
func clip(s string) string {
	const maxLength = 1024
	if len(s) > maxLength {
		s = strings.ToValidUTF8(s[:maxLength], "")
	}
	return s
}

// readOwner parses the text of encodeOwner.
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

// lingering is the ID in the record of a released grant that stays for its minimum hold.
const lingering = "*"

// readHolder parses the record of a grant, "SLOT LIMIT CHANNEL OWNER ID TOKEN SINCE AT+TTL".
// With reserved tokens "SINCE-TOKENS" replaces SINCE. The grant expires at AT+TTL, in microseconds
// by the server's clock, like now. readHolder returns false if the text is no record, or if the
// grant has expired.
func readHolder(rec string, now int64) (h driver.Holder, ok bool) {
	part := strings.Split(rec, " ")
	if len(part) != 8 {
		return h, false
	}
	id := part[4]
	sinceText, tokensText, reserved := strings.Cut(part[6], "-")
	if !reserved {
		tokensText = "1"
	}
	atText, ttlText, _ := strings.Cut(part[7], "+")
	slot, err1 := strconv.Atoi(part[0])
	limit, err2 := strconv.Atoi(part[1])
	token, err3 := strconv.ParseUint(part[5], 10, 64)
	since, err4 := strconv.ParseInt(sinceText, 10, 64)
	tokens, err5 := strconv.Atoi(tokensText)
	at, err6 := strconv.ParseInt(atText, 10, 64)
	ttl, err7 := strconv.ParseInt(ttlText, 10, 64)
	if errors.Join(err1, err2, err3, err4, err5, err6, err7) != nil || at+ttl <= now {
		return h, false
	}
	h = driver.Holder{Owner: readOwner(id, part[3], since), Token: token, Tokens: tokens, Limit: limit, Slot: slotOf(slot, limit), TTL: time.Duration(at+ttl-now) * time.Microsecond}
	if id == lingering {
		h.ID, h.Note = "", "released, kept for a while"
	}
	return h, true
}

// slotOf returns the slot of a permit, or driver.NoSlot for a grant that is no permit. The
// scripts choose the lowest free slot. Fewer than limit other grants exist, so it is below limit.
func slotOf(slot, limit int) int {
	if limit > driver.Exclusive && limit <= driver.MaxLimit {
		return slot
	}
	return driver.NoSlot
}
