package record

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
)

// TestAheadUsesTTL: if the expiry time of a grant is further away than its TTL, the clock
// was set back, and the grant stands for its TTL. The expiry time stays if the TTL is
// unknown, or if the row may have been written after the time was read.
func TestAheadUsesTTL(t *testing.T) {
	const now, ttl = int64(1e15), int64(1e6)
	late := ApplyTime.Microseconds()
	for name, c := range map[string]struct{ expires, ttl, want int64 }{
		"as given":           {now + ttl, ttl, now + ttl},
		"written after now":  {now + ttl + late, ttl, now + ttl + late},
		"clock set back":     {now + ttl + late + 1, ttl, now + ttl},
		"of unknown TTL":     {now + ttl + late + 1, 0, now + ttl + late + 1},
		"has run out":        {now, ttl, 0},
		"long, not set back": {now + 100*ttl, 100 * ttl, now + 100*ttl},
	} {
		l := content{Holders: []holder{{Limit: 1, Expires: c.expires, TTL: c.ttl}}}.live(now)
		if got := l.lastExpiry(); got != c.want {
			t.Errorf("%s: until %+d, want %+d", name, got-now, c.want-now)
		}
	}
}

// TestDrawnTokensRise: the tokens of a grant are above all earlier ones
// of the name. Several of them are not ahead of the clock, and the first grant of a record has one.
func TestDrawnTokensRise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, last := int64(1_000_000), int64(0)
		for range 50 {
			now += rapid.Int64Range(-50, 200).Draw(t, "passed") // the clock may be set back
			v := &view{version: rapid.SampledFrom([]string{"", "1"}).Draw(t, "version"), now: now}
			v.last = last
			n := rapid.IntRange(1, 100).Draw(t, "requested")
			first, got := v.draw(n)
			end := first + int64(got) - 1
			switch {
			case first <= last:
				t.Fatalf("token %d after %d", first, last)
			case got < 1 || got > n:
				t.Fatalf("%d tokens of %d", got, n)
			case got > 1 && (end > now || v.version == ""):
				t.Fatalf("%d tokens up to %d, the clock is at %d, the record exists: %t", got, end, now, v.version != "")
			}
			last = end
		}
	})
}

// TestEncodeIsASCII: encode returns only ASCII, and JSON decodes it to the same text.
func TestEncodeIsASCII(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "text")
		e := string(encode(&content{Taken: []taken{}, Holders: []holder{{owner: owner{Reason: s}}}}))
		for _, c := range []byte(e) {
			if c >= 0x80 {
				t.Fatalf("%q has a character that is not ASCII", e)
			}
		}
		var decoded content
		if err := json.Unmarshal([]byte(e), &decoded); err != nil || decoded.Holders[0].Reason != s {
			t.Fatalf("%q is decoded to %+v, %v", s, decoded, err)
		}
	})
}

// FuzzContent: no record makes a holder with an impossible limit, slot or time. A request is granted only
// beside holders whose limits allow it, with a larger token, and what it writes is read back.
func FuzzContent(f *testing.F) {
	f.Add(encode(&content{Token: 5}), uint64(7), 1)
	f.Add(encode(&content{Token: 9, Holders: []holder{{owner: owner{ID: "a"}, Limit: 3, Slot: 2, Token: 9, Expires: 1 << 51, TTL: 1e6}}}), uint64(9), 3)
	f.Add([]byte(`{"holders":[{"id":"a","limit":1,"slot":-1,"expires":9223372036854775807,"ttl":9223372036854775807}]}`), uint64(1), 1)
	f.Add([]byte(`{"holders":[],"taken":[{"token":1,"until":-1}],"token":9223372036854775807}`), uint64(0), driver.Unlimited)
	f.Add([]byte(`{"holders":`+strings.Repeat("[", 20000)), uint64(math.MaxUint64), 2)
	f.Fuzz(func(t *testing.T, data []byte, floor uint64, limit int) {
		if limit < driver.Exclusive || limit > driver.MaxLimit {
			limit = driver.Unlimited
		}
		const now = int64(1) << 50
		e := &engine{}
		read := func(data []byte) *view {
			var v *view
			p := &op{key: "\x00name", step: func(read *view) (*content, error) { v = read; return nil, nil }}
			e.decide(p, &Result{Object: Object{Data: data, Version: "1", Now: time.UnixMicro(now), Floor: floor}}, driver.Now())
			if v == nil && driver.CodeOf(p.err) != driver.CodeRefused {
				t.Fatalf("%q: %v", data, p.err)
			}
			return v
		}
		v := read(data)
		if v == nil {
			return
		}
		for _, h := range v.describe(now) {
			if h.ID == "" || h.Limit < 1 || h.Slot < driver.NoSlot || h.Slot >= h.Limit || h.TTL <= 0 || len(v.Holders) > h.Limit {
				t.Fatalf("%q: %+v", data, h)
			}
		}
		if !v.admits("", limit) {
			return
		}
		c := claim{e: e, r: driver.Request{ID: "new", Name: "name", Limit: limit, TTL: time.Minute, From: noRequester{}}}
		p := &op{}
		next := c.write(p, v)
		if p.token <= v.Token || uint64(p.token) <= floor {
			t.Fatalf("token %d after %d and %d", p.token, v.Token, floor)
		}
		next.Token = p.token
		if again := read(encode(next)); p.token <= maxToken && (again == nil || len(again.Holders) != len(v.Holders)+1) {
			t.Fatalf("%q is read back as %+v", encode(next), again)
		}
	})
}

// noRequester ignores every call.
type noRequester struct{}

func (noRequester) Owner() driver.Owner      { return driver.Owner{ID: "another ID"} }
func (noRequester) Queued([]driver.Holder)   {}
func (noRequester) Lost(driver.Cause, error) {}
