package holdfast_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// BenchmarkMemoryPair measures a lock on the memory store. BenchmarkMutexPair measures the
// cheapest mutual exclusion with a context, for comparison.
func BenchmarkMemoryPair(b *testing.B) {
	l := newLocker(b, memstore.New())
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.Lock(bg, "x")
		must.Succeed(b, err)
		must.Succeed(b, k.Unlock())
	}
}

// BenchmarkStickyPair measures a lock that the Locker keeps: one of 65 pairs makes requests.
func BenchmarkStickyPair(b *testing.B) {
	l := newLocker(b, memstore.New(), holdfast.Defaults(holdfast.Sticky(time.Minute)))
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.Lock(bg, "x")
		must.Succeed(b, err)
		must.Succeed(b, k.Unlock())
	}
}

func BenchmarkMutexPair(b *testing.B) {
	var mu sync.Mutex
	b.ReportAllocs()
	for b.Loop() {
		mu.Lock()
		_, cancel := context.WithCancel(bg)
		cancel()
		mu.Unlock()
	}
}

// BenchmarkMemoryContended lets goroutines of one Locker compete for one name.
func BenchmarkMemoryContended(b *testing.B) {
	l := newLocker(b, memstore.New())
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			must.Report(b, l.Do(bg, "x", func(context.Context) error { return nil }))
		}
	})
}

// TestAllocations: an uncontended lock and unlock on the memory store allocates
// at most 8 times.
func TestAllocations(t *testing.T) {
	l := newLocker(t, memstore.New())
	allocs := testing.AllocsPerRun(1000, func() {
		k, err := l.Lock(bg, "x", []holdfast.LockOption(nil)...)
		must.Succeed(t, err)
		_ = k.Unlock()
	})
	if allocs > 8 {
		t.Errorf("%v allocations", allocs)
	}
}
