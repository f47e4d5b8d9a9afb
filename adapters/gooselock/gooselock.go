// Package gooselock runs the migrations of github.com/pressly/goose/v3 on one replica at a time, on any store and for
// any database. Goose itself locks on PostgreSQL and MySQL only.
//
//	provider, err := goose.NewProvider(dialect, db, migrations, goose.WithLocker(gooselock.New(locker, "migrations")))
//
// Goose does not learn that the lock was lost while a migration runs: its call returns the *[holdfast.LostError]
// afterwards. [holdfast.Locker.Do] is stronger and needs no adapter, because it ends the context of the migrations:
//
//	err := locker.Do(ctx, "migrations", func(ctx context.Context) error {
//		_, err := provider.Up(ctx)
//		return err
//	})
package gooselock

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/pressly/goose/v3/lock"
)

// Locker is a lock.Locker of goose.
type Locker struct {
	locker  *holdfast.Locker
	name    string
	options []holdfast.LockOption

	mu   sync.Mutex
	held *holdfast.Lock
}

var _ lock.Locker = (*Locker)(nil)

// New returns a Locker whose lock has that name: choose one for each database. Without the option Wait it waits until
// the context of the migrations ends. Shared and Limit have no use.
func New(locker *holdfast.Locker, name string, o ...holdfast.LockOption) *Locker {
	return &Locker{locker: locker, name: name, options: o}
}

// Lock waits for the lock. The end of ctx ends the wait, and not the lock.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	o := append([]holdfast.LockOption{holdfast.WaitContext(ctx)}, l.options...)
	k, err := l.locker.Lock(context.WithoutCancel(ctx), l.name, o...)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = k
	return nil
}

// Unlock releases the lock. If it was lost meanwhile, the error is a *[holdfast.LostError].
func (l *Locker) Unlock(context.Context, *sql.DB) error {
	l.mu.Lock()
	k := l.held
	l.held = nil
	l.mu.Unlock()
	if k == nil {
		return errors.New("gooselock: Unlock without Lock")
	}
	return k.Unlock()
}
