package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Engine is what [Optimistic] and [Sessions] both are: a store, but for its name, its
// guarantees and its errors.
type Engine interface {
	driver.Inspector
	driver.Breaker
	Acquire(context.Context, driver.Request) (driver.Grant, error)
	Undo(context.Context, driver.Request) error
	Renew(context.Context, []driver.Grant) []driver.Renewal
	Release(context.Context, driver.Grant, time.Duration) error
	Close(context.Context) error
}

var (
	_ Engine = (*Optimistic)(nil)
	_ Engine = (*Sessions)(nil)
)
