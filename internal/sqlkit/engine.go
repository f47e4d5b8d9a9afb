package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
)

// Engine has the methods that [NewOptimistic] and [Sessions] have in common: those of a store,
// without its guarantees.
type Engine interface {
	driver.Inspector
	driver.Breaker
	// Classify returns the code of an error of the engine. Every such error has one.
	Classify(err error) driver.Code
	// Sweep removes rows of [NewOptimistic] that have been idle for at least this time.
	// That of [Sessions] does nothing.
	Sweep(ctx context.Context, idle time.Duration) error
	Acquire(context.Context, driver.Request) (driver.Grant, error)
	Undo(context.Context, driver.Request) error
	Renew(context.Context, []driver.Grant) []driver.Renewal
	Release(context.Context, driver.Grant, time.Duration) error
	Swap(context.Context, driver.Grant, driver.Request, func(error)) (driver.Grant, error)
	Close(context.Context) error
}

var (
	_ Engine = (*record.Engine)(nil)
	_ Engine = (*Sessions)(nil)
)
