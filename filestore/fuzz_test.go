//go:build linux || darwin

package filestore

import (
	"bytes"
	"context"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// counter counts the losses of a request.
type counter struct{ lost int }

func (c *counter) Owner() driver.Owner      { return driver.Owner{} }
func (c *counter) Queued([]driver.Holder)   {}
func (c *counter) Lost(driver.Cause, error) { c.lost++ }
func request(id string, from *counter) driver.Request {
	return driver.Request{ID: id, Name: "a", Limit: driver.Exclusive, From: from}
}

// FuzzBucket writes any content into a bucket, with correct checksums unless raw is set, and uses the name.
// Every call returns. A grant follows only from a list that the store can decode, without a live holder, and
// its token is above the counter. An error of a broken record names the file, and the file stays unchanged.
func FuzzBucket(f *testing.F) {
	ctx := f.Context()
	s, err := Open(ctx, f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close(context.Background()) })
	g, err := s.Acquire(ctx, request("first", &counter{}))
	if err != nil {
		f.Fatal(err)
	}
	sid, b := s.sess.Load().sid, s.bucketOf("a")
	if err := s.Release(ctx, g, 0); err != nil {
		f.Fatal(err)
	}
	e := entry{name: "a", id: "x", sid: sid, limit: 1, slot: -1, tokens: 1, since: 5, token: 6}
	alive := appendEntry(nil, &e)
	e.sid = "abcdefghijkl2345"
	dead := appendEntry(nil, &e)
	e.token = 0
	waiter := appendEntry(nil, &e)
	e.sid = "../outside"
	f.Add(alive, uint64(6), uint64(100), uint64(0), true, false)
	f.Add(append(bytes.Clone(alive), alive...), uint64(6), uint64(100), uint64(0), true, false)
	f.Add(append(bytes.Clone(dead), waiter...), uint64(6), uint64(100), uint64(0), false, false)
	f.Add(append(bytes.Clone(dead), waiter...), uint64(maxCounter), uint64(100), uint64(0), true, false)
	f.Add(appendEntry(nil, &e), uint64(6), uint64(100), uint64(0), true, false)
	f.Add(alive, uint64(6), uint64(maxCounter), uint64(1<<40), true, false)
	f.Add([]byte("another file"), uint64(0), uint64(0), uint64(0), true, true)
	f.Fuzz(func(t *testing.T, body []byte, last, ceiling, off uint64, boot, raw bool) {
		page := make([]byte, pageLen)
		h := header{off: inlineAt + off, length: uint64(len(body)), last: last, ceiling: ceiling}
		h.sum = crc32.Checksum(body, castagnoli)
		if boot {
			h.boot = s.boot
		}
		putHeader(page, &h)
		page = append(page[:inlineAt], body...)
		if raw {
			page = body
		}
		must.Succeed(t, os.WriteFile(b.path, page, 0o600))
		from := &counter{}
		g, err := s.Acquire(t.Context(), request("request", from))
		now, rerr := os.ReadFile(b.path)
		if rerr != nil {
			t.Fatal(rerr)
		}
		switch {
		case err == nil:
			if g.Token <= last && boot && !raw {
				t.Fatalf("token %d, and the counter was %d", g.Token, last)
			}
			es, perr := parseBody(nil, string(body), h.sum)
			for i := range es {
				if e := &es[i]; perr == nil && !raw && off == 0 && e.name == "a" && e.ns == "" && e.token > 0 && e.sid == sid {
					t.Fatalf("granted beside %+v", e)
				}
			}
			must.Succeed(t, s.Release(t.Context(), g, 0))
		case driver.CodeOf(err) == driver.CodeRefused:
			_, whole := parseHeader(page) // then the entries of dead sessions may be removed meanwhile
			if !bytes.Contains([]byte(err.Error()), []byte(b.path)) || !whole && !bytes.Equal(now, page) {
				t.Fatalf("%v, and the file became %x", err, now)
			}
		case driver.CodeOf(err) != driver.CodeBusy:
			t.Fatal(err)
		}
		if _, err := s.Inspect(t.Context(), "a"); err != nil && driver.CodeOf(err) != driver.CodeRefused {
			t.Fatal(err)
		}
	})
}

// FuzzMessages sends any bytes to the session of a holder. The lock stays as it is.
func FuzzMessages(f *testing.F) {
	ctx := f.Context()
	s, err := Open(ctx, f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close(context.Background()) })
	from := &counter{}
	g, err := s.Acquire(ctx, request("holder", from))
	if err != nil {
		f.Fatal(err)
	}
	for _, kind := range []byte{msgReread, msgEnd, 'g'} {
		f.Add(append(frame(kind, "holder"), frame(kind, "")...))
	}
	f.Add([]byte{255, 'g'})
	f.Fuzz(func(t *testing.T, stream []byte) {
		for r := bytes.NewReader(stream); ; {
			kind, id, err := readFrame(r)
			if err != nil {
				break
			}
			s.handle(kind, id)
		}
		if err := s.checkGrant(t.Context(), g); err != nil || from.lost > 0 {
			t.Fatalf("%v, and %d losses", err, from.lost)
		}
	})
}

// FuzzValue reads any content as a value. An error names the file.
func FuzzValue(f *testing.F) {
	ctx := f.Context()
	s, err := Open(ctx, f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close(context.Background()) })
	if _, err := s.Put(ctx, "k", []byte("data"), ""); err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(s.path(valuesDir), s.valueFile("k"))
	f.Add([]byte("version\nk\ndata"))
	f.Add([]byte("\n\n"))
	f.Add([]byte("no line"))
	f.Fuzz(func(t *testing.T, content []byte) {
		must.Succeed(t, os.WriteFile(path, content, 0o600))
		data, version, err := s.Get(t.Context(), "k")
		if err != nil {
			if driver.CodeOf(err) != driver.CodeRefused || !bytes.Contains([]byte(err.Error()), []byte(path)) {
				t.Fatal(err)
			}
			return
		}
		if version == "" || len(data) > driver.MaxValue || !bytes.HasSuffix(content, data) {
			t.Fatalf("%d bytes of version %q", len(data), version)
		}
	})
}
