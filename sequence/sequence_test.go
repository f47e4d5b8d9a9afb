package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/optimistic"
	"github.com/holdfast-go/holdfast/sequence"
)

func Example() {
	ctx := context.Background()
	store := memstore.New() // or the store of a server
	orders, err := sequence.New(sequence.Values(store), "order")
	if err != nil {
		panic(err)
	}
	for range 3 {
		fmt.Println(orders.Next(ctx))
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}

// TestNoIDIsDrawnTwice: goroutines of several sequences with one name draw different ids.
func TestNoIDIsDrawnTwice(t *testing.T) {
	store := memstore.New()
	const processes, goroutines, each = 4, 4, 20000
	drawn := make([][]int64, processes*goroutines)
	var wg sync.WaitGroup
	for p := range processes {
		s, err := sequence.New(sequence.Values(store.Client()), "order", sequence.Blocks(1, 64))
		must.Succeed(t, err)
		for g := range goroutines {
			wg.Go(func() {
				last := int64(0)
				for range each {
					id, err := s.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					if id <= last {
						t.Errorf("one goroutine got %d after %d, want rising ids", id, last)
					}
					last = id
					drawn[p*goroutines+g] = append(drawn[p*goroutines+g], id)
				}
			})
		}
	}
	wg.Wait()
	seen := map[int64]bool{}
	for _, ids := range drawn {
		for _, id := range ids {
			if seen[id] {
				t.Fatalf("%d was drawn twice", id)
			}
			seen[id] = true
		}
	}
	if len(seen) != processes*goroutines*each {
		t.Errorf("%d different ids, want %d", len(seen), processes*goroutines*each)
	}
}

// source records the reservations. If a reservation fails, source returns the new end together
// with the error; no process may use the ids of that block.
type source struct {
	mu   sync.Mutex
	end  int64
	n    []int64              // the sizes of the reserved blocks
	fail func(call int) error // may be nil; calls count from 1
}

func (s *source) Reserve(_ context.Context, _ string, n int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end += n
	s.n = append(s.n, n)
	if s.fail != nil {
		if err := s.fail(len(s.n)); err != nil {
			return s.end, err
		}
	}
	return s.end, nil
}

func TestBlocksGrowWithTheRate(t *testing.T) {
	src := &source{}
	s, err := sequence.New(src, "n", sequence.Blocks(2, 256))
	must.Succeed(t, err)
	for range 5000 { // each block is used up in much less than a second
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	if src.n[0] != 2 || src.n[len(src.n)-1] < 128 {
		t.Errorf("blocks of %v, want 2 at first and at least 128 at the end", src.n)
	}
	for i, n := range src.n {
		if n > 256 || i > 0 && n < src.n[i-1]/2 {
			t.Errorf("blocks of %v, want at most 256, and none less than half of the block before", src.n)
		}
	}
}

// TestUnknownOutcomeLeavesAGap: a reservation with a lost answer is never used, and Next
// makes another one.
func TestUnknownOutcomeLeavesAGap(t *testing.T) {
	lost := fmt.Errorf("%w: the answer was lost", optimistic.ErrUnknown)
	src := &source{fail: func(call int) error {
		if call < 3 {
			return lost
		}
		return nil
	}}
	s, err := sequence.New(src, "n", sequence.Blocks(10, 10))
	must.Succeed(t, err)
	if id, err := s.Next(t.Context()); id != 21 || err != nil {
		t.Errorf("%d, %v; want 21, the first of the third block", id, err)
	}
	src.mu.Lock()
	src.fail = func(int) error { return lost }
	src.mu.Unlock()
	var failed error
	for range 200 { // uses up the reserved blocks, so that Next needs one that it cannot reserve
		if _, failed = s.Next(t.Context()); failed != nil {
			break
		}
	}
	if !errors.Is(failed, optimistic.ErrUnknown) {
		t.Fatalf("got %v, want ErrUnknown", failed)
	}
	src.mu.Lock()
	src.fail = nil
	want := src.end + 1
	src.mu.Unlock()
	if id, err := s.Next(t.Context()); id < want || err != nil {
		t.Errorf("%d, %v; want an id of a new block, from %d on", id, err, want)
	}
}

// TestNextEndsWithContext: a caller does not wait for a store that hangs, and a later call
// uses the reservation.
func TestNextEndsWithContext(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	s, err := sequence.New(reserveFunc(func(_ context.Context, _ string, n int64) (int64, error) {
		if calls.Add(1) == 1 {
			close(begun)
			<-release
		}
		return calls.Load() * n, nil
	}), "n", sequence.Blocks(100, 100))
	must.Succeed(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("shutting down")
	done := make(chan error)
	go func() { _, err := s.Next(ctx); done <- err }()
	<-begun
	cancel(cause)
	if err := <-done; !errors.Is(err, context.Canceled) || !errors.Is(err, cause) {
		t.Errorf("got %v, want context.Canceled and its cause", err)
	}
	close(release)
	if id, err := s.Next(t.Context()); id != 1 || err != nil || calls.Load() != 1 {
		t.Errorf("%d, %v after %d reservations; want 1 of the first", id, err, calls.Load())
	}
}

type reserveFunc func(context.Context, string, int64) (int64, error)

func (f reserveFunc) Reserve(ctx context.Context, name string, n int64) (int64, error) {
	return f(ctx, name, n)
}

// TestNextForgetsAnOldFailure: the reservation in the background failed while the store was away. When its block is
// used up, later, the store is there again.
func TestNextForgetsAnOldFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var src source
		away := false
		s, err := sequence.New(reserveFunc(func(ctx context.Context, name string, n int64) (int64, error) {
			if away {
				return 0, holdfast.ErrUnavailable
			}
			return src.Reserve(ctx, name, n)
		}), "x", sequence.Blocks(4, 4))
		must.Succeed(t, err)
		for want := int64(1); want <= 8; want++ {
			away = want == 3 || want == 4 // the draw of id 3 begins the reservation
			if id, err := s.Next(t.Context()); id != want || err != nil {
				t.Fatalf("id %d, %v; want %d", id, err, want)
			}
			synctest.Wait()
		}
	})
}

func TestBadInputIsRefused(t *testing.T) {
	src := &source{}
	for what, err := range map[string]error{
		"no source":   second(sequence.New(nil, "n")),
		"no name":     second(sequence.New(src, "")),
		"no block":    second(sequence.New(src, "n", sequence.Blocks(0, 1))),
		"wrong order": second(sequence.New(src, "n", sequence.Blocks(2, 1))),
		"too large":   second(sequence.New(src, "n", sequence.Blocks(1, math.MaxInt64))),
	} {
		if !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	store := memstore.New()
	for name, value := range map[string]string{"text": "hello", "negative": "-5", "large": "4611686018427387900", "larger": "9223372036854775807"} {
		if _, err := optimistic.Put(t.Context(), store, name, []byte(value), ""); err != nil {
			t.Fatal(err)
		}
		s, err := sequence.New(sequence.Values(store), name)
		must.Succeed(t, err)
		if _, err := s.Next(t.Context()); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
		if data, _, err := optimistic.Get(t.Context(), store, name); string(data) != value || err != nil {
			t.Errorf("%s: the value became %q, %v", name, data, err)
		}
	}
	for _, end := range []int64{-1, 0, math.MaxInt64} {
		s, err := sequence.New(reserveFunc(func(context.Context, string, int64) (int64, error) { return end, nil }), "n")
		must.Succeed(t, err)
		if _, err := s.Next(t.Context()); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("a block that ends with %d: %v, want ErrInvalid", end, err)
		}
	}
}

func second(_ *sequence.Sequence, err error) error { return err }

// BenchmarkNext draws ids from blocks. An id costs at most five times as much as
// BenchmarkAtomicAdd.
func BenchmarkNext(b *testing.B) {
	s, err := sequence.New(&source{}, "n", sequence.Blocks(1<<16, 1<<20))
	must.Succeed(b, err)
	ctx := context.Background()
	for b.Loop() {
		if _, err := s.Next(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAtomicAdd(b *testing.B) {
	var n atomic.Int64
	for b.Loop() {
		n.Add(1)
	}
}

func BenchmarkNextParallel(b *testing.B) {
	s, err := sequence.New(&source{}, "n", sequence.Blocks(1<<16, 1<<20))
	must.Succeed(b, err)
	ctx := context.Background()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Next(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAtomicAddParallel(b *testing.B) {
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			n.Add(1)
		}
	})
}
