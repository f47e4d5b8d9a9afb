package server

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// Inspected is the state of a name, or why it could not be read.
type Inspected struct {
	State driver.State
	Err   error
}

// Inspect returns the state of one name.
func (b *Store) Inspect(ctx context.Context, name string) (driver.State, error) {
	s := b.s
	if err := driver.CheckName(name); err != nil {
		return driver.State{}, driver.Errorf(driver.CodeInvalid, "redisstore: %w", err)
	}
	if err := s.Begin(ctx); err != nil {
		return driver.State{}, err
	}
	defer s.Leave()
	one := s.recipe.Inspect(ctx, []string{name})[0]
	return one.State, one.Err
}

// List yields the states of the names that begin with prefix and are held or waited for, in byte
// order.
func (b *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	s := b.s
	return func(yield func(driver.State, error) bool) {
		if err := s.Begin(ctx); err != nil {
			yield(driver.State{}, err)
			return
		}
		defer s.Leave()
		names, err := s.recipe.Names(ctx, prefix)
		if err != nil {
			yield(driver.State{}, err)
			return
		}
		s.states(ctx, names)(yield)
	}
}

// InspectBatch is the largest number of names of one call of Recipe.Inspect.
const InspectBatch = 100

// states yields the states of names, without those that have neither holder nor waiter. It ends
// after the first error, unless the server has refused to read a single name.
func (s *Server) states(ctx context.Context, names []string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		for some := range slices.Chunk(names, InspectBatch) {
			for _, a := range s.recipe.Inspect(ctx, some) {
				if a.Err == nil && len(a.State.Holders)+len(a.State.Waiters) == 0 {
					continue
				}
				if driver.CodeOf(a.Err) == driver.CodeRefused {
					a.State.Err, a.Err = a.Err, nil
				}
				if !yield(a.State, a.Err) || a.Err != nil {
					return
				}
			}
		}
	}
}

// Scan calls visit for each key of a node that SCAN yields with these arguments. A key may come twice.
func Scan(ctx context.Context, n Node, visit func(key string), args ...string) error {
	for cursor := "0"; ; {
		answer, err := n.Command(ctx, append([]string{"SCAN", cursor, "COUNT", "1000"}, args...)...)
		if err != nil {
			return err
		}
		if len(answer) == 0 {
			return driver.Errorf(driver.CodeUnavailable, "SCAN returns nothing")
		}
		for _, key := range answer[1:] {
			visit(key)
		}
		if cursor = answer[0]; cursor == "0" {
			return nil
		}
	}
}

// The intervals at which Watch polls one name, and all names.
const (
	watchOne = 100 * time.Millisecond
	watchAll = 500 * time.Millisecond
)

// Watch polls the state, and calls changed after each change that it finds. The scripts notify only
// the waiters and holders of a name: to publish every change would make each lock slower, and
// watchers are rare.
func (b *Store) Watch(ctx context.Context, name string, changed func()) error {
	s := b.s
	if err := s.Begin(ctx); err != nil {
		return err
	}
	defer s.Leave()
	every := watchAll
	if name != "" {
		every = watchOne
	}
	seen, first := "", true
	for {
		began := time.Now()
		current, err := s.fingerprint(ctx, name)
		if err == nil && (first || current != seen) {
			seen, first = current, false
			changed()
		} else if err != nil && ctx.Err() == nil && !IsTransient(err) {
			return err
		}
		// Use at most a tenth of the server's time.
		select {
		case <-time.After(max(every, 10*time.Since(began))):
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Ctx.Done():
			return calls.ErrClosed
		}
	}
}

// fingerprint returns a text that changes when the holders or waiters of the name change. Without a
// name it covers all names.
func (s *Server) fingerprint(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	names := []string{name}
	if name == "" {
		var err error
		if names, err = s.recipe.Names(ctx, ""); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	for state, err := range s.states(ctx, names) {
		if err != nil {
			return "", err
		}
		b.WriteString(strconv.Quote(state.Name))
		if state.Err != nil {
			b.WriteString(state.Err.Error())
		}
		for _, h := range state.Holders {
			b.WriteString(" h" + strconv.FormatUint(h.Token, 10) + h.ID)
		}
		for _, w := range state.Waiters {
			b.WriteString(" w" + w.ID)
		}
	}
	return b.String(), nil
}
