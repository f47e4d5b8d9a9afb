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
)

// state turns what was seen of a name into its state.
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
			st.Holders = append(st.Holders, driver.Holder{Owner: o, Token: s.Token, Limit: s.Limit, Slot: s.Slot,
				TTL: max(s.Left, time.Microsecond), Note: s.Note})
		} else {
			st.Waiters = append(st.Waiters, driver.Waiter{Owner: o, Limit: s.Limit})
		}
	}
	return st
}

func (e *Sessions) look(ctx context.Context, key []byte, all bool) (sights []Sight, err error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.tasks.Done()
	ctx, end := e.bound(ctx)
	defer end()
	err = e.aside(ctx, func(side Link) error {
		sights, err = e.survey(ctx, side, key, all)
		if err == nil && (all || !slices.ContainsFunc(sights, func(s Sight) bool { return s.Granted && s.Limit == driver.Exclusive })) {
			err = e.recorded(ctx, side)
		}
		return err
	})
	if err != nil {
		coded, _ := e.recipe.Sort(err)
		if driver.CodeOf(coded) == driver.CodeUnknown {
			coded = driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
		return nil, e.closedOr(coded)
	}
	return sights, nil
}

// survey waits until sessions have written down the grants that are older than the
// question. That takes a moment; survey waits no longer for a process that is stopped just
// then.
func (e *Sessions) survey(ctx context.Context, side Link, key []byte, all bool) ([]Sight, error) {
	sights, untold, err := e.recipe.Survey(ctx, side, key, all)
	for end := time.Now().Add(tellWithin); err == nil && len(untold) > 0 && time.Now().Before(end); {
		if err := sleep(ctx, 3*time.Millisecond); err != nil {
			return nil, err
		}
		var still []Identity
		sights, still, err = e.recipe.Survey(ctx, side, key, all)
		untold = slices.DeleteFunc(untold, func(id Identity) bool { return !slices.Contains(still, id) })
	}
	return sights, err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// recorded returns an error if there may be holders that a survey cannot show.
func (e *Sessions) recorded(ctx context.Context, side Link) error {
	if r, ok := e.recipe.(Recorder); ok {
		return r.Unrecorded(ctx, side)
	}
	return nil
}

// Inspect returns the holders and waiters of one name. It returns an error if sessions
// could not write down what they hold, unless an exclusive holder is seen.
func (e *Sessions) Inspect(ctx context.Context, name string) (driver.State, error) {
	sights, err := e.look(ctx, append(bytes.Clone(e.prefix), name...), false)
	return e.state(name, sights), err
}

// List yields the names that are held or awaited by holdfast.
func (e *Sessions) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		key := append(bytes.Clone(e.prefix), prefix...)
		sights, err := e.look(ctx, key, true)
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

// Break ends the session of the holder with that token, and returns when the server
// has ended it. It returns an error, and not that nothing stands, if it sees no such
// holder and sessions could not write down what they hold.
func (e *Sessions) Break(ctx context.Context, name string, token uint64) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.tasks.Done()
	ctx, end := e.bound(ctx)
	defer end()
	key := append(bytes.Clone(e.prefix), name...)
	for d := time.Millisecond; ; d = min(2*d, 100*time.Millisecond) {
		found := false
		err := e.aside(ctx, func(side Link) error {
			sights, err := e.survey(ctx, side, key, false)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(sights, func(s Sight) bool { return s.Granted && s.Token == token && token > 0 })
			if found = i >= 0; !found {
				return e.recorded(ctx, side)
			}
			return e.recipe.Evict(ctx, side, sights[i])
		})
		switch {
		case err != nil:
			coded, _ := e.recipe.Sort(err)
			return e.closedOr(coded)
		case !found && d == time.Millisecond:
			return notHeld(name, token)
		case !found:
			return nil
		}
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return e.closedOr(driver.Errorf(driver.CodeUnknown, "the holder's session was told to end, and the server still has it: %w", ctx.Err()))
		}
	}
}
