package sqlkit

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Settle probes until that is answered or ctx ends: a server that is being started
// again is no reason to fail.
func Settle(ctx context.Context, probe func(context.Context) error) error {
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		if code := driver.CodeOf(err); code != driver.Unavailable && code != driver.Unknown {
			return err
		}
		t := time.NewTimer(50 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return driver.Errorf(driver.Unavailable, "%w", err)
		}
	}
}
