package holdfast

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// Fake is a client of a memory store whose guarantees and calls a test changes. A call without a function goes to the
// store.
type Fake struct {
	*memstore.Store
	Edit       func(*driver.Guarantees)
	Guaranteed func(context.Context) error // before the guarantees
	OnAcquire  func(context.Context, driver.Request) (driver.Grant, error)
	OnUndo     func(context.Context, driver.Request) error
	OnRenew    func(context.Context, []driver.Grant) []driver.Renewal
	OnRelease  func(context.Context, driver.Grant, time.Duration) error
	OnInspect  func(context.Context, string) (driver.State, error)
}

func (f *Fake) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	if f.Guaranteed != nil {
		if err := f.Guaranteed(ctx); err != nil {
			return driver.Guarantees{}, err
		}
	}
	g, err := f.Store.Guarantees(ctx)
	if f.Edit != nil {
		f.Edit(&g)
	}
	return g, err
}

func (f *Fake) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if f.OnAcquire != nil {
		return f.OnAcquire(ctx, r)
	}
	return f.Store.Acquire(ctx, r)
}

func (f *Fake) Undo(ctx context.Context, r driver.Request) error {
	if f.OnUndo != nil {
		return f.OnUndo(ctx, r)
	}
	return f.Store.Undo(ctx, r)
}

func (f *Fake) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	if f.OnRenew != nil {
		return f.OnRenew(ctx, grants)
	}
	return f.Store.Renew(ctx, grants)
}

func (f *Fake) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if f.OnRelease != nil {
		return f.OnRelease(ctx, g, keep)
	}
	return f.Store.Release(ctx, g, keep)
}

func (f *Fake) Inspect(ctx context.Context, name string) (driver.State, error) {
	if f.OnInspect != nil {
		return f.OnInspect(ctx, name)
	}
	return f.Store.Inspect(ctx, name)
}

// FakeClock is ahead of time.Now, and belongs to a machine that can be suspended.
type FakeClock struct{ Ahead, Suspended atomic.Int64 }

func (c *FakeClock) Now() time.Time       { return time.Now().Add(time.Duration(c.Ahead.Load())) }
func (c *FakeClock) Slept() time.Duration { return time.Duration(c.Suspended.Load()) }

// OnClock returns a client of s that times its grants on c.
func OnClock(s *memstore.Store, c driver.Clock) *Fake {
	return &Fake{
		Store: s,
		OnAcquire: func(ctx context.Context, r driver.Request) (driver.Grant, error) {
			sent := driver.NowOn(c)
			g, err := s.Acquire(ctx, r)
			g.SentAt = sent
			return g, err
		},
		OnRenew: func(ctx context.Context, grants []driver.Grant) []driver.Renewal {
			sent := driver.NowOn(c)
			answers := s.Renew(ctx, grants)
			for i := range answers {
				answers[i].SentAt = sent
			}
			return answers
		},
	}
}
