package sqlkit

import (
	"context"
	"encoding/hex"
	"time"
)

// sweep removes unused rows at intervals, in the background.
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

// Sweep removes rows that were unused for at least this time. The engine calls it with
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
		for _, r := range rows {
			key, err := hex.DecodeString(r.Text(0))
			if err != nil {
				return err
			}
			bucket := int(r.Int(1))
			marks[bucket] = max(marks[bucket], r.Int(3))
			remove = append(remove, o.table.Delete(key, r.Int(2)))
		}
		for bucket := range Buckets { // always in the same order
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

// coded returns an error of a connection with a code.
func (o *Optimistic) coded(err error) error {
	coded, _ := o.faults.Sort(err)
	return coded
}
