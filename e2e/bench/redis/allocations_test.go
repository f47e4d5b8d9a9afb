package redis

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/redisstore"
)

// BenchmarkPair measures the allocations of one Lock and one Unlock of a free name.
func BenchmarkPair(b *testing.B) {
	r := start(b)
	l, err := holdfast.Open(context.Background(), "redis://"+r.Address())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close(context.Background()) })
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.Lock(context.Background(), "pair")
		if err != nil {
			b.Fatal(err)
		}
		if err := k.Unlock(); err != nil {
			b.Fatal(err)
		}
	}
}
