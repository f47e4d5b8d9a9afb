package server

import (
	"strconv"
	"sync/atomic"
)

// HighWater has the high-water mark of the tokens that this client has seen, for each bucket.
// Each request carries it, so that tokens rise even after the server has lost its data and its
// clock was set back. Only buckets in use need memory.
type HighWater struct {
	chunk [Buckets / 64]atomic.Pointer[[64]atomic.Uint64]
}

// Of returns the high-water mark of a bucket.
func (h *HighWater) Of(bucket uint16) *atomic.Uint64 {
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

// Text returns the high-water mark of a bucket, for a script.
func (h *HighWater) Text(bucket uint16) string { return strconv.FormatUint(h.Of(bucket).Load(), 10) }

// Raise records a token. Later tokens exceed it.
func (h *HighWater) Raise(bucket uint16, token uint64) {
	b := h.Of(bucket)
	for {
		have := b.Load()
		if token <= have || b.CompareAndSwap(have, token) {
			return
		}
	}
}
