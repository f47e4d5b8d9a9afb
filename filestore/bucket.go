//go:build linux || darwin

package filestore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	// reservedMicros is how far ahead of the clock one fdatasync makes tokens safe to use.
	reservedMicros = 10_000_000
	// reservedAhead is the number of tokens that one fdatasync makes safe to use while the counter is ahead of the
	// clock. An fdatasync takes longer than so many microseconds. So even if each request comes after a crash, or
	// from a process that reads another ID of the boot, the counter moves no further ahead.
	reservedAhead = 64
)

// keptBody is the length of the longest body whose memory a bucket keeps for the next one.
const keptBody = 1 << 18

// bucket is one file of names. A goroutine that holds the lock of its file may read and change the other fields.
type bucket struct {
	lockFile
	page  []byte // the first page, as read
	out   []byte // the page or body being written
	empty bool   // the file was never written
	state
}

// lock enters the critical section and reads the state. If another process is stopped in the
// critical section, lock waits until ctx ends or Close is called. If the file does not exist, lock
// creates it, or without create finds no entries.
func (b *bucket) lock(ctx context.Context, create bool) error {
	return b.lockUntil(ctx, b.store.calls.Ctx.Done(), create)
}

// lockUntil is like lock, but waits until ctx ends or done is closed. A nil done is never closed.
func (b *bucket) lockUntil(ctx context.Context, done <-chan struct{}, create bool) error {
	if err := b.enter(ctx, done, create); err != nil {
		return err
	}
	if err := b.read(); err != nil {
		b.unlock()
		return err
	}
	return nil
}

// unlock leaves the critical section. It returns the notices of the changes that were made there.
func (b *bucket) unlock() []notice {
	n := b.notices
	b.notices = nil
	if cap(b.out) > keptBody {
		b.out, b.entries = nil, nil // a long list is rare, and its memory is not kept
	}
	b.leave()
	return n
}

// read loads the state, without kept grants whose time is over. A new file has no entries, and its tokens start above
// all tokens that an earlier file may have granted. The error of a file that no store has written is that of
// driver.Broken.
func (b *bucket) read() error {
	clear(b.entries)
	b.entries = b.entries[:0]
	if b.fd < 0 {
		return nil
	}
	if b.page == nil {
		b.page = make([]byte, pageLen)
	}
	n, err := pread(b.fd, b.page, 0)
	if err != nil {
		return coded("reading", b.path, err)
	}
	b.empty = n == 0
	var ok bool
	if b.header, ok = parseHeader(b.page[:n]); !ok {
		if slices.ContainsFunc(b.page[:n], func(c byte) bool { return c != 0 }) {
			return driver.Broken(b.path, "its header is damaged")
		}
		// The file is new, or the machine has crashed before its content was on the disk. Tokens
		// follow the clock, which is above every earlier token.
		b.header = header{last: uint64(b.store.now()), off: inlineAt, boot: b.store.boot}
		return nil
	}
	earlier := b.boot != b.store.boot
	if b.boot != b.store.boot { // mutation: file-boot
		// Tokens up to the ceiling may have been granted and not written to disk. The entries are
		// no problem: their sessions are dead.
		b.last, b.boot = max(b.last, b.ceiling), b.store.boot
	}
	var body []byte
	if end := b.off + b.length; end <= uint64(n) {
		body = b.page[b.off:end]
	} else {
		body = slices.Grow(b.out[:0], int(b.length))[:b.length]
		b.out = body
		if n, err = pread(b.fd, body, int64(b.off)); err != nil {
			return coded("reading", b.path, err)
		}
		body = body[:n]
	}
	if b.entries, err = parseBody(b.entries, string(body), b.sum); err != nil {
		clear(b.entries)
		b.entries = b.entries[:0]
		if !earlier {
			return driver.Broken(b.path, "its list of entries is damaged")
		}
		// After a crash of the machine a list may be incomplete. There are no holders then.
		b.last = max(b.last, b.ceiling)
	}
	now := b.store.now()
	b.entries = slices.DeleteFunc(b.entries, func(e entry) bool { return e.until > 0 && e.until <= now })
	return nil
}

// write writes the state to the file. After an error of another code than CodeUnknown, the state in the
// file is unchanged.
func (b *bucket) write() error {
	b.out = append(b.out[:0], b.page[:inlineAt]...)
	for i := range b.entries {
		b.out = appendEntry(b.out, &b.entries[i])
	}
	body := b.out[inlineAt:]
	if len(body) > maxBody {
		return driver.Errorf(driver.CodeRefused, "%s is full: its list would have %d bytes, and %d are allowed", b.path, len(body), maxBody)
	}
	h := b.header
	h.seq++
	h.length = uint64(len(body))
	h.sum = crc32.Checksum(body, castagnoli)
	var err error
	if len(body) <= inlineMax {
		err = b.writeInline(&h)
	} else {
		err = b.writeLong(&h, body)
	}
	if err != nil {
		return err
	}
	b.header, b.empty = h, false
	return nil
}

// writeInline writes the header and the body, which b.out already has, in one step in the first page.
func (b *bucket) writeInline(h *header) error {
	h.off = inlineAt
	putHeader(b.out, h)
	if b.empty {
		// The first write fills the page, so that later writes of this page need no more disk space.
		b.out = append(b.out, make([]byte, pageLen-len(b.out))...)
	}
	if err := b.replace(b.out); err != nil {
		return err
	}
	if b.off >= pageLen { // the body before this one was a long one
		unix.Ftruncate(b.fd, pageLen)
	}
	return nil
}

// writeLong writes a body after the first page, and then the header that makes it valid. The body does
// not overlap the present one.
func (b *bucket) writeLong(h *header, body []byte) error {
	h.off = pageLen
	if end := b.off + b.length; b.off >= pageLen && h.off+h.length > b.off {
		h.off = (end + pageLen - 1) / pageLen * pageLen
	}
	for at := h.off; len(body) > 0; {
		n, err := pwrite(b.fd, body, int64(at))
		if err != nil {
			return coded("writing", b.path, err)
		}
		at, body = at+uint64(n), body[n:]
	}
	putHeader(b.out, h)
	return b.replace(b.out[:headerLen])
}

// replace replaces the beginning of the first page by p.
func (b *bucket) replace(p []byte) error {
	n, err := pwrite(b.fd, p, 0)
	if n == len(p) {
		return nil
	}
	if n > 0 {
		// No known file system cuts a write off inside a page. Restore the old page if possible.
		back, again := pwrite(b.fd, b.page[:n], 0)
		if again != nil || back != n {
			return fmt.Errorf("writing %s: cut off after %d of %d bytes: %w", b.path, n, len(p), errors.Join(err, again))
		}
	}
	return coded("writing", b.path, err)
}

// reserve writes a higher ceiling to the disk before a token below it is used. After a crash of the
// machine, tokens continue from the ceiling. reserve changes only the header, not the body. Until the
// ceiling is on the disk, the header has an ID that belongs to no boot. If this process ends before that,
// or the disk fails, the next process does not rely on the ceiling, as after a crash of the machine.
func (b *bucket) reserve() error {
	if b.last > maxCounter-reservedMicros-maxTokens {
		return driver.Broken(b.path, fmt.Sprintf("its counter of tokens is %d", b.last))
	}
	h, ok := parseHeader(b.page)
	if !ok {
		h = header{off: inlineAt}
	}
	h.boot = bootID{}
	h.seq++
	h.last = b.last
	h.ceiling = max(uint64(b.store.now())+reservedMicros, b.last+reservedAhead)
	first := b.page[:headerLen]
	if b.empty {
		clear(b.page)
		first = b.page
	}
	putHeader(b.page, &h)
	if n, err := pwrite(b.fd, first, 0); n != len(first) {
		return coded("writing", b.path, err)
	}
	if err := b.store.sync(b.fd); err != nil {
		return coded("syncing", b.path, err)
	}
	h.boot = b.boot
	putHeader(b.page, &h)
	if n, err := pwrite(b.fd, b.page[:headerLen], 0); n != headerLen {
		return coded("writing", b.path, err)
	}
	b.seq, b.ceiling, b.empty = h.seq, h.ceiling, false
	return nil
}

// tooManyHolders returns the error of a list that is overfull for a name.
func (b *bucket) tooManyHolders(k key) error {
	return driver.Broken(b.path, fmt.Sprintf("%s has more holders than their limits allow", k.name))
}

// wallMicros returns the clock's microseconds. New counters start there, and entries record it.
func wallMicros() int64 { return max(time.Now().UnixMicro(), 1) }
