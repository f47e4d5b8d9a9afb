package sqlkit

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// state returns a name's state, as its sights show it.
func (e *Sessions) state(name string, sights []Sight) driver.State {
	st := driver.State{Name: name}
	slices.SortStableFunc(sights, func(a, b Sight) int {
		if a.Granted {
			return cmp.Compare(a.Token, b.Token)
		}
		return a.Since.Compare(b.Since)
	})
	for _, s := range sights {
		o := s.Owner
		o.Since = s.Since
		if s.Granted {
			h := driver.Holder{Owner: o, Token: s.Token, Tokens: s.Tokens, Limit: s.Limit, Slot: s.Slot, Note: s.Note}
			if s.TTL > 0 { // else another program has the lock
				h.TTL = max(s.Left, time.Microsecond)
			}
			st.Holders = append(st.Holders, h)
		} else {
			st.Waiters = append(st.Waiters, driver.Waiter{Owner: o, Limit: s.Limit})
		}
	}
	return st
}

// inspect returns the sights of a key. It returns an error if there may be other holders.
func (e *Sessions) inspect(ctx context.Context, key []byte, all bool) (sights []Sight, err error) {
	ctx, end, err := e.call(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	err = e.withSideLink(ctx, func(side Link) error {
		var missing error
		if sights, missing, err = e.survey(ctx, side, key, all); err != nil {
			return err
		}
		if !all && slices.ContainsFunc(sights, func(s Sight) bool { return s.Granted && s.Limit == driver.Exclusive }) {
			return nil // an exclusive holder is the only one
		}
		return missing
	})
	if err != nil {
		return nil, e.closedOr(Unreached(e.recipe, err))
	}
	return sights, nil
}

// survey returns the sights of a key. It first waits until sessions have recorded the grants that
// are older than the call, which takes a moment. A session may be unable to record its grant, or
// its process may be stopped for longer than recordTimeout. Then missing is the error for holders
// that are not found.
func (e *Sessions) survey(ctx context.Context, side Link, key []byte, all bool) (sights []Sight, missing, err error) {
	sights, unrecorded, err := e.recipe.Survey(ctx, side, key, all)
	if err != nil {
		return nil, nil, err
	}
	for start := time.Now(); len(unrecorded) > 0 && time.Since(start) < recordTimeout; {
		if time.Since(start) > failedRecordTimeout {
			if missing, err = e.unrecorded(ctx, side); missing != nil || err != nil {
				return sights, missing, err
			}
		}
		if err := backoff.Sleep(ctx, 3*time.Millisecond); err != nil {
			return nil, nil, err
		}
		var still []Identity
		if sights, still, err = e.recipe.Survey(ctx, side, key, all); err != nil {
			return nil, nil, err
		}
		unrecorded = slices.DeleteFunc(unrecorded, func(id Identity) bool { return !slices.Contains(still, id) })
	}
	if missing, err = e.unrecorded(ctx, side); missing == nil && len(unrecorded) > 0 {
		missing = driver.Errorf(driver.CodeUnavailable, "%d sessions may hold locks that they have not recorded within %s, so that not all holders can be shown: their processes are slow or stopped", len(unrecorded), recordTimeout)
	}
	return sights, missing, err
}

// unrecorded returns missing if sessions could not record a grant, so that a survey cannot return
// their holders.
func (e *Sessions) unrecorded(ctx context.Context, side Link) (missing, err error) {
	r, ok := e.recipe.(Recorder)
	if !ok {
		return nil, nil
	}
	if err = r.Unrecorded(ctx, side); driver.CodeOf(err) == driver.CodeUnavailable {
		return err, nil
	}
	return nil, err
}

// Inspect returns the holders and waiters of one name. It returns an error if sessions could
// not record what they hold, unless an exclusive holder is found.
func (e *Sessions) Inspect(ctx context.Context, name string) (driver.State, error) {
	sights, err := e.inspect(ctx, append(bytes.Clone(e.prefix), name...), false)
	return e.state(name, sights), err
}

// List yields the names that clients of holdfast hold or wait for.
func (e *Sessions) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		key := append(bytes.Clone(e.prefix), prefix...)
		sights, err := e.inspect(ctx, key, true)
		if err != nil {
			yield(driver.State{}, err)
			return
		}
		names := map[string][]Sight{}
		for _, s := range sights {
			if bytes.HasPrefix(s.Key, key) {
				name := string(s.Key[len(e.prefix):])
				names[name] = append(names[name], s)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if !yield(e.state(name, names[name]), nil) {
				return
			}
		}
	}
}

// Break ends the session of the holder that has the token, and waits until the server has ended
// it. If it finds no such holder, and there may be one that it cannot see, it returns an error
// other than CodeNotHeld.
func (e *Sessions) Break(ctx context.Context, name string, token uint64) error {
	ctx, end, err := e.call(ctx)
	if err != nil {
		return err
	}
	defer end()
	poll := backoff.Backoff{First: time.Millisecond, Max: 100 * time.Millisecond}
	for first := true; ; first = false {
		evicted := false
		err := e.withSideLink(ctx, func(side Link) (err error) {
			evicted, err = e.evict(ctx, side, name, token, first)
			return err
		})
		switch {
		case err != nil:
			coded, _ := e.recipe.Sort(err)
			return e.closedOr(coded)
		case !evicted && first:
			return notHeld(name, token)
		case !evicted:
			return nil
		}
		if err := poll.Sleep(ctx); err != nil {
			return e.closedOr(driver.Errorf(driver.CodeUnknown, "the server has not ended the holder's session yet: %w", err))
		}
	}
}

// evict ends the session of the holder that has the token. It returns false if it finds no such holder,
// and an error if there may be one that it cannot see. After the first call an unseen holder of another
// program does not count.
func (e *Sessions) evict(ctx context.Context, side Link, name string, token uint64, first bool) (found bool, err error) {
	sights, missing, err := e.survey(ctx, side, append(bytes.Clone(e.prefix), name...), false)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(sights, func(s Sight) bool { return s.Granted && s.Token > 0 && has(s.Token, s.Tokens, token) })
	switch {
	case i >= 0:
		return true, e.recipe.Evict(ctx, side, sights[i])
	case first && slices.ContainsFunc(sights, func(s Sight) bool { return s.Granted && s.Hidden }):
		return false, driver.Errorf(driver.CodeRefused, "the server does not show the holder of %q to this user", name)
	}
	return false, missing
}
