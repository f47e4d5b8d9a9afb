package redisstore

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Inspect returns the state of one name.
func (s *Store) Inspect(ctx context.Context, name string) (driver.State, error) {
	if err := driver.CheckName(name); err != nil {
		return driver.State{}, driver.Errorf(driver.CodeInvalid, "redisstore: %w", err)
	}
	if err := s.begin(ctx); err != nil {
		return driver.State{}, err
	}
	defer s.ops.Done()
	one := s.inspectAll(ctx, []string{name})[0]
	return one.state, one.err
}

// readState parses the fields and values of a name's hash. now is the server's time. readState
// leaves out the grants and queue entries that have expired.
func readState(name string, rep reply, now int64) driver.State {
	st := driver.State{Name: name}
	hash := rep.values
	type queued struct {
		seq int64
		w   driver.Waiter
	}
	var queue []queued
	for i := 0; i+1 < len(hash); i += 2 {
		field, value := hash[i], hash[i+1]
		if len(field) < 2 {
			continue
		}
		n, err := strconv.ParseInt(field[1:], 10, 64)
		if err != nil {
			continue // the field is of another kind
		}
		switch field[0] {
		case 's': // a grant
			if h, ok := readHolder(field[1:]+" "+value, now); ok {
				st.Holders = append(st.Holders, h)
			}
		case 'q': // a queue entry
			if w, ok := readWaiter(value, now); ok {
				queue = append(queue, queued{n, w})
			}
		}
	}
	slices.SortFunc(st.Holders, func(a, b driver.Holder) int { return cmp.Compare(a.Token, b.Token) })
	slices.SortFunc(queue, func(a, b queued) int { return cmp.Compare(a.seq, b.seq) })
	for _, q := range queue {
		st.Waiters = append(st.Waiters, q.w)
	}
	return st
}

// readWaiter parses a queue entry, "ID LIMIT TTL DEADLINE SINCE CHANNEL OWNER". It returns false
// if the text is no queue entry, or if the deadline has passed.
func readWaiter(rec string, now int64) (w driver.Waiter, ok bool) {
	part := strings.SplitN(rec, " ", 7)
	if len(part) != 7 {
		return w, false
	}
	limit, err1 := strconv.Atoi(part[1])
	deadline, err2 := strconv.ParseInt(part[3], 10, 64)
	since, err3 := strconv.ParseInt(part[4], 10, 64)
	if errors.Join(err1, err2, err3) != nil || deadline <= now {
		return w, false
	}
	return driver.Waiter{Owner: readOwner(part[0], part[6], since), Limit: limit}, true
}

// List yields the states of the names that begin with prefix and are held or waited for, in byte
// order.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		if err := s.begin(ctx); err != nil {
			yield(driver.State{}, err)
			return
		}
		defer s.ops.Done()
		names, err := s.names(ctx, prefix)
		if err != nil {
			yield(driver.State{}, err)
			return
		}
		s.states(ctx, names)(yield)
	}
}

// inspectBatch is the largest number of names of one call of inspectAll.
const inspectBatch = 100

// states yields the states of names, without those that have neither holder nor waiter. It ends
// after the first error.
func (s *Store) states(ctx context.Context, names []string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		for some := range slices.Chunk(names, inspectBatch) {
			for _, a := range s.inspectAll(ctx, some) {
				if a.err == nil && len(a.state.Holders)+len(a.state.Waiters) == 0 {
					continue
				}
				if !yield(a.state, a.err) || a.err != nil {
					return
				}
			}
		}
	}
}

// inspected is the state of a name, or why it could not be read.
type inspected struct {
	state driver.State
	err   error
}

// inspectAll returns the states of names, in their order.
func (s *Store) inspectAll(ctx context.Context, names []string) []inspected {
	if s.peers != nil {
		return s.peers.inspectAll(ctx, names)
	}
	calls := make([]Call, len(names))
	for i, name := range names {
		calls[i] = Call{Keys: []string{s.keys.key(name)}}
	}
	sent, at := driver.Now(), micros()
	all := make([]inspected, len(names))
	for i, a := range s.client.EvalAll(ctx, inspectScript, calls) {
		rep, err := s.read(inspectScript, sent, at, a.Values, a.Err)
		if err != nil {
			all[i] = inspected{driver.State{Name: names[i]}, err}
			continue
		}
		now, _ := strconv.ParseInt(a.Values[1], 10, 64)
		all[i] = inspected{state: readState(names[i], rep, now)}
	}
	return all
}

// names returns the names that begin with prefix and have a key, in byte order.
func (s *Store) names(ctx context.Context, prefix string) ([]string, error) {
	if s.peers != nil {
		return s.peers.names(ctx, prefix)
	}
	var names []string
	err := s.client.EachPrimary(ctx, func(n Node) error {
		return scan(ctx, n, func(key string) {
			if name, ok := s.keys.nameOf(key); ok && strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}, "MATCH", s.keys.pattern(prefix))
	})
	if err != nil {
		return nil, s.explain(err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// scan calls visit for each key of a node that SCAN yields with these arguments. A key may come twice.
func scan(ctx context.Context, n Node, visit func(key string), args ...string) error {
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
func (s *Store) Watch(ctx context.Context, name string, changed func()) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.ops.Done()
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
		} else if err != nil && ctx.Err() == nil && !isTransient(err) {
			return err
		}
		// Use at most a tenth of the server's time.
		select {
		case <-time.After(max(every, 10*time.Since(began))):
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return errClosed
		}
	}
}

// fingerprint returns a text that changes when the holders or waiters of the name change. Without a
// name it covers all names.
func (s *Store) fingerprint(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	names := []string{name}
	if name == "" {
		var err error
		if names, err = s.names(ctx, ""); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	for state, err := range s.states(ctx, names) {
		if err != nil {
			return "", err
		}
		b.WriteString(strconv.Quote(state.Name))
		for _, h := range state.Holders {
			b.WriteString(" h" + strconv.FormatUint(h.Token, 10) + h.ID)
		}
		for _, w := range state.Waiters {
			b.WriteString(" w" + w.ID)
		}
	}
	return b.String(), nil
}
