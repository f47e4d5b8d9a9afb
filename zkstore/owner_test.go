package zkstore

import (
	"bytes"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// FuzzOwner: no node's data make an owner with long texts or an impossible limit, and only data that
// this client can have written belong to a node with one of holdfast's names.
func FuzzOwner(f *testing.F) {
	ours, other := protected("x")+"lock-0000000001", "_c_a4af9f9d-38fa-4ad5-ba5b-b1b6d6d1c7b7-lock-0000000003"
	f.Add(ours, []byte(`{"id":"x","host":"h","pid":1,"reason":"r","ttl_ms":1000,"limit":3}`), int64(1))
	f.Add(ours, []byte(revoke), int64(0))
	hugePID := `{"id":"x","pid":` + strings.Repeat("9", 1<<19) + "}"
	for _, data := range []string{"", "10.0.0.1", "{}", `{"id":"x","limit":-1}`, hugePID} {
		f.Add(ours, []byte(data), int64(1))
	}
	f.Add(other, []byte("10.0.0.1"), int64(1))
	f.Add(other, []byte(`{"id":"x","limit":-1,"ttl_ms":9223372036854775807}`), int64(1))
	f.Add(ours, bytes.Repeat([]byte("["), 20000), int64(1))
	f.Fuzz(func(t *testing.T, name string, data []byte, session int64) {
		o, broken := decodeOwner(name, data, zk.Stat{EphemeralOwner: session})
		for _, text := range []string{o.ID, o.Host, o.Instance, o.Reason} {
			if len(text) > maxText {
				t.Errorf("a text of %d bytes", len(text))
			}
		}
		if o.TTL < 0 || o.Limit < 0 || o.Limit > driver.MaxLimit && o.Limit != driver.Unlimited || o.Tokens < 0 || o.Tokens > tokenRoom {
			t.Errorf("TTL %s, limit %d, %d tokens", o.TTL, o.Limit, o.Tokens)
		}
		if broken != "" && (!isProtected(name) || o.ID != "") {
			t.Errorf("%q: %+v", broken, o)
		}
		if broken == "" && isProtected(name) && (session == 0 || o.ID == "" && string(data) != revoke) {
			t.Errorf("%q of session %d is believed", data, session)
		}
	})
}

// FuzzNode: no child's name makes a node with an impossible limit, and a name that is escaped is read back.
func FuzzNode(f *testing.F) {
	f.Add("_c_00000000-0000-8000-0000-000000000000-sem3-__WRIT__0000000001")
	f.Add("a-sem99999999999999999999-__WRIT__-000000001")
	f.Add("lock-2147483648")
	f.Fuzz(func(t *testing.T, name string) {
		for _, read := range []func(string) (node, bool){readWriteNode, mutexNode} {
			if n, ok := read(name); ok && (n.limit < 1 || n.limit > driver.MaxLimit && n.limit != driver.Unlimited) {
				t.Errorf("%q has limit %d", name, n.limit)
			}
		}
		if back, ok := unescape(escape(name)); !ok || back != name {
			t.Errorf("%q is %q", name, back)
		}
		if plain, ok := unescape(name); ok && escape(plain) != name {
			t.Errorf("%q and %q are one name", name, escape(plain))
		}
	})
}

// FuzzBase: no data of the node with the base make tokens overflow.
func FuzzBase(f *testing.F) {
	f.Add([]byte(`{"token_base":4294967296,"before":7}`), int64(5))
	f.Add([]byte(`{"token_base":18446744073709551615}`), int64(1)<<62)
	f.Fuzz(func(t *testing.T, data []byte, czxid int64) {
		s := &store{cfg: config{room: tokenRoom}}
		b, err := s.parseBase(&zk.Call{Data: data, Stat: zk.Stat{Mzxid: 9, Version: 1}})
		if err != nil || czxid < 0 || czxid >= 1<<56 {
			return
		}
		if b.since != 9 || b.version != 1 || s.token(b, czxid) < uint64(czxid) || s.token(b, czxid+1) <= s.token(b, czxid) || s.token(b, czxid)+tokenRoom > driver.MaxToken {
			t.Errorf("%q: %+v: token %d", data, b, s.token(b, czxid))
		}
	})
}
