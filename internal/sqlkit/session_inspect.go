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
		if s.Broken != nil {
			return driver.State{Name: name, Err: s.Broken}
		}
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
	ctx, end, err := e.Call(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	err = e.withSideLink(ctx, func(side Link) error {
		var missing error
		if sights, missing, err = e.recipe.Survey(ctx, side, key, all); err != nil {
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

// Inspect returns the holders and waiters of one name. It returns an error if sessions could
// not record what they hold, unless an exclusive holder is found.
func (e *Sessions) Inspect(ctx context.Context, name string) (driver.State, error) {
	sights, err := e.inspect(ctx, append(bytes.Clone(e.prefix), name...), false)
	st := e.state(name, sights)
	if err == nil && st.Err != nil {
		return driver.State{}, st.Err
	}
	return st, err
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
// it. It looks for the holder for up to breakTimeout, because a young grant is not recorded yet.
// If it finds no such holder, and there may be one that it cannot see, it returns an error other
// than CodeNotHeld.
func (e *Sessions) Break(ctx context.Context, name string, token uint64) error {
	ctx, end, err := e.Call(ctx)
	if err != nil {
		return err
	}
	defer end()
	start := time.Now()
	poll := backoff.Backoff{First: time.Millisecond, Max: 100 * time.Millisecond}
	for evicted := false; ; {
		var found bool
		var absent error
		err := e.withSideLink(ctx, func(side Link) (err error) {
			found, absent, err = e.evict(ctx, side, name, token)
			return err
		})
		switch {
		case err != nil:
			coded, _ := e.recipe.Sort(err)
			return e.closedOr(coded)
		case found:
			evicted = true
		case evicted:
			return nil
		case absent != nil && (driver.CodeOf(absent) != driver.CodeUnavailable || time.Since(start) > breakTimeout):
			return absent
		case time.Since(start) > breakTimeout:
			return driver.NotHeld(name, token)
		}
		if err := poll.Sleep(ctx); err != nil && evicted {
			return e.closedOr(driver.Errorf(driver.CodeUnknown, "the server has not ended the holder's session yet: %w", err))
		} else if err != nil {
			return e.closedOr(driver.Errorf(driver.CodeUnavailable, "the holder is not found yet: %w", err))
		}
	}
}

// evict ends the session of the holder that has the token. If it finds no such holder, absent is the error
// of the break: CodeNotHeld if there certainly is none, another code if there may be one that it cannot see,
// and nil if it may not be recorded yet.
func (e *Sessions) evict(ctx context.Context, side Link, name string, token uint64) (found bool, absent, err error) {
	key := append(bytes.Clone(e.prefix), name...)
	sights, missing, err := e.recipe.Survey(ctx, side, key, false)
	if err != nil {
		return false, nil, err
	}
	// An exclusive holder is the only one, unless it has lost its lock and has not noticed that yet.
	if i := slices.IndexFunc(sights, func(s Sight) bool {
		return s.Granted && s.Token > 0 && driver.HasToken(s.Token, s.Tokens, token)
	}); i >= 0 {
		return true, nil, e.recipe.Evict(ctx, side, sights[i])
	}
	unrecorded := driver.Errorf(driver.CodeUnavailable, "the holder of %q has not recorded its token: "+
		"it is another program, or its process is slow or stopped", name)
	prober, omits := e.recipe.(Prober)
	shared := slices.ContainsFunc(sights, func(s Sight) bool { return s.Granted })
	switch {
	case missing != nil:
		absent = missing
	case omits && shared: // another holder may not be recorded yet
	case omits:
		locked, err := prober.Locked(ctx, side, key)
		if err != nil {
			return false, nil, err
		}
		if absent = driver.NotHeld(name, token); locked {
			absent = unrecorded
		}
	default:
		absent = driver.NotHeld(name, token)
	}
	for _, s := range sights {
		switch {
		case !s.Granted:
		case s.Token > 0 && s.Limit == driver.Exclusive:
			return false, driver.NotHeld(name, token), nil
		case s.Hidden:
			absent = driver.Errorf(driver.CodeRefused, "the server does not show the holder of %q to this user", name)
		case s.Token == 0:
			absent = unrecorded
		}
	}
	return false, absent, nil
}
