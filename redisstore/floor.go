package redisstore

import (
	"strconv"
	"sync/atomic"
)

// floors are the highest tokens seen, by bucket. They go along with each request,
// so that tokens rise also after the server has lost its memory while its clock
// was behind. Memory is taken for the buckets that are used.
type floors struct {
	chunk [buckets / 64]atomic.Pointer[[64]atomic.Uint64]
}

func (f *floors) of(bucket uint16) *atomic.Uint64 {
	c := &f.chunk[bucket/64]
	some := c.Load()
	if some == nil {
		some = new([64]atomic.Uint64)
		if !c.CompareAndSwap(nil, some) {
			some = c.Load()
		}
	}
	return &some[bucket%64]
}

// text is the highest token seen, for a script.
func (f *floors) text(bucket uint16) string { return strconv.FormatUint(f.of(bucket).Load(), 10) }

// see takes note of a token, which later ones are asked to exceed.
func (f *floors) see(bucket uint16, token uint64) {
	b := f.of(bucket)
	for {
		have := b.Load()
		if token <= have || b.CompareAndSwap(have, token) {
			return
		}
	}
}
