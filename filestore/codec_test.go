//go:build linux || darwin

package filestore

import (
	"bytes"
	"context"
	"hash/crc32"
	"os"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

func drawEntry(t *rapid.T) entry {
	text := rapid.StringN(0, 40, maxField-1)
	e := entry{
		ns: text.Draw(t, "ns"), name: "n" + text.Draw(t, "name"), id: "i" + text.Draw(t, "id"),
		sid: rapid.StringMatching("[a-z2-7]{16}").Draw(t, "sid"), host: text.Draw(t, "host"),
		instance: text.Draw(t, "instance"), reason: text.Draw(t, "reason"),
		pid:          rapid.IntRange(0, 1<<31-1).Draw(t, "pid"),
		limit:        rapid.SampledFrom([]int{1, 2, driver.MaxLimit, driver.Unlimited}).Draw(t, "limit"),
		slot:         rapid.IntRange(driver.NoSlot, driver.MaxLimit-1).Draw(t, "slot"),
		since:        rapid.Int64Range(0, 1<<62).Draw(t, "since"),
		token:        rapid.Uint64Range(0, driver.MaxToken-1).Draw(t, "token"),
		endRequested: rapid.Bool().Draw(t, "end requested"), tokens: 1,
	}
	if e.limit == driver.Exclusive {
		e.slot, e.tokens = driver.NoSlot, rapid.IntRange(1, maxTokens).Draw(t, "tokens")
	}
	if e.token > 0 && rapid.Bool().Draw(t, "kept") {
		e.id, e.sid, e.until = "", "", rapid.Int64Range(1, 1<<62).Draw(t, "until")
	}
	return e
}

func TestEntriesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		es := rapid.SliceOf(rapid.Custom(drawEntry)).Draw(t, "entries")
		var body []byte
		for i := range es {
			body = appendEntry(body, &es[i])
		}
		got, err := parseBody(nil, string(body), crc32.Checksum(body, castagnoli))
		if err != nil || len(got) != len(es) || len(es) > 0 && !reflect.DeepEqual(got, es) {
			t.Fatalf("%+v became %+v, %v", es, got, err)
		}
	})
}

func TestHeaderComesBack(t *testing.T) {
	want := header{seq: 7, off: 8192, length: 5000, sum: 99, last: 1 << 50, ceiling: 1<<50 + 5, boot: bootID{1, 2, 3}}
	b := make([]byte, headerLen)
	putHeader(b, &want)
	got, ok := parseHeader(b)
	if !ok || got != want {
		t.Fatalf("%+v, %v", got, ok)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 0x10
		if _, ok := parseHeader(bad); ok {
			t.Errorf("accepted with byte %d changed", i)
		}
	}
}

// FuzzBody requires that parseBody refuses a body, or that the parsed entries encode to the same bytes.
// It refuses a body with a wrong checksum.
func FuzzBody(f *testing.F) {
	e := entry{ns: "n", name: "name", id: "id", sid: "abcdefghijkl2345", host: "h", reason: "r", pid: 1, limit: 1, slot: -1, tokens: 7, since: 5, token: 6, endRequested: true}
	one := appendEntry(nil, &e)
	f.Add(one, uint32(0))
	f.Add(appendEntry(nil, &entry{name: "name", host: "h", pid: 1, limit: 2, slot: 1, tokens: 1, token: 6, until: 9}), uint32(0))
	f.Add(append(one, one...), uint32(1))
	f.Add(one[:len(one)-1], uint32(0))
	f.Add([]byte{}, uint32(0))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, uint32(0))
	f.Fuzz(func(t *testing.T, body []byte, off uint32) {
		sum := crc32.Checksum(body, castagnoli)
		es, err := parseBody(nil, string(body), sum+off)
		if off != 0 {
			if err == nil {
				t.Fatal("accepted with a wrong checksum")
			}
			return
		}
		if err != nil {
			return
		}
		var back []byte
		for i := range es {
			if es[i].limit < 1 || es[i].token >= driver.MaxToken || es[i].slot < driver.NoSlot || es[i].slot >= driver.MaxLimit {
				t.Fatalf("accepted %+v", es[i])
			}
			back = appendEntry(back, &es[i])
		}
		again, err := parseBody(nil, string(back), crc32.Checksum(back, castagnoli))
		if err != nil || !reflect.DeepEqual(again, es) {
			t.Fatalf("%+v became %+v, %v", es, again, err)
		}
	})
}

func FuzzHeader(f *testing.F) {
	b := make([]byte, headerLen)
	putHeader(b, &header{off: inlineAt, last: 1, ceiling: 2})
	f.Add(b)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := parseHeader(b)
		if !ok {
			return
		}
		if h.length > maxBody || h.last >= driver.MaxToken || h.off < inlineAt {
			t.Fatalf("accepted %+v", h)
		}
		back := make([]byte, headerLen)
		if putHeader(back, &h); !bytes.Equal(back, b[:headerLen]) {
			t.Fatalf("%x became %x", b[:headerLen], back)
		}
	})
}

// TestLongListIsRefused: a header names a list that is longer than any list of a store, in a large sparse file. The
// store does not read it, and writes no such list.
func TestLongListIsRefused(t *testing.T) {
	ctx := t.Context()
	s, err := Open(ctx, t.TempDir())
	must.Succeed(t, err)
	defer s.Close(ctx)
	b := s.bucketOf("a")
	must.Succeed(t, b.lock(ctx, true))
	e := entry{name: "a", id: "x", sid: "abcdefghijkl2345", limit: 1, reason: strings.Repeat("r", maxField)}
	for range maxBody/maxField + 1 {
		b.entries = append(b.entries, e)
	}
	if err := b.write(); driver.CodeOf(err) != driver.CodeRefused {
		t.Errorf("writing a list that is too long: %v", err)
	}
	page := make([]byte, headerLen)
	putHeader(page, &header{off: pageLen, length: maxBody + 1, boot: s.boot})
	if _, err := pwrite(b.fd, page, 0); err != nil {
		t.Fatal(err)
	}
	b.unlock()
	if cap(b.out) > keptBody || cap(b.entries) > 0 {
		t.Errorf("%d bytes and %d entries are kept", cap(b.out), cap(b.entries))
	}
	must.Succeed(t, os.Truncate(b.path, 1<<29))
	if err := b.lock(ctx, true); driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), b.path) {
		t.Errorf("reading a list that is too long: %v", err)
	}
}

// TestCutWriteKeepsOldState: a process is killed while it writes a long body. The bucket
// still has its old state.
func TestCutWriteKeepsOldState(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, t.TempDir())
	must.Succeed(t, err)
	defer s.Close(ctx)
	b := s.bucketOf("a")
	fill := func(n int, reason string) {
		b.entries = nil
		for range n {
			b.entries = append(b.entries, entry{name: "a", id: "x", sid: "abcdefghijkl2345", limit: 1, reason: reason})
		}
	}
	for _, sizes := range [][2]int{{0, 1}, {1, 2}, {2, 200}, {200, 300}, {300, 100}, {100, 101}, {101, 1}, {1, 0}} {
		must.Succeed(t, b.lock(ctx, true))
		fill(sizes[0], strings.Repeat("o", 60))
		must.Succeed(t, b.write())
		old := b.header
		b.unlock()

		must.Succeed(t, b.lock(ctx, true))
		if b.header != old || len(b.entries) != sizes[0] {
			t.Fatalf("%d entries became %d", sizes[0], len(b.entries))
		}
		fill(sizes[1], strings.Repeat("n", 60))
		must.Succeed(t, b.write())
		// A kill before the last write leaves the old header and the new body, if the body
		// has a region of its own.
		if b.off >= pageLen {
			if old.off >= pageLen && b.off < old.off+old.length && old.off < b.off+b.length {
				t.Fatalf("body at %d+%d over %d+%d", b.off, b.length, old.off, old.length)
			}
			page := make([]byte, headerLen)
			putHeader(page, &old)
			if _, err := pwrite(b.fd, page, 0); err != nil {
				t.Fatal(err)
			}
			b.unlock()
			must.Succeed(t, b.lock(ctx, true))
			if len(b.entries) != sizes[0] {
				t.Fatalf("%d entries became %d by a cut write", sizes[0], len(b.entries))
			}
		}
		b.unlock()
	}
	// When a long body has become short, the file is short again.
	info, err := os.Stat(b.path)
	if err != nil || info.Size() > pageLen {
		t.Errorf("an empty bucket: %v, %v", info, err)
	}
}
