package redisstore

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// TestEncodedHeadFollowsRequest requires that a change of the request changes the text, although
// the store caches it.
func TestEncodedHeadFollowsRequest(t *testing.T) {
	s := &store{channel: "c", srv: &server.Server{}}
	o := &owned{}
	e := &entry{r: driver.Request{Limit: 1, TTL: 1500 * time.Microsecond, From: o}}
	check := func(text, micros, millis string) {
		t.Helper()
		for range 2 {
			if h := s.encodeHead(e, 0); h.text != text || h.micros != micros || h.millis != millis {
				t.Errorf("%+v, want %q %q %q", h, text, micros, millis)
			}
		}
	}
	check("1 p:c 0&&& ", "1500", "3")
	e.r.Limit = 3
	check("3 p:c 0&&& ", "1500", "3")
	e.r.TTL = time.Nanosecond
	check("3 p:c 0&&& ", "1", "2")
	o.owner.PID = 7
	check("3 p:c 7&&& ", "1", "2")
}

type owned struct {
	noRequester
	owner driver.Owner
}

func (o *owned) Owner() driver.Owner { return o.owner }

func TestReadHolderChecksRecord(t *testing.T) {
	const now = 2_000_000
	h, ok := readHolder("2 5 p:c 7&host&&why ab-1 1700000000000000 1000000 1500000+1500000", now)
	want := driver.Holder{
		Owner: driver.Owner{ID: "ab-1", Host: "host", PID: 7, Reason: "why", Since: time.UnixMicro(1_000_000)},
		Token: 1700000000000000, Tokens: 1, Limit: 5, Slot: 2, TTL: time.Second,
	}
	if !ok || h != want {
		t.Errorf("%+v, %v; want %+v", h, ok, want)
	}
	if h, ok := readHolder("0 1 p:c 7&&& * 17 1000000 3000000+0", now); !ok || h.ID != "" || h.Note == "" || !h.Kept || h.Slot != driver.NoSlot {
		t.Errorf("a released grant that is kept: %+v, %v", h, ok)
	}
	if h, ok := readHolder("0 1 p:c 7&&& id 17 1000000 1000000+1000000", now); !ok || h.TTL > 0 {
		t.Errorf("a grant that expires just now: %+v, %v", h, ok)
	}
	for _, rec := range []string{
		"", "0", "0 1 p:c 7&&& id 17 1000000 9000000000000000000+9000000000000000000",
		"x 1 p:c 7&&& id 17 1000000 3000000+0", "0 1 p:c 7&&& id 17 1000000 3000000",
		"0 1 p:c 7&&& id -17 1000000 3000000+0", "0 1 p:c 7&&& id 17 1000000 3000000+0 more",
	} {
		if h, ok := readHolder(rec, now); ok {
			t.Errorf("%q is read as %+v", rec, h)
		}
	}
}

// FuzzReadHolder requires that the time left of a grant does not overflow.
func FuzzReadHolder(f *testing.F) {
	f.Add("2 5 p:c 7&host&&why ab-1 1700000000000000 1000000 1500000+1500000")
	f.Add("0 1 - & * 1 1 1+1")
	f.Fuzz(func(t *testing.T, rec string) {
		if h, ok := readHolder(rec, 0); ok && h.TTL < 0 {
			t.Errorf("%q: %+v", rec, h)
		}
	})
}
