package redisstore

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// encodedHead caches the first arguments of the last request. Most requests differ only in
// their ID.
type encodedHead struct {
	limit int
	owner string
	ttl   int64 // see server.TTL
	// text is "LIMIT p:CHANNEL OWNER ", micros the TTL, millis the expiry of the key.
	text, micros, millis string
}

// encodeHead returns the first arguments of a request: its limit, channel, owner and TTL.
func (s *store) encodeHead(e *entry, lead time.Duration) *encodedHead {
	owner := s.srv.EncodeOwner(e.r.From.Owner())
	ttl := ttlMicros(server.TTL(e.r.TTL, lead))
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

// lingering is the ID in the record of a released grant that stays for its minimum hold.
const lingering = "*"

// exact is EXACT of scripts/plain.lua. A time from there on is not one of the server's.
const exact = 1 << 53

// readHolder parses the record of a grant, "SLOT LIMIT CHANNEL OWNER ID TOKEN SINCE AT+TTL".
// With reserved tokens "SINCE-TOKENS" replaces SINCE. The grant expires at AT+TTL, in microseconds
// by the server's clock, like now. readHolder returns false if the text is no record. The TTL of an
// expired grant is not positive.
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
	if errors.Join(err1, err2, err3, err4, err5, err6, err7) != nil || max(at, ttl, at+ttl) >= exact || min(at, ttl) < 0 {
		return h, false
	}
	owner, _ := server.ReadOwner(id, part[3], since)
	h = driver.Holder{Owner: owner, Token: token, Tokens: tokens, Limit: limit, Slot: slotOf(slot, limit), TTL: time.Duration(at+ttl-now) * time.Microsecond}
	if id == lingering {
		h.ID, h.Kept, h.Note = "", true, driver.NoteKept
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
