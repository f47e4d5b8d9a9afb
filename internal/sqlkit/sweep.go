package sqlkit

import (
	"context"
	"encoding/hex"
	"time"
)

// Sweep implements [record.Sweeper].
func (r *rows) Sweep(ctx context.Context, idle time.Duration) error {
	const maxRows = 200
	if err := r.resolve(ctx); err != nil {
		return err
	}
	for {
		answers, err := r.pool.Run(ctx, r.table.Idle(idle.Microseconds(), maxRows))
		if err != nil {
			return r.coded(err)
		}
		found := answers[len(answers)-1]
		var raise, remove []string
		marks := map[int]int64{}
		for _, a := range found { // name, bucket, version, token
			key, err := hex.DecodeString(a.Text(0))
			if err != nil {
				return err
			}
			bucket := int(a.Int(1))
			marks[bucket] = max(marks[bucket], a.Int(3))
			remove = append(remove, r.table.Delete(key, a.Int(2)))
		}
		for bucket := range Buckets { // a fixed order, so that two clients that raise the same marks do not deadlock
			if token, ok := marks[bucket]; ok {
				raise = append(raise, r.table.Raise(bucket, token))
			}
		}
		if len(remove) == 0 {
			return nil
		}
		// The high-water marks come first: a client that finds no row must find the mark.
		if _, err := r.pool.Run(ctx, raise...); err != nil {
			return r.coded(err)
		}
		if _, err := r.pool.Run(ctx, remove...); err != nil {
			return r.coded(err)
		}
		if len(found) < maxRows {
			return nil
		}
	}
}

// coded adds a code to an error of a connection.
func (r *rows) coded(err error) error {
	coded, _ := r.faults.Sort(err)
	return coded
}
