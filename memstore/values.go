package memstore

import (
	"context"
	"crypto/rand"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

var _ driver.Values = (*store)(nil)

type value struct {
	data    []byte
	version string
}

// Get implements driver.Values.
func (s *store) Get(ctx context.Context, key string) ([]byte, string, error) {
	if err := s.readyForValue(ctx, key, nil); err != nil {
		return nil, "", err
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	v := s.space.values[s.key(key)]
	return slices.Clone(v.data), v.version, nil
}

// Put implements driver.Values.
func (s *store) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	if err := s.readyForValue(ctx, key, data); err != nil {
		return "", err
	}
	s.space.mu.Lock()
	defer s.space.mu.Unlock()
	if s.space.values[s.key(key)].version != version { // mutation: memory-version
		return "", driver.Conflict(key)
	}
	if s.space.values == nil {
		s.space.values = map[string]value{}
	}
	v := value{slices.Clone(data), rand.Text()} // mutation: memory-value
	s.space.values[s.key(key)] = v
	return v.version, nil
}

func (s *store) readyForValue(ctx context.Context, key string, data []byte) error {
	if err := driver.CheckValue(key, data); err != nil {
		return err
	}
	if err := s.checkOpen(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}
	}
	return nil
}
