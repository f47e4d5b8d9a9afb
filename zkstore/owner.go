package zkstore

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
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
	Limit    int    `json:"limit,omitempty"` // the node's name does not always show it
}

// maxText is the largest length of each text of an owner, in bytes.
const maxText = 1 << 10

func encodeOwner(o driver.Owner, ttl time.Duration, limit int) []byte {
	d := ownerData{ID: o.ID, Host: clip(o.Host), PID: o.PID, Instance: clip(o.Instance), Reason: clip(o.Reason), TTL: ttl.Milliseconds(), Limit: limit}
	b, err := json.Marshal(d)
	if err != nil {
		return nil // unreachable: d has only strings and numbers
	}
	return b
}

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	s = s[:maxText]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}

// revoke is the text that Curator's Revoker writes into a holder's node. It requests that the holder
// release the lock.
const revoke = "__REVOKE__"

// decodeOwner parses a node's data. It returns the text of another program as the host.
func decodeOwner(data []byte, st zk.Stat) (o driver.Owner, ttl time.Duration, limit int) {
	// For a node of another client library ttl stays 0, because its session timeout is unknown.
	var d ownerData
	switch err := json.Unmarshal(data, &d); {
	case err == nil && d.ID != "":
		o = driver.Owner{ID: d.ID, Host: d.Host, PID: d.PID, Instance: d.Instance, Reason: d.Reason}
		if d.TTL > 0 && d.TTL < int64(24*time.Hour/time.Millisecond) {
			ttl = time.Duration(d.TTL) * time.Millisecond
		}
	case string(data) != revoke && utf8.Valid(data):
		o.Host = clip(string(data)) // Curator writes the address of its host
	}
	o.Since = time.UnixMilli(st.Ctime)
	return o, ttl, d.Limit
}
