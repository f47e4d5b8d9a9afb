package sql

import (
	"testing"
)

// BenchmarkPair measures the allocations of one lock and unlock of a free name.
func BenchmarkPair(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			at := address(b, k)
			prepare(b, k, at)
			ours, err := k.ours(at)
			if err != nil {
				b.Fatal(err)
			}
			defer ours.close()
			b.ReportAllocs()
			for b.Loop() {
				if err := ours.pair(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
