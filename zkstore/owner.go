package zkstore

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/printable"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// ownerData is the content of the nodes of holdfast, for people and for Inspect. Curator's nodes
// contain an address or other text.
type ownerData struct {
	ID       string `json:"id"`
	Host     string `json:"host,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Instance string `json:"instance,omitempty"`
	Reason   string `json:"reason,omitempty"`
	TTL      int64  `json:"ttl_ms,omitempty"`
	Limit    int    `json:"limit,omitempty"`  // the node's name does not always show it
	Tokens   int    `json:"tokens,omitempty"` // how many the grant has, if it has several
}

// maxText is the largest length of each text of an owner, in bytes.
const maxText = 1 << 10

// data returns the content of a request's node.
func (ss *session) data(r driver.Request) []byte {
	o := r.From.Owner()
	d := ownerData{ID: o.ID, Host: clip(o.Host), PID: o.PID, Instance: clip(o.Instance), Reason: clip(o.Reason), TTL: ss.ttl.Milliseconds(), Limit: r.Limit}
	if n := ss.s.tokens(r); n > 1 {
		d.Tokens = n
	}
	b, err := json.Marshal(d)
	if err != nil {
		return nil // unreachable: d has only strings and numbers
	}
	return b
}

func clip(s string) string { return printable.Clip(s, maxText) }

// revoke is the text that Curator's Revoker writes into a holder's node. It requests that the holder
// release the lock.
const revoke = "__REVOKE__"

// decodeOwner returns the owner, TTL, limit and number of tokens in a node's data. It returns the text of another
// program as the host. broken is why no client can have written the data of a node whose name is one of holdfast's,
// "" if one can.
func decodeOwner(name string, data []byte, st zk.Stat) (h driver.Holder, broken string) {
	// For a node of another client library the TTL stays 0, because its session timeout is unknown.
	h.Since = time.UnixMilli(st.Ctime)
	ours := isProtected(name)
	var d ownerData
	switch err := json.Unmarshal(data, &d); {
	case ours && st.EphemeralOwner == 0:
		return h, "it belongs to no session, so it would stay forever"
	case string(data) == revoke:
		h.Note = "end requested"
	case err == nil && d.valid():
		h.ID, h.Host, h.PID, h.Instance, h.Reason = clip(d.ID), clip(d.Host), d.PID, clip(d.Instance), clip(d.Reason)
		if d.TTL > 0 && d.TTL < int64(24*time.Hour/time.Millisecond) {
			h.TTL = time.Duration(d.TTL) * time.Millisecond
		}
		h.Limit, h.Tokens = d.Limit, d.Tokens
	case ours:
		return h, "its data cannot be decoded"
	case utf8.Valid(data):
		h.Host = clip(string(data)) // Curator writes the address of its host
	}
	return h, ""
}

func (d *ownerData) valid() bool {
	return d.ID != "" && d.Limit >= 0 && (d.Limit <= driver.MaxLimit || d.Limit == driver.Unlimited) &&
		d.Tokens >= 0 && d.Tokens <= tokenRoom
}
