package redisstore

import (
	"strconv"
	"sync/atomic"
)

// highWater has the high-water mark of the tokens that this client has seen, for each bucket.
// Each request carries it, so that tokens rise even after the server has lost its data and its
// clock was set back. Only buckets in use need memory.
type highWater struct {
	chunk [buckets / 64]atomic.Pointer[[64]atomic.Uint64]
}

// of returns the high-water mark of a bucket.
func (h *highWater) of(bucket uint16) *atomic.Uint64 {
	c := &h.chunk[bucket/64]
	some := c.Load()
	if some == nil {
		some = new([64]atomic.Uint64)
		if !c.CompareAndSwap(nil, some) {
			some = c.Load()
		}
	}
	return &some[bucket%64]
}

// text returns the high-water mark of a bucket, for a script.
func (h *highWater) text(bucket uint16) string { return strconv.FormatUint(h.of(bucket).Load(), 10) }

// raise records a token. Later tokens exceed it.
func (h *highWater) raise(bucket uint16, token uint64) {
	b := h.of(bucket)
	for {
		have := b.Load()
		if token <= have || b.CompareAndSwap(have, token) {
			return
		}
	}
}
