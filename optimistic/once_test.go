package optimistic_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/optimistic"
)

func locker(t *testing.T, s *memstore.Store) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.New(s)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// TestValuesOfLockerServeURL: a program that configures its store by URL has values, too.
func TestValuesOfLockerServeURL(t *testing.T) {
	l, err := holdfast.Open(t.Context(), "memory://")
	must.Succeed(t, err)
	defer l.Close(context.Background())
	values, err := l.Values()
	must.Succeed(t, err)
	for _, want := range []bool{true, false} {
		ran, err := optimistic.Once(t.Context(), l, values, "k", func(context.Context) error { return nil })
		if ran != want || err != nil {
			t.Errorf("ran: %t, %v", ran, err)
		}
	}
	without, err := holdfast.New(struct{ driver.Store }{memstore.New()})
	must.Succeed(t, err)
	defer without.Close(context.Background())
	if _, err := without.Values(); !errors.Is(err, holdfast.ErrUnsupported) {
		t.Errorf("a store without values: %v", err)
	}
}

// TestOnceRunsOneOfManyCallers: all callers but one wait for the lock while the function runs. So they have
// found no mark before, and find it after the wait.
func TestOnceRunsOneOfManyCallers(t *testing.T) {
	store := memstore.New()
	const callers = 8
	var ran, calls atomic.Int64
	job := func(ctx context.Context) error {
		if calls.Add(1) > 1 {
			return nil
		}
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if st, err := store.Inspect(ctx, "k"); err != nil || len(st.Waiters) == callers-1 {
				return err
			}
		}
		return errors.New("the other callers do not wait")
	}
	var wg sync.WaitGroup
	for range callers {
		client := store.Client()
		l := locker(t, client)
		wg.Go(func() {
			did, err := optimistic.Once(t.Context(), l, client, "k", job)
			must.Report(t, err)
			if did {
				ran.Add(1)
			}
		})
	}
	wg.Wait()
	if ran.Load() != 1 || calls.Load() != 1 {
		t.Errorf("%d callers ran it, %d times", ran.Load(), calls.Load())
	}
	mark, _, err := optimistic.ReadMark(t.Context(), store, "k")
	if err != nil || mark == nil || mark.PID == 0 || mark.Token == 0 || mark.Done.IsZero() {
		t.Errorf("the mark is %+v, %v", mark, err)
	}
}

func TestOnceMarksOnlySuccess(t *testing.T) {
	store := memstore.New()
	l := locker(t, store)
	own := errors.New("the disk is full")
	ran, err := optimistic.Once(t.Context(), l, store, "k", func(context.Context) error { return own })
	if !ran || !errors.Is(err, own) {
		t.Errorf("%v, %v", ran, err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = optimistic.Once(t.Context(), l, store, "k", func(context.Context) error { panic("boom") })
	}()
	ran, err = optimistic.Once(t.Context(), l, store, "k", func(context.Context) error {
		_ = store.Script().Lose("k", holdfast.CauseTaken) // as if an operator broke the lock
		return nil
	})
	if !ran || !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("after a loss: %v, %v", ran, err)
	}
	if mark, _, err := optimistic.ReadMark(t.Context(), store, "k"); mark != nil || err != nil {
		t.Errorf("it is marked: %+v, %v", mark, err)
	}
	ran, err = optimistic.Once(t.Context(), l, store, "k", func(context.Context) error { return nil })
	if !ran || err != nil {
		t.Errorf("the next try: %v, %v", ran, err)
	}
}

// TestOnceReportsUnmarkedJob: the caller gets an error for a job that is done and not
// marked.
func TestOnceReportsUnmarkedJob(t *testing.T) {
	store := memstore.New()
	l := locker(t, store)
	v := &scripted{Store: store, put: func(int) error { return errors.New("connection reset") }}
	ran, err := optimistic.Once(t.Context(), l, v, "unknown", func(context.Context) error { return nil })
	if !ran || !errors.Is(err, optimistic.ErrUnknown) {
		t.Errorf("an unknown outcome: %v, %v", ran, err)
	}
	ran, err = optimistic.Once(t.Context(), l, store, "conflict", func(ctx context.Context) error {
		_, err := optimistic.Put(ctx, store, "conflict", []byte("done by hand"), "")
		return err
	})
	if !ran || !errors.Is(err, optimistic.ErrConflict) {
		t.Errorf("a mark of another process: %v, %v", ran, err)
	}
	// Content of another program is a mark, too.
	ran, err = optimistic.Once(t.Context(), l, store, "conflict", func(context.Context) error { return nil })
	if ran || err != nil {
		t.Errorf("a mark that is no JSON: %v, %v", ran, err)
	}
	ran, err = optimistic.Once(t.Context(), l, store, "", func(context.Context) error { return nil })
	if ran || !errors.Is(err, holdfast.ErrInvalid) {
		t.Errorf("no key: %v, %v", ran, err)
	}
	v.put = func(int) error { return driver.Errorf(driver.CodeRefused, "read-only") }
	ran, err = optimistic.Once(t.Context(), l, v, "refused", func(context.Context) error { return nil })
	if !ran || !errors.Is(err, holdfast.ErrRefused) {
		t.Errorf("refused: %v, %v", ran, err)
	}
}
