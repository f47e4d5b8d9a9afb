package redisstore

import (
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

// holder reads a grant, "SEAT ID TOKEN LIMIT EXPIRES SINCE CHANNEL OWNER", as an
// inspection shows it; false if it is none, or has ended by now.
func readHolder(rec string, now int64) (h driver.Holder, ok bool) {
	part := strings.SplitN(rec, " ", 8)
	if len(part) != 8 {
		return h, false
	}
	seat, err1 := strconv.Atoi(part[0])
	token, err2 := strconv.ParseUint(part[2], 10, 64)
	limit, err3 := strconv.Atoi(part[3])
	expires, err4 := strconv.ParseInt(part[4], 10, 64)
	since, err5 := strconv.ParseInt(part[5], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil || expires <= now {
		return h, false
	}
	h = driver.Holder{Owner: readOwner(part[1], part[7], since), Token: token, Limit: limit, Slot: slotOf(seat, limit), TTL: time.Duration(expires-now) * time.Microsecond}
	if part[1] == "*" {
		h.ID, h.Note = "", "released, kept for a while"
	}
	return h, true
}

// slotOf is the number of a permit: the lowest seat that was free. Fewer than
// limit others are beside it, so it is below the limit.
func slotOf(seat, limit int) int {
	if limit > driver.Exclusive && limit <= driver.MaxLimit {
		return seat
	}
	return driver.NoSlot
}
