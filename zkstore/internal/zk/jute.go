package zk

import (
	"encoding/binary"
	"errors"
)

// encoder writes jute, ZooKeeper's encoding: big-endian integers, and byte strings after
// their length.
type encoder struct{ b []byte }

func (e *encoder) int32(v int32) { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }
func (e *encoder) int64(v int64) { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

func (e *encoder) bytes(v []byte) {
	e.int32(int32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) string(v string) {
	e.int32(int32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) acl(l []ACL) {
	e.int32(int32(len(l)))
	for _, a := range l {
		e.int32(a.Perms)
		e.string(a.Scheme)
		e.string(a.ID)
	}
}

var errMalformed = errors.New("zk: the server's answer is malformed")

// decoder reads jute. After an error it returns zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) err() error {
	if d.bad {
		return errMalformed
	}
	return nil
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) int32() int32 {
	if v := d.take(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

func (d *decoder) int64() int64 {
	if v := d.take(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (d *decoder) bool() bool {
	v := d.take(1)
	return v != nil && v[0] != 0
}

// bytes returns a copy, since the frame is reused.
func (d *decoder) bytes() []byte {
	n := d.int32()
	if n == -1 {
		return nil
	}
	return append([]byte(nil), d.take(int(n))...)
}

func (d *decoder) string() string {
	n := d.int32()
	if n == -1 {
		return ""
	}
	return string(d.take(int(n)))
}

func (d *decoder) strings() []string {
	n := int(d.int32())
	// A string has at least the four bytes of its length.
	if n < 0 || n > len(d.b)/4 {
		d.bad = d.bad || n != -1 // -1 encodes a null vector
		return nil
	}
	all := make([]string, n)
	for i := range all {
		all[i] = d.string()
	}
	return all
}

func (d *decoder) stat() Stat {
	return Stat{
		Czxid: d.int64(), Mzxid: d.int64(), Ctime: d.int64(), Mtime: d.int64(),
		Version: d.int32(), Cversion: d.int32(), Aversion: d.int32(),
		EphemeralOwner: d.int64(), DataLength: d.int32(), NumChildren: d.int32(), Pzxid: d.int64(),
	}
}
