package holdfasttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/internal/must"
)

const ttl = time.Second

// TestConformance requires that a store that nothing disturbs behaves like a memory store.
func TestConformance(t *testing.T) {
	s := holdfasttest.NewStore()
	drivertest.Run(t, drivertest.Harness{
		Open: func(_ testing.TB, namespace string) driver.Store { return s.Namespace(namespace) },
	})
}

// inBubble runs a test with a store and a Locker on it, in fake time.
func inBubble(t *testing.T, f func(t *testing.T, s *holdfasttest.Store, l *holdfast.Locker)) {
	synctest.Test(t, func(t *testing.T) {
		s := holdfasttest.NewStore()
		l, err := holdfast.New(s)
		must.Succeed(t, err)
		f(t, s, l)
		s.Heal()
		must.Report(t, l.Close(context.Background()))
		for st := range s.List(context.Background(), "") {
			t.Errorf("left at the store: %+v", st)
		}
	})
}

func TestLostAnswerIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, s *holdfasttest.Store, l *holdfast.Locker) {
		s.LoseAnswers(1)
		if _, err := l.TryLock(t.Context(), "a"); !errors.Is(err, holdfast.ErrUnavailable) {
			t.Errorf("%v, want %v", err, holdfast.ErrUnavailable)
		}
		synctest.Wait()
		if k, err := l.TryLock(t.Context(), "a"); err != nil {
			t.Error(err)
		} else if k.Token() != 2 {
			t.Errorf("token %d, want 2: the store has granted the request whose answer was lost", k.Token())
		} else {
			_ = k.Unlock()
		}
	})
}

func TestRefusedRequestIsNotExecuted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *holdfasttest.Store, l *holdfast.Locker) {
		s.Refuse(1)
		if _, err := l.Lock(t.Context(), "a"); !errors.Is(err, holdfast.ErrRefused) {
			t.Errorf("%v, want %v", err, holdfast.ErrRefused)
		}
		k, err := l.Lock(t.Context(), "a")
		must.Succeed(t, err)
		if k.Token() != 1 {
			t.Errorf("token %d, want 1", k.Token())
		}
		_ = k.Unlock()
	})
}

func TestDelayDelaysEachWay(t *testing.T) {
	inBubble(t, func(t *testing.T, s *holdfasttest.Store, l *holdfast.Locker) {
		s.Delay(30*time.Millisecond, 20*time.Millisecond)
		began := time.Now()
		k, err := l.TryLock(t.Context(), "a")
		must.Succeed(t, err)
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("it took %s, want 50ms", took)
		}
		_ = k.Unlock()
	})
}

func TestPartitionOfOneClientSparesAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, s *holdfasttest.Store, l *holdfast.Locker) {
		other, err := holdfast.New(s.Client())
		must.Succeed(t, err)
		k, err := l.Lock(t.Context(), "a", holdfast.TTL(ttl))
		must.Succeed(t, err)
		s.Partition()
		next, err := other.Lock(t.Context(), "a", holdfast.TTL(ttl))
		must.Succeed(t, err)
		if k.Context().Err() == nil || next.Token() <= k.Token() {
			t.Errorf("the next holder has token %d, and the lock with token %d has not ended", next.Token(), k.Token())
		}
		s.Heal()
		_, _ = k.Unlock(), next.Unlock()
		must.Report(t, other.Close(t.Context()))
	})
}

// TestEqualSeedsDisturbEqually requires that a seed decides the disturbances and their times.
func TestEqualSeedsDisturbEqually(t *testing.T) {
	run := func(seed uint64) (history []string) {
		inBubble(t, func(t *testing.T, s *holdfasttest.Store, l *holdfast.Locker) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*ttl+ttl/20)
			defer cancel()
			go s.Disturb(ctx, seed, ttl)
			synctest.Wait() // the first disturbance is before the first call
			for began := time.Now(); ctx.Err() == nil; time.Sleep(ttl / 10) {
				_, _, err := s.Get(ctx, "key")
				history = append(history, fmt.Sprint(time.Since(began), err))
			}
		})
		return history
	}
	a := run(1)
	if !slices.Equal(a, run(1)) {
		t.Error("equal seeds differ")
	}
	if slices.Equal(a, run(2)) {
		t.Error("two seeds are equal")
	}
}

// TestServiceWithstandsSeeds is what a user writes: a service under a hundred seeds, in fake time.
func TestServiceWithstandsSeeds(t *testing.T) {
	for seed := range uint64(100) {
		inBubble(t, func(t *testing.T, s *holdfasttest.Store, l *holdfast.Locker) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*ttl+ttl/20)
			defer cancel()
			go s.Disturb(ctx, seed, ttl)
			var holder atomic.Pointer[context.Context]
			var done atomic.Int32
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() {
					for ctx.Err() == nil {
						_ = l.Do(ctx, "a", func(ctx context.Context) error {
							if before := holder.Swap(&ctx); before != nil {
								time.Sleep(time.Nanosecond) // the holder of a broken lock hears of it in the same moment
								if (*before).Err() == nil && ctx.Err() == nil {
									t.Errorf("seed %d: two holders", seed)
								}
							}
							defer holder.CompareAndSwap(&ctx, nil)
							select {
							case <-time.After(ttl / 3):
								done.Add(1)
							case <-ctx.Done():
							}
							return nil
						}, holdfast.TTL(ttl))
						time.Sleep(time.Millisecond)
					}
				})
			}
			all.Wait()
			if done.Load() == 0 {
				t.Errorf("seed %d: no work was done", seed)
			}
		})
	}
}

// service makes the steps of f in the given way.
func service(
	under func(l *holdfast.Locker, f func() error) error, f func(step holdfasttest.Step) error,
) func() holdfasttest.Service {
	return func() holdfasttest.Service {
		return func(s *holdfasttest.Store, step holdfasttest.Step) error {
			l, err := holdfast.New(s)
			if err != nil {
				return err
			}
			defer l.Close(context.Background())
			return under(l, func() error { return f(step) })
		}
	}
}

func TestLoseAtEachStepReportsServiceThatFails(t *testing.T) {
	unlocked := func(_ *holdfast.Locker, f func() error) error { return f() }
	locked := func(l *holdfast.Locker, f func() error) error {
		return l.Do(context.Background(), "a", func(context.Context) error { return f() })
	}
	calls, broken := 0, errors.New("broken")
	nothing := func() error { return nil }
	for name, c := range map[string]struct {
		start func() holdfasttest.Service
		found int
		want  string
	}{
		"no lock":         {service(unlocked, func(s holdfasttest.Step) error { return s("a", nothing) }), 1, ""},
		"no step":         {service(locked, func(holdfasttest.Step) error { return nil }), 0, ""},
		"fails by itself": {service(locked, func(holdfasttest.Step) error { return broken }), 0, "without a loss: broken"},
		"has no end": {service(locked, func(s holdfasttest.Step) (err error) {
			for err == nil {
				err = s("a", nothing)
			}
			return err
		}), 0, "more than 1000 steps"},
		"second one fails": {service(locked, func(s holdfasttest.Step) error {
			if calls++; calls == 3 {
				return broken
			}
			return s("a", nothing)
		}), 0, `after a loss at step "a", fails: broken`},
	} {
		found, err := holdfasttest.LoseAtEachStep(c.start)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if c.want == "" && err != nil || !strings.Contains(text, c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
		if len(found) != c.found {
			t.Errorf("%s: %v, want %d findings", name, found, c.found)
		}
	}
}
