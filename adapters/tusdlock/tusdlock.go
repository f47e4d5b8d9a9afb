// Package tusdlock locks the uploads of github.com/tus/tusd/v2 between servers, on any store. Its own memory locker and
// file locker reach one process and one machine.
//
//	tusdlock.New(locker).UseIn(composer)
//
// When a client returns after a broken connection, the server that still has the old request ends it.
// [holdfast.Lock.Wanted] notifies that server, on most stores at once, and on all within a second.
// Stores that do not show waiters make the new request wait until the old one has ended.
package tusdlock

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast"
	"github.com/tus/tusd/v2/pkg/handler"
)

// Prefix begins the names of the locks. The ID of the upload follows.
const Prefix = "tus/"

// Locker is a handler.Locker of tusd.
type Locker struct {
	locker  *holdfast.Locker
	options []holdfast.LockOption
}

var _ handler.Locker = (*Locker)(nil)

// New returns a Locker. The options are those of its locks; Shared and Limit have no use. How long a request waits for
// the lock is AcquireLockTimeout in the configuration of tusd.
func New(locker *holdfast.Locker, o ...holdfast.LockOption) *Locker { return &Locker{locker, o} }

// UseIn makes the handlers of a composer use the locks.
func (l *Locker) UseIn(c *handler.StoreComposer) { c.UseLocker(l) }

// NewLock returns the lock of an upload.
func (l *Locker) NewLock(id string) (handler.Lock, error) { return &lock{locker: l, id: id}, nil }

type lock struct {
	locker *Locker
	id     string
	held   *holdfast.Lock
}

// Lock waits for the lock until ctx ends. It calls requestUnlock when another request waits for the upload, or when the
// lock is lost.
func (k *lock) Lock(ctx context.Context, requestUnlock func()) error {
	o := append([]holdfast.LockOption{holdfast.WaitContext(ctx)}, k.locker.options...)
	held, err := k.locker.locker.Lock(context.WithoutCancel(ctx), Prefix+k.id, o...)
	if err != nil {
		if ctx.Err() != nil {
			return handler.ErrLockTimeout
		}
		return err
	}
	k.held = held
	go func() {
		select {
		case <-held.Wanted():
			requestUnlock()
		case <-held.Context().Done():
			if !errors.Is(context.Cause(held.Context()), holdfast.ErrReleased) {
				requestUnlock()
			}
		}
	}()
	return nil
}

// Unlock releases the lock. If it was lost meanwhile, the error is a *holdfast.LostError.
func (k *lock) Unlock() error { return k.held.Unlock() }
