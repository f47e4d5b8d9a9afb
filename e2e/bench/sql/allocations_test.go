package sql

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
)

// BenchmarkPair measures the allocations of one lock and unlock of a free name.
func BenchmarkPair(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			at := address(b, k)
			prepare(b, k, at)
			ours, err := k.ours(at)
			must.Succeed(b, err)
			defer ours.close()
			b.ReportAllocs()
			for b.Loop() {
				must.Succeed(b, ours.pair())
			}
		})
	}
}
