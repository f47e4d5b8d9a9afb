package fence

import (
	"context"
	"sync"
)

// Memory guards resources that live in this process, or that only this process
// writes. The zero value is ready; it must not be copied after first use.
//
// It keeps one number and the name per resource, for as long as it lives: let
// resources be a known set, or [Memory.Forget] those that are gone. It forgets
// everything when the process ends, and then accepts the first token it sees;
// a resource that outlives the process needs a guard that does too.
type Memory struct {
	mu        sync.Mutex
	resources map[string]*turn
}

// turn is one resource: who is in it may read and write newest.
type turn struct {
	in     chan struct{} // holds one element while someone is in
	users  int           // who is in or waits, under Memory.mu
	newest uint64        // 0: nothing to remember
}

// Do implements [Guard]. Writes of one resource run one at a time, in no
// particular order while they wait; writes of different resources do not wait
// for each other. A write that never returns blocks its resource, and a write
// that calls Do for its own resource waits for itself until ctx ends.
//
// The token stays raised when write fails or panics.
func (m *Memory) Do(ctx context.Context, resource string, token uint64, write func(context.Context) error) error {
	if err := check(resource, token); err != nil {
		return err
	}
	t, leave, err := m.enter(ctx, resource)
	if err != nil {
		return err
	}
	defer leave()
	if token < t.newest {
		return &StaleError{Resource: resource, Token: token, Newest: t.newest}
	}
	t.newest = token
	if write == nil {
		return nil
	}
	return write(ctx)
}

// Newest returns the largest token seen for resource, or 0 if there was none.
// It waits while a write runs. Errors wrap [ErrInvalid] or [ErrUnavailable].
func (m *Memory) Newest(ctx context.Context, resource string) (uint64, error) {
	if err := checkResource(resource); err != nil {
		return 0, err
	}
	t, leave, err := m.enter(ctx, resource)
	if err != nil {
		return 0, err
	}
	defer leave()
	return t.newest, nil
}

// Forget drops what is known of a resource that is gone for good, after a write
// that runs has returned. Forgetting a resource that still exists lets every
// old token write to it again. Errors wrap [ErrInvalid] or [ErrUnavailable].
func (m *Memory) Forget(ctx context.Context, resource string) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	t, leave, err := m.enter(ctx, resource)
	if err != nil {
		return err
	}
	defer leave()
	t.newest = 0
	return nil
}

// enter waits until nobody else is in the resource. It answers by the clock of
// ctx first: with a place free and the context ended, the context wins.
func (m *Memory) enter(ctx context.Context, resource string) (*turn, func(), error) {
	t := m.join(resource)
	select {
	case t.in <- struct{}{}:
	case <-ctx.Done():
		m.part(resource, t)
		return nil, nil, ended(ctx, resource)
	}
	leave := func() {
		// As long as users counts someone the turn stays in the map, so that
		// everyone meets at the same one.
		<-t.in
		m.part(resource, t)
	}
	if err := ended(ctx, resource); err != nil {
		leave()
		return nil, nil, err
	}
	return t, leave, nil
}

func (m *Memory) join(resource string) *turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.resources[resource]
	if t == nil {
		t = &turn{in: make(chan struct{}, 1)}
		if m.resources == nil {
			m.resources = make(map[string]*turn)
		}
		m.resources[resource] = t
	}
	t.users++
	return t
}

// part drops a turn that nobody uses and that remembers nothing, so that waits
// given up and reads of unknown resources leave nothing behind.
func (m *Memory) part(resource string, t *turn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.users--
	if t.users == 0 && t.newest == 0 {
		delete(m.resources, resource)
	}
}
