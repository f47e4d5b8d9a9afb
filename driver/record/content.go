package record

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/driver"
)

// content is the content of a name's record: its grants, and the grants that were broken
// lately, so that their holders get the right cause.
type content struct {
	Holders []holder     `json:"holders"`
	Taken   []taken      `json:"taken,omitempty"`
	Token   int64        `json:"token,omitempty"` // the last token of the name
	Queue   []queueEntry `json:"queue,omitempty"` // the requests that wait, the first one first
	// At is the time, by the storage's clock, at which the client read the record that this one replaces, in
	// microseconds. It is 0 if the storage does not set Object.Written.
	At int64 `json:"at,omitempty"`

	before int64 // a write of the content must have no effect from this time on; 0 means ApplyTime after the read
	// lasting is set if the write makes, renews or keeps a grant. The time of another write says nothing about the grants:
	// with a coarse clock it would renew that of a dead client.
	lasting bool
}

type holder struct {
	owner
	Limit   int    `json:"limit"`
	Slot    int    `json:"slot"`
	Token   uint64 `json:"token"`
	Tokens  int    `json:"tokens,omitempty"` // how many it has; 0 means 1
	Expires int64  `json:"expires"`          // microseconds, by the storage's clock
	// TTL is the time from the grant, its last renewal or its release to Expires, in microseconds; 0 if unknown.
	TTL  int64 `json:"ttl,omitempty"`
	Left bool  `json:"left,omitempty"` // released, and stays until Expires
}

// taken is a grant that was broken. The record keeps it until Until.
type taken struct {
	Token uint64 `json:"token"`
	Until int64  `json:"until"` // microseconds, by the storage's clock
}

// queueEntry is a request that waits. No request gets a grant before those ahead of it have one, or their entries have
// ended.
type queueEntry struct {
	ID    string `json:"id"`
	Since int64  `json:"since"` // microseconds, by the storage's clock
	Until int64  `json:"until"` // when the entry ends; the waiter writes a later time while it waits
}

// maxQueue limits the queue entries of a record. The requests that have waited longest have them.
const maxQueue = 32

// entries limits the queue entries of a record. A waiter that polls tries again when another waiter has got the grant, so
// one entry is enough, and the other waiters need not write. All waiters together renew their entries up to eight times in
// a second, so that the holder can renew its grant beside them.
func (e *engine) entries(ttl time.Duration) int {
	return min(e.queue, int(driver.PositionTime(ttl)/(250*time.Millisecond)))
}

// owner is driver.Owner as a record has it.
type owner struct {
	ID       string `json:"id"`
	Host     string `json:"host,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Instance string `json:"instance,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Since    int64  `json:"since"` // microseconds, by the storage's clock
}

// encode returns the content as JSON in ASCII. Every character set of a database or session
// keeps ASCII unchanged.
func encode(c *content) []byte {
	b, err := json.Marshal(c)
	if err != nil { // the fields are strings and numbers
		panic(err)
	}
	s := make([]byte, 0, len(b))
	for _, r := range string(b) {
		switch {
		case r < 0x80:
			s = append(s, byte(r))
		case r < 0x10000:
			s = fmt.Appendf(s, `\u%04x`, r)
		default:
			hi, lo := utf16.EncodeRune(r)
			s = fmt.Appendf(s, `\u%04x\u%04x`, hi, lo)
		}
	}
	return s
}

// maxTime and maxToken limit what a record may contain, so that no sum of times or tokens overflows. A time is
// also the microseconds of a time.Duration after now.
const (
	maxTime  = 1 << 53
	maxToken = 1 << 62
)

// decode returns the content of a record, or why no client can have written the data.
func decode(data []byte) (c content, why string) {
	if !bytes.HasPrefix(data, []byte(`{"holders":`)) || json.Unmarshal(data, &c) != nil {
		return content{}, "its state cannot be decoded"
	}
	return c, c.impossible()
}

// impossible returns why no client can have written the content, "" if one can.
func (c content) impossible() string {
	least := driver.Unlimited
	if c.Token < 0 || c.Token > maxToken {
		return "its token is out of range"
	} else if c.At < 0 || c.At > maxTime {
		return "its time is out of range"
	}
	for _, p := range c.Queue {
		if p.ID == "" || max(p.Since, p.Until) > maxTime || min(p.Since, p.Until) < 0 {
			return "a waiter is out of range"
		}
	}
	for _, h := range c.Holders {
		limited := h.Limit >= driver.Exclusive && h.Limit <= driver.MaxLimit
		switch {
		case h.ID == "":
			return "a holder has no ID"
		case !limited && h.Limit != driver.Unlimited:
			return "the limit of a holder is out of range"
		case h.Slot < driver.NoSlot || h.Slot >= h.Limit:
			return "the slot of a holder is out of range"
		case h.Token > maxToken || h.Tokens < 0 || h.Tokens > maxTokens:
			return "the token of a holder is out of range"
		case h.Expires < 0 || h.Expires > maxTime || h.TTL < 0 || h.TTL > maxTime:
			return "a time of a holder is out of range"
		}
		least = min(least, h.Limit)
	}
	if len(c.Holders) > least {
		return "it has more holders than their limits allow"
	}
	return ""
}

// live returns the content without what has expired, and shortens grants that are ahead.
func (c content) live(now int64) content {
	expired := func(h holder) bool { return h.Expires <= now } // mutation: record-live
	// The client of such a queue entry has died, or the clock was set back.
	latest := now + micros(driver.PositionTime(driver.Forever)+ApplyTime)
	l := content{
		Token:   c.Token,
		Queue:   slices.DeleteFunc(slices.Clone(c.Queue), func(p queueEntry) bool { return p.Until <= now || p.Until > latest }),
		Holders: slices.DeleteFunc(slices.Clone(c.Holders), expired),
		Taken:   slices.DeleteFunc(slices.Clone(c.Taken), func(t taken) bool { return t.Until <= now }),
	}
	for i := range l.Holders {
		if h := &l.Holders[i]; h.ahead(now) {
			h.Expires = now + h.TTL
		}
	}
	return l
}

// with returns the content with other holders. A request that has become a holder, or was undone, waits no longer.
func (c content) with(holders []holder, id string) *content {
	waits := func(p queueEntry) bool { return p.ID == id }
	return &content{Holders: holders, Taken: c.Taken, Queue: slices.DeleteFunc(slices.Clone(c.Queue), waits)}
}

// position returns the index of a request in the queue, -1 if it is not there.
func (c content) position(id string) int {
	return slices.IndexFunc(c.Queue, func(p queueEntry) bool { return p.ID == id })
}

// first returns the ID of the request that waits at the head of the queue, "" if there is none.
func (c content) first() string {
	if len(c.Queue) == 0 {
		return ""
	}
	return c.Queue[0].ID
}

// waits returns the content in which a request that waits has its queue entry. It returns nil if that is not to be written:
// the entry lasts long enough, or the queue has no free queue entry for it. Ages that differ by less than same are equal.
func (v *view) waits(r *driver.Request, same int64, most int) *content {
	if r.Waited <= 0 {
		return nil
	}
	lasts := micros(driver.PositionTime(r.TTL))
	until := v.now + lasts
	next := v.with(v.Holders, "")
	if at := v.position(r.ID); at >= 0 {
		if next.Queue[at].Until-v.now > lasts/2 {
			return nil
		}
		next.Queue[at].Until = until
		return next
	}
	p := queueEntry{ID: r.ID, Since: max(v.now-micros(r.Waited), 0), Until: until}
	at := slices.IndexFunc(v.Queue, func(q queueEntry) bool { return q.Since >= p.Since+max(same, micros(sameAge)) })
	if at < 0 {
		at = len(v.Queue)
	}
	if at >= most {
		return nil
	}
	next.Queue = slices.Insert(next.Queue, at, p)
	next.Queue = next.Queue[:min(len(next.Queue), maxQueue)]
	return next
}

// lastFrom extends the grants that the last write has made or renewed, so that they last from the time of the write:
// the client may have read an older time before it. It changes the holders in place: only decode has them yet.
func (c *content) lastFrom(written time.Time) {
	for i := range c.Holders {
		if h := &c.Holders[i]; c.At > 0 && h.Expires-h.TTL == c.At {
			h.Expires = max(h.Expires, written.UnixMicro()+h.TTL) // mutation: record-written
		}
	}
}

// ahead reports whether the clock was set back since the grant: Expires is then more than
// a TTL away, and live shortens it to one TTL. A grant that was written after now was read
// may seem to be ahead; ApplyTime limits by how much.
func (h *holder) ahead(now int64) bool {
	return h.TTL > 0 && h.Expires > now+h.TTL+ApplyTime.Microseconds()
}

// admits reports whether one more grant of limit is allowed to a request.
func (c content) admits(id string, limit int) bool {
	first := c.first()
	return (first == "" || first == id) && c.room(limit)
}

// room reports whether the limits of all holders, and limit, allow one more.
func (c content) room(limit int) bool {
	for _, h := range c.Holders {
		limit = min(limit, h.Limit)
	}
	return len(c.Holders) < limit // mutation: record-admits
}

func (c content) freeSlot() int {
	for slot := 0; ; slot++ {
		if !slices.ContainsFunc(c.Holders, func(h holder) bool { return h.Slot == slot }) {
			return slot
		}
	}
}

// alone reports whether the record has one grant and its last token, and nothing else.
func (c content) alone(token uint64) bool {
	return len(c.Holders) == 1 && len(c.Queue) == 0 && len(c.Taken) == 0 && uint64(c.Token) == token // mutation: record-alone
}

func (c content) byID(id string) *holder {
	for i := range c.Holders {
		if c.Holders[i].ID == id && !c.Holders[i].Left {
			return &c.Holders[i]
		}
	}
	return nil
}

// cause returns why the record no longer has a grant.
func (c content) cause(token uint64) driver.Cause {
	if slices.ContainsFunc(c.Taken, func(t taken) bool { return t.Token == token }) {
		return driver.CauseTaken
	}
	return driver.CauseGone
}

func (c *content) remove(match func(holder) bool) bool {
	n := len(c.Holders)
	c.Holders = slices.DeleteFunc(c.Holders, match)
	return len(c.Holders) < n
}

// lastExpiry returns when the last grant expires, 0 if there is none.
func (c content) lastExpiry() (last int64) {
	for _, h := range c.Holders {
		last = max(last, h.Expires)
	}
	return last
}

// firstExpiry returns when the first grant expires, or the first queue entry; 0 if there is neither.
func (c content) firstExpiry() (first int64) {
	for _, p := range c.Queue {
		if first == 0 || p.Until < first {
			first = p.Until
		}
	}
	for _, h := range c.Holders {
		if first == 0 || h.Expires < first {
			first = h.Expires
		}
	}
	return first
}

// newest returns when the last grant was made, 0 if there is none.
func (c content) newest() (last int64) {
	for _, h := range c.Holders {
		last = max(last, h.Since)
	}
	return last
}

// describe returns the holders, ordered by their tokens, as they are at a time. A grant that lasts longer than its
// client relies on it has no time left then.
func (c content) describe(now int64) []driver.Holder {
	var all []driver.Holder
	for _, h := range c.Holders {
		seen := driver.Holder{Owner: h.driver(), Token: h.Token, Tokens: h.Tokens, Limit: h.Limit, Slot: h.Slot,
			TTL: time.Duration(max(h.Expires-now, 1)) * time.Microsecond, Kept: h.Left}
		if h.Left {
			seen.Note = driver.NoteKept
		}
		all = append(all, seen)
	}
	slices.SortFunc(all, func(a, b driver.Holder) int { return cmp.Compare(a.Token, b.Token) })
	return all
}

func ownerOf(o driver.Owner, since int64) owner {
	return owner{ID: o.ID, Host: o.Host, PID: o.PID, Instance: o.Instance, Reason: o.Reason, Since: since}
}

func (o owner) driver() driver.Owner {
	return driver.Owner{ID: o.ID, Host: o.Host, PID: o.PID, Instance: o.Instance, Reason: o.Reason,
		Since: time.UnixMicro(o.Since)}
}

// maxTokens limits the tokens of a grant. Each is a microsecond of the storage's clock.
const maxTokens = 1000

// tokens returns how many tokens a request can reserve: only an exclusive grant has several.
func tokens(r *driver.Request) int {
	if r.Limit != driver.Exclusive {
		return 1
	}
	return min(max(r.Tokens, 1), maxTokens)
}

// draw returns the first token of a grant, and how many of the n requested it has. They are larger
// than every earlier token of the name. Only the first may be ahead of the storage's clock. A grant
// that creates the record has one token.
func (v *view) draw(n int) (first int64, tokens int) {
	if v.version == "" {
		n = 1
	}
	first = max(v.last+1, v.now-int64(n)+1) // mutation: record-draw
	return first, int(min(max(v.now-first+1, 1), int64(n)))
}

// micros returns d in microseconds, rounded up.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
