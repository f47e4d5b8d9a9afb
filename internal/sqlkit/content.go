package sqlkit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/holdfast-go/holdfast/driver"
)

// content is the state in a name's row: its grants, and the grants that were broken
// lately, so that their holders get the right cause.
type content struct {
	Holders []holder `json:"holders"`
	Taken   []taken  `json:"taken,omitempty"`
}

type holder struct {
	Owner
	Limit   int    `json:"limit"`
	Slot    int    `json:"slot"`
	Token   uint64 `json:"token"`
	Tokens  int    `json:"tokens,omitempty"` // how many it has; 0 means 1
	Expires int64  `json:"expires"`          // microseconds, by the database's clock
	TTL     int64  `json:"ttl,omitempty"`    // microseconds from the grant, its last renewal or its release to Expires; 0 if unknown
	Left    bool   `json:"left,omitempty"`   // released, and stays until Expires
}

// taken is a grant that was broken. The row keeps it until Until.
type taken struct {
	Token uint64 `json:"token"`
	Until int64  `json:"until"` // microseconds, by the database's clock
}

// Owner is driver.Owner as a database stores it.
type Owner struct {
	ID       string `json:"id"`
	Host     string `json:"host,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Instance string `json:"instance,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Since    int64  `json:"since"` // microseconds, by the database's clock
}

// OwnerOf converts an owner to its stored form.
func OwnerOf(o driver.Owner, since int64) Owner {
	return Owner{ID: o.ID, Host: o.Host, PID: o.PID, Instance: o.Instance, Reason: o.Reason, Since: since}
}

// Driver converts the stored form back to a driver.Owner.
func (o Owner) Driver() driver.Owner {
	return driver.Owner{ID: o.ID, Host: o.Host, PID: o.PID, Instance: o.Instance, Reason: o.Reason, Since: time.UnixMicro(o.Since)}
}

// Encode writes a value as JSON in ASCII. Every character set of a database or session
// keeps ASCII unchanged.
func Encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil { // the fields are strings and numbers
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

// live returns the content without what has expired, and shortens grants that are ahead.
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

// ahead reports whether the clock was set back since the grant: Expires is then more than
// a TTL away, and live shortens it to one TTL. A grant that was written after now was read
// may seem to be ahead; applyTimeout limits by how much.
func (h *holder) ahead(now int64) bool {
	return h.TTL > 0 && h.Expires > now+h.TTL+applyTimeout.Microseconds()
}

// admits reports whether one more grant of limit is allowed.
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

// lastExpiry returns when the last grant expires, 0 if there is none.
func (c content) lastExpiry() (last int64) {
	for _, h := range c.Holders {
		last = max(last, h.Expires)
	}
	return last
}

// firstExpiry returns when the first grant expires, 0 if there is none.
func (c content) firstExpiry() (first int64) {
	for i, h := range c.Holders {
		if i == 0 || h.Expires < first {
			first = h.Expires
		}
	}
	return first
}

// describe returns the holders, ordered by their tokens.
func (c content) describe(now int64) []driver.Holder {
	var all []driver.Holder
	for _, h := range c.Holders {
		all = append(all, driver.Holder{Owner: h.Driver(), Token: h.Token, Tokens: h.Tokens, Limit: h.Limit, Slot: h.Slot,
			TTL: time.Duration(h.Expires-now) * time.Microsecond})
	}
	slices.SortFunc(all, func(a, b driver.Holder) int { return cmp.Compare(a.Token, b.Token) })
	return all
}
