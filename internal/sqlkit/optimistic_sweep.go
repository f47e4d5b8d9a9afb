package sqlkit

import (
	"context"
	"encoding/hex"
	"time"
)

// sweep starts a Sweep in the background if the last one began at least sweepEvery ago.
func (o *Optimistic) sweep() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || time.Since(o.swept) < sweepEvery {
		return
	}
	o.swept = time.Now()
	o.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(o.ctx, sweepEvery/2)
		defer cancel()
		_ = o.Sweep(ctx, rowIdleTime) // the next sweep continues
	})
}

// Sweep removes the rows that were unused for at least idle. The engine calls it with
// rowIdleTime. Only tests use a shorter time.
func (o *Optimistic) Sweep(ctx context.Context, idle time.Duration) error {
	const maxRows = 200
	for {
		answers, err := o.pool.Run(ctx, o.table.Idle(idle.Microseconds(), maxRows))
		if err != nil {
			return o.coded(err)
		}
		rows := answers[len(answers)-1]
		var raise, remove []string
		marks := map[int]int64{}
		for _, r := range rows { // name, bucket, version, token
			key, err := hex.DecodeString(r.Text(0))
			if err != nil {
				return err
			}
			bucket := int(r.Int(1))
			marks[bucket] = max(marks[bucket], r.Int(3))
			remove = append(remove, o.table.Delete(key, r.Int(2)))
		}
		for bucket := range Buckets { // a fixed order, so that two clients that raise the same marks do not deadlock
			if token, ok := marks[bucket]; ok {
				raise = append(raise, o.table.Raise(bucket, token))
			}
		}
		if len(remove) == 0 {
			return nil
		}
		// The high-water marks come first: a client that finds no row must find the mark.
		if _, err := o.pool.Run(ctx, raise...); err != nil {
			return o.coded(err)
		}
		if _, err := o.pool.Run(ctx, remove...); err != nil {
			return o.coded(err)
		}
		if len(rows) < maxRows {
			return nil
		}
	}
}

// coded adds a code to an error of a connection.
func (o *Optimistic) coded(err error) error {
	coded, _ := o.faults.Sort(err)
	return coded
}
