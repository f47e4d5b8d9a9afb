package sqlkit

import (
	"bytes"
	"context"
	"encoding/hex"
	"maps"
	"slices"
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
