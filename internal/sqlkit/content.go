package sqlkit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/driver"
)

// content is what the row of a name says: its grants, and those that were taken
// away lately, so that their holders can be told.
type content struct {
	Holders []holder `json:"holders"`
	Taken   []taken  `json:"taken,omitempty"`
}

type holder struct {
	Owner
	Limit   int    `json:"limit"`
	Slot    int    `json:"slot"`
	Token   uint64 `json:"token"`
	Expires int64  `json:"expires"`        // microseconds, by the database's clock
	TTL     int64  `json:"ttl,omitempty"`  // microseconds, of which Expires was made; 0 if not known
	Left    bool   `json:"left,omitempty"` // released to stand until then
}

type taken struct {
	Token uint64 `json:"token"`
	Until int64  `json:"until"`
}

// Owner is driver.Owner in the shape in which a database keeps it.
type Owner struct {
	ID       string `json:"id"`
	Host     string `json:"host,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Instance string `json:"instance,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Since    int64  `json:"since"` // microseconds, by the database's clock
}

// OwnerOf turns an owner into its kept shape.
func OwnerOf(o driver.Owner, since int64) Owner {
	return Owner{ID: o.ID, Host: o.Host, PID: o.PID, Instance: o.Instance, Reason: o.Reason, Since: since}
}

// Driver turns it back.
func (o Owner) Driver() driver.Owner {
	return driver.Owner{ID: o.ID, Host: o.Host, PID: o.PID, Instance: o.Instance, Reason: o.Reason, Since: time.UnixMicro(o.Since)}
}

// Encode writes any value as JSON in ASCII alone, which every character set of a
// database or a session keeps as it is.
func Encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil { // strings and numbers
		panic(err)
	}
	var s strings.Builder
	for _, r := range string(b) {
		switch {
		case r < 0x80:
			s.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&s, `\u%04x`, r)
		default:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&s, `\u%04x\u%04x`, hi, lo)
		}
	}
	return s.String()
}

func decode(s string) (c content, err error) {
	if s == "" {
		return content{}, nil
	}
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return content{}, driver.Errorf(driver.CodeRefused, "the row's state is not holdfast's: %w", err)
	}
	return c, nil
}

// live drops what has run out.
func (c content) live(now int64) content {
	l := content{
		Holders: slices.DeleteFunc(slices.Clone(c.Holders), func(h holder) bool { return h.Expires <= now }),
		Taken:   slices.DeleteFunc(slices.Clone(c.Taken), func(t taken) bool { return t.Until <= now }),
	}
	for i := range l.Holders {
		if h := &l.Holders[i]; h.ahead(now) {
			h.Expires = now + h.TTL
		}
	}
	return l
}

// ahead tells whether the clock was set back since a grant was given: it would stand
// for that much longer. A whole TTL from now is no less than it was promised. What was
// written after now was read, which applyWithin bounds, may seem to be ahead, and is
// not.
func (h *holder) ahead(now int64) bool {
	return h.TTL > 0 && h.Expires > now+h.TTL+applyWithin.Microseconds()
}

// admits is the one rule.
func (c content) admits(limit int) bool {
	for _, h := range c.Holders {
		limit = min(limit, h.Limit)
	}
	return len(c.Holders) < limit
}

func (c content) freeSlot() int {
	for slot := 0; ; slot++ {
		if !slices.ContainsFunc(c.Holders, func(h holder) bool { return h.Slot == slot }) {
			return slot
		}
	}
}

func (c content) byID(id string) *holder {
	for i := range c.Holders {
		if c.Holders[i].ID == id && !c.Holders[i].Left {
			return &c.Holders[i]
		}
	}
	return nil
}

func (c content) wasTaken(token uint64) bool {
	return slices.ContainsFunc(c.Taken, func(t taken) bool { return t.Token == token })
}

func (c *content) remove(match func(holder) bool) bool {
	n := len(c.Holders)
	c.Holders = slices.DeleteFunc(c.Holders, match)
	return len(c.Holders) < n
}

// expires is when the last of them runs out, 0 if there is none.
func (c content) expires() (last int64) {
	for _, h := range c.Holders {
		last = max(last, h.Expires)
	}
	return last
}

// next is when the first of them runs out, 0 if there is none.
func (c content) next() (first int64) {
	for i, h := range c.Holders {
		if i == 0 || h.Expires < first {
			first = h.Expires
		}
	}
	return first
}

func (c content) describe(now int64) []driver.Holder {
	var all []driver.Holder
	for _, h := range c.Holders {
		all = append(all, driver.Holder{Owner: h.Driver(), Token: h.Token, Limit: h.Limit, Slot: h.Slot,
			TTL: time.Duration(h.Expires-now) * time.Microsecond})
	}
	slices.SortFunc(all, func(a, b driver.Holder) int {
		if a.Token < b.Token {
			return -1
		}
		return 1
	})
	return all
}
