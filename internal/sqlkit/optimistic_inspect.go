package sqlkit

import (
	"bytes"
	"context"
	"encoding/hex"
	"iter"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

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
