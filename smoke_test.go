package holdfast_test

import (
	"context"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestSmoke(t *testing.T) {
	s := memstore.New()
	l, err := holdfast.New(s)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 100 {
				if err := l.Do(context.Background(), "x", func(context.Context) error { n++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n != 5000 {
		t.Fatal(n)
	}
	if err := l.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkPair(b *testing.B) {
	l, _ := holdfast.New(memstore.New())
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		k, err := l.Lock(ctx, "x")
		if err != nil {
			b.Fatal(err)
		}
		k.Unlock()
	}
}

func BenchmarkMutex(b *testing.B) {
	var mu sync.Mutex
	b.ReportAllocs()
	for b.Loop() {
		mu.Lock()
		_, c := context.WithCancel(context.Background())
		c()
		mu.Unlock()
	}
}
