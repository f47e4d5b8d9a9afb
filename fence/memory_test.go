package fence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/must"
)

var _ fence.Guard[fence.Func] = (*fence.Memory)(nil)

var errWrite = errors.New("write failed")

func TestMemoryRefusesBadResources(t *testing.T) {
	var guard fence.Memory
	for what, resource := range badResources {
		if err := guard.Write(t.Context(), resource, 1, nil); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: Do: got %v, want ErrInvalid", what, err)
		}
		if err := guard.Forget(t.Context(), resource); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: Forget: got %v, want ErrInvalid", what, err)
		}
		if _, err := guard.Newest(t.Context(), resource); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: Newest: got %v, want ErrInvalid", what, err)
		}
	}
}

func TestMemoryRefusesEndedContext(t *testing.T) {
	var guard fence.Memory
	cause := errors.New("lock lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	err := guard.Write(ctx, "r", 7, func(context.Context) error { t.Error("the write ran"); return nil })
	for _, want := range []error{fence.ErrUnavailable, context.Canceled, cause} {
		if !errors.Is(err, want) {
			t.Errorf("got %v, want it to wrap %v", err, want)
		}
	}
	if n, _ := guard.Newest(t.Context(), "r"); n != 0 {
		t.Errorf("the token was raised to %d", n)
	}
}

// TestMemoryExcludesUntilContextEnds: a running write excludes every other one, and a wait ends
// with the waiter's context.
func TestMemoryExcludesUntilContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var guard fence.Memory
		in, out := make(chan struct{}), make(chan struct{})
		done := make(chan error, 3)
		go func() {
			done <- guard.Write(t.Context(), "r", 5, func(context.Context) error { close(in); <-out; return nil })
		}()
		<-in
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- guard.Write(ctx, "r", 6, func(context.Context) error { panic("ran") }) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || !errors.Is(err, fence.ErrUnavailable) {
			t.Errorf("got %v, want the context's error", err)
		}
		entered := false
		go func() {
			done <- guard.Write(t.Context(), "r", 7, func(context.Context) error { entered = true; return nil })
		}()
		synctest.Wait()
		if entered {
			t.Error("two writes at once")
		}
		if err := guard.Write(t.Context(), "other", 1, nil); err != nil {
			t.Errorf("another resource: %v", err)
		}
		close(out)
		for range 2 {
			must.Report(t, <-done)
		}
		if !entered {
			t.Error("the write that waited did not run")
		}
	})
}

func TestMemoryPanicEndsTheWrite(t *testing.T) {
	var guard fence.Memory
	func() {
		defer func() { _ = recover() }()
		_ = guard.Write(t.Context(), "r", 5, func(context.Context) error { panic("boom") })
	}()
	must.Report(t, guard.Write(t.Context(), "r", 5, nil))
	wantStale(t, guard.Write(t.Context(), "r", 4, nil), 4, 5)
}

// TestMemoryEqualsMapOfMaxima: for random sequences of calls, the guard returns the same as a
// map of maxima, and the error of a write that fails unchanged.
func TestMemoryEqualsMapOfMaxima(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var guard fence.Memory
		model := map[string]uint64{}
		ctx := context.Background()
		resource := rapid.SampledFrom([]string{"a", "b", "a/b"})
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				r, token := resource.Draw(t, "resource"), rapid.Uint64Range(1, 20).Draw(t, "token")
				fail := rapid.SampledFrom([]error{nil, errWrite}).Draw(t, "fail")
				ran := false
				err := guard.Write(ctx, r, token, func(context.Context) error { ran = true; return fail })
				if stale := token < model[r]; stale != errors.Is(err, fence.ErrStale) || stale == ran || !stale && err != fail {
					t.Fatalf("token %d after %d: ran %v, error %v", token, model[r], ran, err)
				}
				model[r] = max(model[r], token)
			},
			"forget": func(t *rapid.T) {
				r := resource.Draw(t, "resource")
				if err := guard.Forget(ctx, r); err != nil {
					t.Fatal(err)
				}
				delete(model, r)
			},
			"": func(t *rapid.T) {
				for _, r := range []string{"a", "b", "a/b"} {
					if n, err := guard.Newest(ctx, r); n != model[r] || err != nil {
						t.Fatalf("newest of %s is %d, %v; want %d", r, n, err, model[r])
					}
				}
			},
		})
	})
}

// TestMemoryTokensOfWritesNeverFall: many holders write at once. The tokens of the accepted
// writes never fall, in the order in which they reached the resource.
func TestMemoryTokensOfWritesNeverFall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		holders := rapid.SliceOfN(rapid.SliceOfN(rapid.Uint64Range(1, 1000), 1, 30), 2, 12).Draw(t, "holders")
		var guard fence.Memory
		written := make([][]uint64, 2) // the tokens of each resource; only the guard protects them
		var wg sync.WaitGroup
		for _, tokens := range holders {
			wg.Go(func() {
				for i, token := range tokens {
					r := i % 2
					err := guard.Write(context.Background(), fmt.Sprint(r), token, func(context.Context) error {
						written[r] = append(written[r], token)
						return nil
					})
					if err != nil && !errors.Is(err, fence.ErrStale) {
						t.Errorf("token %d: %v", token, err)
					}
				}
			})
		}
		wg.Wait()
		for r, tokens := range written {
			if !slices.IsSorted(tokens) {
				t.Fatalf("resource %d went back: %v", r, tokens)
			}
			if n, _ := guard.Newest(context.Background(), fmt.Sprint(r)); len(tokens) > 0 && n != tokens[len(tokens)-1] {
				t.Fatalf("resource %d: newest is %d, last written %d", r, n, tokens[len(tokens)-1])
			}
		}
	})
}
