package redis

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	_ "github.com/holdfast-go/holdfast/redisstore"
)

// BenchmarkPair measures the allocations of one Lock and one Unlock of a free name.
func BenchmarkPair(b *testing.B) {
	r := start(b)
	l, err := holdfast.Open(context.Background(), "redis://"+r.Address())
	must.Succeed(b, err)
	b.Cleanup(func() { _ = l.Close(context.Background()) })
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.Lock(context.Background(), "pair")
		must.Succeed(b, err)
		must.Succeed(b, k.Unlock())
	}
}
