// Package backoff paces retries.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is the delay before the next retry. It doubles from First to Max, and up to half
// of each delay is subtracted at random, so that clients do not retry together. The zero
// value does not wait.
type Backoff struct {
	First, Max time.Duration

	delay time.Duration // the present one, without the random part
}

// Next returns the next delay.
func (b *Backoff) Next() time.Duration {
	b.delay = min(max(2*b.delay, b.First), b.Max)
	return b.delay - rand.N(b.delay/2+1)
}

// Sleep waits for the next delay. It returns the error of ctx if ctx ends first.
func (b *Backoff) Sleep(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Reset makes First the next delay again.
func (b *Backoff) Reset() { b.delay = 0 }

// Sleep waits for d. It returns the error of ctx if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Yield waits for a random time after a conflict, so that other clients go first. The longest time is 2 ms
// for the first try, and rises to 40 ms. tries counts from 1.
func Yield(ctx context.Context, tries int) error {
	return Sleep(ctx, rand.N(time.Duration(min(max(tries, 1), 20))*2*time.Millisecond))
}
