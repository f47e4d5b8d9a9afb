package optimistic_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/optimistic"
)

func ExampleUpdate() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.Open, etcdstore.Open, ...

	add := func(_ context.Context, old []byte) ([]byte, error) {
		n, _ := strconv.Atoi(string(old)) // 0 at first
		return []byte(strconv.Itoa(n + 1)), nil
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if err := optimistic.Update(ctx, store, "visits", add); err != nil {
				panic(err)
			}
		})
	}
	all.Wait()
	data, _, err := optimistic.Get(ctx, store, "visits")
	fmt.Println(string(data), err)
	// Output: 10 <nil>
}

// A hook counts the conflicts.
func ExampleOnConflict() {
	ctx := context.Background()
	store := memstore.New()
	faster := true
	err := optimistic.Update(ctx, store, "config", func(ctx context.Context, old []byte) ([]byte, error) {
		if faster { // another process writes between our read and our write
			faster = false
			_, _ = optimistic.Put(ctx, store, "config", []byte("a"), "")
		}
		return append(old, 'b'), nil
	}, optimistic.OnConflict(func(_ context.Context, c optimistic.Conflict) {
		fmt.Println("conflict", c.Attempt, "on", c.Key)
	}))
	data, _, _ := optimistic.Get(ctx, store, "config")
	fmt.Println(string(data), err)
	// Output:
	// conflict 1 on config
	// ab <nil>
}

// The job runs once, for any number of starts on any number of machines.
func ExampleOnce() {
	ctx := context.Background()
	store := memstore.New()
	locker, _ := holdfast.New(store)
	defer locker.Close(ctx)

	for range 2 {
		ran, err := optimistic.Once(ctx, locker, store, "invoices/2026-11", func(context.Context) error {
			fmt.Println("invoices are sent")
			return nil
		})
		fmt.Println(ran, err)
	}
	// Output:
	// invoices are sent
	// true <nil>
	// false <nil>
}

func TestConcurrentUpdatesLoseNothing(t *testing.T) {
	store := memstore.New()
	const workers, each = 16, 50
	var conflicts atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				err := optimistic.Update(t.Context(), store, "n", func(_ context.Context, old []byte) ([]byte, error) {
					return append(old[:len(old):len(old)], 'x'), nil
				}, optimistic.Backoff(time.Microsecond, time.Millisecond), optimistic.OnConflict(func(context.Context, optimistic.Conflict) { conflicts.Add(1) }))
				must.Report(t, err)
			}
		})
	}
	wg.Wait()
	data, _, err := optimistic.Get(t.Context(), store, "n")
	if err != nil || len(data) != workers*each {
		t.Errorf("%d updates, %v; want %d", len(data), err, workers*each)
	}
	t.Logf("%d conflicts", conflicts.Load())
}

// scripted are values with scripted results of Put.
type scripted struct {
	*memstore.Store
	put func(n int) error
	n   int
}

func (s *scripted) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	s.n++
	if err := s.put(s.n); err != nil {
		return "", err
	}
	return s.Store.Put(ctx, key, data, version)
}

func same(_ context.Context, old []byte) ([]byte, error) { return old, nil }

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &scripted{Store: memstore.New(), put: func(n int) error {
			if n <= 40 {
				return driver.Conflict("k")
			}
			return nil
		}}
		var seen []optimistic.Conflict
		var sum time.Duration
		begin := time.Now()
		err := optimistic.Update(t.Context(), v, "k", same, optimistic.Backoff(time.Second, 8*time.Second),
			optimistic.OnConflict(func(_ context.Context, c optimistic.Conflict) { seen = append(seen, c); sum += c.Backoff }))
		if err != nil || len(seen) != 40 {
			t.Fatalf("%d conflicts, %v", len(seen), err)
		}
		bound := time.Second
		distinct := map[time.Duration]bool{}
		for i, c := range seen {
			if c.Key != "k" || c.Attempt != i+1 || c.Backoff < 0 || c.Backoff >= bound {
				t.Errorf("conflict %d: %+v, want a backoff below %v", i, c, bound)
			}
			distinct[c.Backoff] = true
			bound = min(2*bound, 8*time.Second)
		}
		if len(distinct) < 30 {
			t.Errorf("the backoffs are not random: %v", seen)
		}
		if took := time.Since(begin); took != sum {
			t.Errorf("waited %v, reported %v", took, sum)
		}
	})
}

func TestUpdateEndsWithContext(t *testing.T) {
	v := &scripted{Store: memstore.New(), put: func(int) error { return driver.Conflict("k") }}
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := optimistic.Update(ctx, v, "k", same, optimistic.Backoff(time.Hour, time.Hour),
		optimistic.OnConflict(func(context.Context, optimistic.Conflict) { cancel(cause) }))
	for _, want := range []error{optimistic.ErrConflict, context.Canceled, cause} {
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v in it", err, want)
		}
	}
}

// TestUnknownOutcomeIsNotRepeated: Update does not repeat a write that may have been done.
func TestUnknownOutcomeIsNotRepeated(t *testing.T) {
	v := &scripted{Store: memstore.New(), put: func(int) error { return errors.New("connection reset") }}
	err := optimistic.Update(t.Context(), v, "k", same)
	if !errors.Is(err, optimistic.ErrUnknown) || v.n != 1 {
		t.Errorf("%v after %d writes, want ErrUnknown after one", err, v.n)
	}
	for code, want := range map[driver.Code]error{
		driver.CodeUnavailable: holdfast.ErrUnavailable, driver.CodeRefused: holdfast.ErrRefused,
		driver.CodeUnsupported: holdfast.ErrUnsupported, driver.CodeClosed: holdfast.ErrClosed, driver.CodeInvalid: holdfast.ErrInvalid,
	} {
		v.put = func(int) error { return driver.Errorf(code, "no") }
		if err := optimistic.Update(t.Context(), v, "k", same); !errors.Is(err, want) || errors.Is(err, optimistic.ErrUnknown) {
			t.Errorf("%v: %v, want %v", code, err, want)
		}
	}
}

func TestUpdateReturnsErrorOfItsFunction(t *testing.T) {
	store := memstore.New()
	for _, own := range []error{errors.New("no funds"), optimistic.ErrConflict} {
		calls := 0
		err := optimistic.Update(t.Context(), store, "k", func(context.Context, []byte) ([]byte, error) {
			calls++
			return []byte("bad"), own
		})
		if err != own || calls != 1 {
			t.Errorf("got %v after %d calls, want %v unchanged", err, calls, own)
		}
	}
	if _, version, err := optimistic.Get(t.Context(), store, "k"); version != "" || err != nil {
		t.Errorf("something was written: version %q, %v", version, err)
	}
}

func TestBadInputIsRefused(t *testing.T) {
	store := memstore.New()
	for what, key := range map[string]string{"empty": "", "long": strings.Repeat("x", 513), "not UTF-8": "\xff", "NUL": "a\x00"} {
		_, _, get := optimistic.Get(t.Context(), store, key)
		_, put := optimistic.Put(t.Context(), store, key, nil, "")
		update := optimistic.Update(t.Context(), store, key, func(context.Context, []byte) ([]byte, error) {
			t.Errorf("%s: the function ran", what)
			return nil, nil
		})
		for how, err := range map[string]error{"Get": get, "Put": put, "Update": update} {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Errorf("%s: %s: %v, want ErrInvalid", what, how, err)
			}
		}
	}
	if _, err := optimistic.Put(t.Context(), store, "k", make([]byte, driver.MaxValue+1), ""); !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("too much data: %v", err)
	}
}
