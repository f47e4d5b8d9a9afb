package sqlkit

import (
	"bytes"
	"context"
	"encoding/hex"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// keep records a grant, so that its holder is notified when it is broken.
func (o *Optimistic) keep(r driver.Request, g driver.Grant) (driver.Grant, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return g, driver.Errorf(driver.CodeUnknown, "the store was closed meanwhile")
	}
	o.held[g.ID] = &kept{g, r.From, time.Now()}
	if !o.watching {
		o.watching = true
		o.tasks.Go(o.watchHeld)
	}
	return g, nil
}

func (o *Optimistic) forget(id string) {
	o.mu.Lock()
	delete(o.held, id)
	o.mu.Unlock()
}

// watchHeld checks the grants of this client, as long as there are any.
func (o *Optimistic) watchHeld() {
	t := time.NewTicker(checkInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-o.ctx.Done():
			return
		}
		o.mu.Lock()
		byName := map[string][]*kept{}
		for _, k := range o.held {
			byName[k.g.Name] = append(byName[k.g.Name], k)
		}
		o.watching = len(byName) > 0
		o.mu.Unlock()
		if len(byName) == 0 {
			return
		}
		all := slices.Collect(maps.Values(byName))
		inBatches(len(all), func(from, to int, _ bool) bool {
			return o.checkHeld(o.ctx, slices.Concat(all[from:to]...))
		})
	}
}

// checkHeld notifies the holders whose grants no longer exist. It returns false if the check
// failed before its timeout, so that another check may follow at once. A grant that expires
// needs no notification: its validity has ended.
func (o *Optimistic) checkHeld(ctx context.Context, some []*kept) bool {
	finding, cancel := context.WithTimeout(ctx, checkInterval)
	some = o.unproven(finding, some)
	late := finding.Err() != nil
	cancel()
	if len(some) == 0 || late {
		return true
	}
	// A slow server needs most of the first timeout to find the grants, so the reads of
	// rows get another one.
	ctx, cancel = context.WithTimeout(ctx, checkInterval)
	defer cancel()
	causes := make([]driver.Cause, len(some))
	var ops []*op
	for i, k := range some {
		ops = append(ops, &op{name: o.key(k.g.Name), step: func(row *row) (*content, error) {
			if h := row.byID(k.g.ID); h == nil || h.Token != k.g.Token {
				if causes[i] = driver.CauseGone; row.wasTaken(k.g.Token) {
					causes[i] = driver.CauseTaken
				}
			}
			return nil, nil
		}})
	}
	if o.apply(ctx, slices.Clone(ops)...) != nil {
		return ctx.Err() != nil
	}
	for i, k := range some {
		if causes[i] == "" || ops[i].err != nil {
			continue
		}
		o.mu.Lock()
		still := o.held[k.g.ID] == k // else it was released meanwhile
		delete(o.held, k.g.ID)
		o.mu.Unlock()
		if still {
			k.from.Lost(causes[i], nil)
		}
	}
	return true
}

// unproven searches for all grants by one statement, and returns those that it does not find. A
// statement for each of thousands of grants, every second, would keep the server busy.
func (o *Optimistic) unproven(ctx context.Context, some []*kept) []*kept {
	names := make([][]byte, len(some))
	for i, k := range some {
		names[i] = o.key(k.g.Name)
	}
	names = slices.CompactFunc(names, bytes.Equal)
	answers, err := o.pool.Run(ctx, o.table.Find(names))
	if err != nil || len(answers) == 0 {
		return some
	}
	standing := map[string]content{}
	for _, r := range answers[len(answers)-1] {
		key, err := hex.DecodeString(r.Text(columnName))
		c, broken := decode(r.Text(columnState))
		if err != nil || broken != nil || readOnly(r.Text(columnReadOnly)) {
			return some
		}
		standing[string(key)] = c.live(r.Int(columnNow))
	}
	return slices.DeleteFunc(slices.Clone(some), func(k *kept) bool {
		c := standing[string(o.key(k.g.Name))]
		h := c.byID(k.g.ID)
		return h != nil && h.Token == k.g.Token
	})
}

// Break ends the grant that has the token. Its client notices within about a second.
func (o *Optimistic) Break(ctx context.Context, name string, token uint64) error {
	p := &op{name: o.key(name), wake: true}
	found := false
	p.step = func(row *row) (*content, error) {
		i := slices.IndexFunc(row.Holders, func(h holder) bool { return has(h.Token, h.Tokens, token) })
		if i < 0 {
			if found {
				return nil, nil
			}
			return nil, notHeld(name, token)
		}
		found = true
		return &content{Holders: slices.Delete(slices.Clone(row.Holders), i, i+1),
			Taken: append(slices.Clone(row.Taken), taken{row.Holders[i].Token, row.now + takenTime.Microseconds()})}, nil
	}
	return o.applyOne(ctx, p)
}

// Inspect returns the holders of one name.
func (o *Optimistic) Inspect(ctx context.Context, name string) (driver.State, error) {
	st := driver.State{Name: name}
	p := &op{name: o.key(name)}
	p.step = func(row *row) (*content, error) {
		st.Holders = row.describe(row.now)
		return nil, nil
	}
	err := o.applyOne(ctx, p)
	return st, err
}

// List yields the names that are held.
func (o *Optimistic) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		ctx, end, err := o.call(ctx)
		if err != nil {
			yield(driver.State{}, err)
			return
		}
		defer end()
		answers, err := o.pool.Run(ctx, o.table.List(o.key(prefix)))
		if err != nil {
			yield(driver.State{}, o.ended(Unreached(o.faults, err)))
			return
		}
		var all []driver.State
		for _, r := range answers[len(answers)-1] {
			key, err := hex.DecodeString(r.Text(1))
			if err != nil || !bytes.HasPrefix(key, o.prefix) {
				continue
			}
			c, err := decode(r.Text(2))
			if err != nil {
				yield(driver.State{}, err)
				return
			}
			if now := r.Int(0); len(c.live(now).Holders) > 0 {
				all = append(all, driver.State{Name: string(key[len(o.prefix):]), Holders: c.live(now).describe(now)})
			}
		}
		slices.SortFunc(all, func(a, b driver.State) int { return strings.Compare(a.Name, b.Name) })
		for _, st := range all {
			if !yield(st, nil) {
				return
			}
		}
	}
}

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
