// Package certmagiclock gives a storage of github.com/caddyserver/certmagic the locks of holdfast, on any store. So the
// replicas of a server get or renew each certificate once. The storage keeps the certificates.
//
//	certmagic.Default.Storage = certmagiclock.New(&certmagic.FileStorage{Path: path}, locker)
package certmagiclock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/holdfast-go/holdfast"
)

// Prefix begins the names of the locks.
const Prefix = "certmagic/"

// Storage is a certmagic.Storage with the locks of holdfast.
type Storage struct {
	certmagic.Storage
	locker  *holdfast.Locker
	options []holdfast.LockOption

	mu   sync.Mutex
	held map[string]*holdfast.Lock
}

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// New returns a Storage. The options are those of its locks; Shared and Limit have no use.
func New(s certmagic.Storage, locker *holdfast.Locker, o ...holdfast.LockOption) *Storage {
	return &Storage{Storage: s, locker: locker, options: o, held: map[string]*holdfast.Lock{}}
}

// Lock waits for a lock. The end of ctx ends the wait, and not the lock.
func (s *Storage) Lock(ctx context.Context, name string) error {
	o := append([]holdfast.LockOption{holdfast.WaitContext(ctx)}, s.options...)
	return s.keep(s.locker.Lock(context.WithoutCancel(ctx), Prefix+name, o...))
}

// TryLock acquires a lock if it is free.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	err := s.keep(s.locker.TryLock(context.WithoutCancel(ctx), Prefix+name, s.options...))
	if errors.Is(err, holdfast.ErrBusy) {
		return false, nil
	}
	return err == nil, err
}

func (s *Storage) keep(k *holdfast.Lock, err error) error {
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[k.Name()] = k
	return nil
}

// Unlock releases a lock. If it was lost meanwhile, the error is a *[holdfast.LostError].
func (s *Storage) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	k := s.held[Prefix+name]
	delete(s.held, Prefix+name)
	s.mu.Unlock()
	if k == nil {
		return fmt.Errorf("certmagiclock: Unlock(%q) without Lock", name)
	}
	return k.Unlock()
}

// RenewLockLease returns the *[holdfast.LostError] of a lock that was lost. The Locker renews the others by itself.
func (s *Storage) RenewLockLease(_ context.Context, name string, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.held[Prefix+name]
	switch {
	case k == nil:
		return fmt.Errorf("certmagiclock: RenewLockLease(%q) without Lock", name)
	case k.Context().Err() != nil:
		return context.Cause(k.Context())
	}
	return nil
}
