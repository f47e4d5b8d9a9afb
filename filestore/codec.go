//go:build linux || darwin

package filestore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/printable"
)

// A bucket file begins with a header of headerLen bytes. The body, the list of entries, follows at
// inlineAt if it fits in the first page. Then one pwrite inside one page replaces header and body
// together, and the kernel does not interrupt such a write for a signal. A longer body has a region
// of its own, which never overlaps the body that it replaces. It is valid when the header is written.
const (
	magic     = "hfbucket"
	headerLen = 72
	inlineAt  = 128
	pageLen   = 4096
	inlineMax = pageLen - inlineAt
	// maxBody is above the size that the processes of a machine need. It limits the memory that a body
	// of another program costs.
	maxBody = 1 << 22
	// maxCounter limits the counter of tokens. Only another program sets a higher one.
	maxCounter = driver.MaxToken - 1<<20
	// maxField is the limit of each text of an entry; names, IDs and namespaces have smaller
	// limits.
	maxField = 1024
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type bootID [16]byte

// header is the part of a bucket that locates its body.
type header struct {
	// seq is the number of writes of the file.
	seq uint64
	// off, length and sum locate and verify the body.
	off, length uint64
	sum         uint32
	// last is the latest token granted, ceiling the highest one that may be granted without
	// another fdatasync.
	last, ceiling uint64
	// boot identifies the boot of the machine that wrote the file: the last writes of an earlier
	// boot may be lost.
	boot bootID
}

func putHeader(b []byte, h *header) {
	_ = b[headerLen-1]
	copy(b, magic)
	binary.LittleEndian.PutUint64(b[8:], h.seq)
	binary.LittleEndian.PutUint64(b[16:], h.off)
	binary.LittleEndian.PutUint64(b[24:], h.length)
	binary.LittleEndian.PutUint64(b[32:], h.last)
	binary.LittleEndian.PutUint64(b[40:], h.ceiling)
	copy(b[48:64], h.boot[:])
	binary.LittleEndian.PutUint32(b[64:], h.sum)
	binary.LittleEndian.PutUint32(b[68:], crc32.Checksum(b[:68], castagnoli))
}

// parseHeader decodes a header. It returns false for bytes that putHeader did not write.
func parseHeader(b []byte) (h header, ok bool) {
	if len(b) < headerLen || string(b[:8]) != magic ||
		binary.LittleEndian.Uint32(b[68:]) != crc32.Checksum(b[:68], castagnoli) {
		return h, false
	}
	h.seq = binary.LittleEndian.Uint64(b[8:])
	h.off = binary.LittleEndian.Uint64(b[16:])
	h.length = binary.LittleEndian.Uint64(b[24:])
	h.last = binary.LittleEndian.Uint64(b[32:])
	h.ceiling = binary.LittleEndian.Uint64(b[40:])
	copy(h.boot[:], b[48:64])
	h.sum = binary.LittleEndian.Uint32(b[64:])
	placed := h.off == inlineAt && h.length <= inlineMax || h.off >= pageLen && h.off <= 2*maxBody
	return h, placed && h.length <= maxBody && h.last <= maxCounter && h.ceiling <= maxCounter
}

// entry is one request: a grant, or a waiter, whose token is 0.
type entry struct {
	ns, name, id   string
	sid            string // the session; the entry ends with it. "" in a kept grant, which ends at until
	host, instance string
	reason         string
	pid            int
	limit          int
	slot           int
	since          int64 // microseconds since 1970
	token          uint64
	tokens         int   // the number that an exclusive grant has or requests
	endRequested   bool  // an operator has requested the holder to end
	until          int64 // of a grant that was released and is kept: the end, in microseconds since 1970; else 0

	// wasAhead records the session that the waiter watched before the present change: that of the waiter before
	// it. It is "" for the first waiter, which watched the holders' sessions. The file does not contain it.
	wasAhead string
}

// mark returns the value of the file's slot field: the slot's number plus one. An exclusive entry has
// no slot, so its mark is the number of tokens beyond the first.
func (e *entry) mark() uint64 {
	if e.limit == driver.Exclusive {
		return uint64(max(e.tokens, 1) - 1)
	}
	return uint64(e.slot + 1)
}

func readMark(limit int, mark uint64) (slot, tokens int) {
	if limit == driver.Exclusive {
		return driver.NoSlot, int(mark) + 1
	}
	return int(mark) - 1, 1
}

// The flags of an entry. A kept one has the time until, and neither a session nor an ID.
const (
	flagEndRequested = 1 << iota
	flagKept
)

var errDamaged = errors.New("damaged list of entries")

func appendEntry(b []byte, e *entry) []byte {
	var flags byte
	if e.endRequested {
		flags = flagEndRequested
	}
	if e.until > 0 {
		flags |= flagKept
	}
	b = append(b, flags)
	for _, n := range [...]uint64{e.token, uint64(e.limit), e.mark(), uint64(e.pid), uint64(e.since)} {
		b = binary.AppendUvarint(b, n)
	}
	if e.until > 0 {
		b = binary.AppendUvarint(b, uint64(e.until))
	}
	for _, s := range [...]string{e.ns, e.name, e.id, e.sid, e.host, e.instance, e.reason} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

// parseBody appends the entries of a body with a correct checksum. The texts share the memory of
// body.
func parseBody(into []entry, body string, sum uint32) ([]entry, error) {
	if crc32.Checksum([]byte(body), castagnoli) != sum {
		return into, errDamaged
	}
	r := reader{s: body}
	for r.s != "" {
		into = append(into, entry{})
		e := &into[len(into)-1]
		flags := r.byte()
		e.endRequested = flags&flagEndRequested != 0
		e.token = r.number(driver.MaxToken - 1)
		e.limit = int(r.number(driver.Unlimited))
		e.slot, e.tokens = readMark(e.limit, r.number(driver.MaxLimit))
		e.pid = int(r.number(math.MaxInt32))
		e.since = int64(r.number(math.MaxInt64))
		if flags&flagKept != 0 {
			e.until = int64(r.number(math.MaxInt64))
		}
		for _, s := range [...]*string{&e.ns, &e.name, &e.id, &e.sid, &e.host, &e.instance, &e.reason} {
			*s = r.text()
		}
		held := e.until == 0 && e.id != "" && isSID(e.sid)
		kept := e.until > 0 && e.id == "" && e.sid == "" && e.token > 0
		if r.bad || flags > flagEndRequested|flagKept || e.limit < 1 || e.name == "" || !held && !kept {
			return into, errDamaged
		}
	}
	return into, nil
}

// reader reads the fields of a body; bad is set if one is missing.
type reader struct {
	s   string
	bad bool
}

func (r *reader) byte() byte {
	if r.s == "" {
		r.bad = true
		return 0
	}
	c := r.s[0]
	r.s = r.s[1:]
	return c
}

func (r *reader) number(most uint64) uint64 {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		c := r.byte()
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			if n > most || r.bad {
				break
			}
			return n
		}
	}
	r.bad = true
	return 0
}

func (r *reader) text() string {
	n := r.number(maxField)
	if uint64(len(r.s)) < n {
		r.bad = true
		return ""
	}
	s := r.s[:n]
	r.s = r.s[n:]
	return s
}

// clip cuts a text to the limit of the file format.
func clip(s string) string { return printable.Clip(s, maxField) }
