package fence

import (
	"context"
	"sync"
)

// Memory guards resources that live in this process, or that only this process
// writes. The zero value is ready; it must not be copied after first use.
//
// Memory keeps the name of each resource and one number until the process ends. Use a
// fixed set of resources, or call [Memory.Forget] for those that no longer exist.
// After a restart Memory accepts the first token that it sees. A resource that
// outlives the process needs a guard that outlives it, too.
type Memory struct {
	mu        sync.Mutex
	resources map[string]*section
}

// section is the critical section of one resource. Only the goroutine inside the section may read
// and write newest.
type section struct {
	in     chan struct{} // contains one element while a goroutine is in the critical section
	users  int           // goroutines in the critical section or waiting for it, under Memory.mu
	newest uint64        // 0: no token was seen
}

// Write implements [Guard]. Writes of one resource run one at a time, in no
// particular order. Writes of different resources do not wait for each other. A
// write that never returns blocks its resource. A write that calls Write for its own
// resource deadlocks until ctx ends. With a nil write, Write does what Raise does.
//
// The token stays raised when write fails or panics.
func (m *Memory) Write(ctx context.Context, resource string, token uint64, write Func) error {
	if err := CheckArguments(ctx, resource, token); err != nil {
		return err
	}
	sec, leave, err := m.enter(ctx, resource)
	if err != nil {
		return err
	}
	defer leave()
	if token < sec.newest {
		return &StaleError{Resource: resource, Token: token, Newest: sec.newest}
	}
	sec.newest = token
	if write == nil {
		return nil
	}
	return write(ctx)
}

// Raise implements [Guard].
func (m *Memory) Raise(ctx context.Context, resource string, token uint64) error {
	return m.Write(ctx, resource, token, nil)
}

// Newest returns the largest token seen for resource, or 0 if there was none.
// It waits while a write runs. Errors wrap [ErrInvalid] or [ErrUnavailable].
func (m *Memory) Newest(ctx context.Context, resource string) (uint64, error) {
	if err := checkResource(resource); err != nil {
		return 0, err
	}
	sec, leave, err := m.enter(ctx, resource)
	if err != nil {
		return 0, err
	}
	defer leave()
	return sec.newest, nil
}

// Forget drops the token of a resource that no longer exists. It waits until a
// running write has returned. After Forget, every old token can write to the
// resource again. Errors wrap [ErrInvalid] or [ErrUnavailable].
func (m *Memory) Forget(ctx context.Context, resource string) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	sec, leave, err := m.enter(ctx, resource)
	if err != nil {
		return err
	}
	defer leave()
	sec.newest = 0
	return nil
}

// enter waits until no other goroutine is in the critical section of the resource, and enters the
// section. The caller leaves the section with the returned function. If the context has ended, enter
// returns an error, even if the section is free.
func (m *Memory) enter(ctx context.Context, resource string) (*section, func(), error) {
	sec := m.join(resource)
	select {
	case sec.in <- struct{}{}:
	case <-ctx.Done():
		m.drop(resource, sec)
		return nil, nil, ended(ctx, resource)
	}
	leave := func() {
		// The section stays in the map while users is positive, so that all goroutines
		// of the resource use the same one.
		<-sec.in
		m.drop(resource, sec)
	}
	if err := ended(ctx, resource); err != nil {
		leave()
		return nil, nil, err
	}
	return sec, leave, nil
}

// join counts one more user of the resource's section, and makes the section if there is none.
func (m *Memory) join(resource string) *section {
	m.mu.Lock()
	defer m.mu.Unlock()
	sec := m.resources[resource]
	if sec == nil {
		sec = &section{in: make(chan struct{}, 1)}
		if m.resources == nil {
			m.resources = make(map[string]*section)
		}
		m.resources[resource] = sec
	}
	sec.users++
	return sec
}

// drop ends one use of a section. It deletes a section without users and without a token, so that
// cancelled waits and reads of unknown resources use no memory.
func (m *Memory) drop(resource string, sec *section) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sec.users--
	if sec.users == 0 && sec.newest == 0 {
		delete(m.resources, resource)
	}
}
