package record

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// Break ends the grant that has the token. Its client notices within [Options].Notice.
func (e *engine) Break(ctx context.Context, name string, token uint64) error {
	p := &op{key: e.key(name), wake: true}
	found := false
	p.step = func(v *view) (*content, error) {
		i := slices.IndexFunc(v.Holders, func(h holder) bool { return driver.HasToken(h.Token, h.Tokens, token) })
		if i < 0 {
			if found {
				return nil, nil
			}
			return nil, driver.NotHeld(name, token)
		}
		found = true
		next := v.with(slices.Delete(slices.Clone(v.Holders), i, i+1), "")
		next.Taken = append(slices.Clone(v.Taken), taken{v.Holders[i].Token, v.now + takenTime.Microseconds()})
		return next, nil
	}
	return e.applyOne(ctx, p)
}

// Inspect returns the holders of one name. It returns no waiters: of those, the record has only the IDs.
func (e *engine) Inspect(ctx context.Context, name string) (driver.State, error) {
	st := driver.State{Name: name}
	p := &op{key: e.key(name)}
	p.step = func(v *view) (*content, error) {
		st.Holders = v.describe(v.now + e.lasts(0))
		return nil, nil
	}
	err := e.applyOne(ctx, p)
	return st, err
}

// List yields the names that are held.
func (e *engine) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		all, err := e.list(ctx, prefix)
		if err != nil {
			yield(driver.State{}, err)
			return
		}
		for _, st := range all {
			if !yield(st, nil) {
				return
			}
		}
	}
}

// list returns what List yields. The call has ended by then, so that the caller may close the engine.
func (e *engine) list(ctx context.Context, prefix string) (all []driver.State, err error) {
	ctx, end, err := e.calls.Call(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	for entry, err := range e.batch.List(ctx, e.key(prefix)) {
		if err != nil {
			return nil, e.ended(certain(err))
		}
		name, ours := strings.CutPrefix(entry.Key, e.prefix)
		if !ours {
			continue
		}
		now := entry.Now.UnixMicro()
		c, broken := e.decode(entry.Key, &entry.Object)
		st := driver.State{Name: name, Holders: c.live(now).describe(now + e.lasts(0)), Err: broken}
		if len(st.Holders) > 0 || st.Err != nil {
			all = append(all, st)
		}
	}
	slices.SortFunc(all, func(a, b driver.State) int { return strings.Compare(a.Name, b.Name) })
	// A key may be on two pages of a list.
	return slices.CompactFunc(all, func(a, b driver.State) bool { return a.Name == b.Name }), nil
}

// certain returns the error of a read with CodeUnavailable or CodeRefused. A read changes nothing, so its
// outcome is known.
func certain(err error) error {
	if driver.CodeOf(err) == driver.CodeRefused {
		return err
	}
	return &driver.Error{Code: driver.CodeUnavailable, Err: err}
}
