// Package migratelock runs the migrations of github.com/golang-migrate/migrate/v4 on one replica at a time, on any
// store. Several database drivers of that library lock inside the process only, for example those of SQLite.
//
//	driver, err := sqlite.WithInstance(db, &sqlite.Config{})
//	...
//	m, err := migrate.NewWithInstance("iofs", source, "app", migratelock.New(driver, locker, "migrations"))
package migratelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/holdfast-go/holdfast"
)

// DefaultWait is how long Lock waits without the option Wait. It is less than the default LockTimeout of migrate, 15 s:
// migrate does not release a lock that it gets after that time. Choose Wait less than LockTimeout.
const DefaultWait = 14 * time.Second

// New returns a driver that holds the lock of that name while migrate has the database locked. Choose a name for each
// database. It then locks the other driver as well, so replicas without holdfast are excluded as before. Shared
// and Limit have no use.
func New(d database.Driver, locker *holdfast.Locker, name string, o ...holdfast.LockOption) database.Driver {
	return &driver{Driver: d, locker: locker, name: name, options: append([]holdfast.LockOption{holdfast.Wait(DefaultWait)}, o...)}
}

type driver struct {
	database.Driver
	locker  *holdfast.Locker
	name    string
	options []holdfast.LockOption

	mu   sync.Mutex
	held *holdfast.Lock
}

// Open opens the other driver, with the same lock.
func (d *driver) Open(url string) (database.Driver, error) {
	inner, err := d.Driver.Open(url)
	if err != nil {
		return nil, err
	}
	return &driver{Driver: inner, locker: d.locker, name: d.name, options: d.options}, nil
}

// Lock waits for the lock. If it is held for longer, the error matches database.ErrLocked and holdfast.ErrBusy.
func (d *driver) Lock() error {
	k, err := d.locker.Lock(context.Background(), d.name, d.options...)
	if errors.Is(err, holdfast.ErrBusy) {
		return fmt.Errorf("%w: %w", database.ErrLocked, err)
	}
	if err != nil {
		return err
	}
	if err := d.Driver.Lock(); err != nil {
		return errors.Join(err, k.Unlock())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = k
	return nil
}

// Unlock releases both locks. If ours was lost meanwhile, the error is a *holdfast.LostError.
func (d *driver) Unlock() error {
	d.mu.Lock()
	k := d.held
	d.held = nil
	d.mu.Unlock()
	if k == nil {
		return database.ErrNotLocked
	}
	return errors.Join(d.Driver.Unlock(), k.Unlock())
}

// lost returns the cause if the lock was held and has ended.
func (d *driver) lost() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil || d.held.Context().Err() == nil {
		return nil
	}
	return context.Cause(d.held.Context())
}

// Run runs a migration, unless the lock is lost.
func (d *driver) Run(migration io.Reader) error {
	if err := d.lost(); err != nil {
		return err
	}
	return d.Driver.Run(migration)
}

// SetVersion writes the version, unless the lock is lost.
func (d *driver) SetVersion(version int, dirty bool) error {
	if err := d.lost(); err != nil {
		return err
	}
	return d.Driver.SetVersion(version, dirty)
}

// Drop deletes everything, unless the lock is lost.
func (d *driver) Drop() error {
	if err := d.lost(); err != nil {
		return err
	}
	return d.Driver.Drop()
}
