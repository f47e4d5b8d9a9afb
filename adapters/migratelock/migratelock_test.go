package migratelock_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/database/sqlite"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/adapters/migratelock"
	"github.com/holdfast-go/holdfast/internal/adaptertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// meeting is a driver that calls run before a migration.
type meeting struct {
	database.Driver
	run func()
}

func (m *meeting) Run(r io.Reader) error {
	m.run()
	return m.Driver.Run(r)
}

func driver(t *testing.T, file string, run func()) database.Driver {
	d, err := (&sqlite.Sqlite{}).Open("sqlite://" + file + "?x-no-tx-wrap=true")
	must.Succeed(t, err)
	return &meeting{d, run}
}

func replica(t *testing.T, d database.Driver) *migrate.Migrate {
	s, err := iofs.New(fstest.MapFS{"1_a.up.sql": {Data: []byte("CREATE TABLE IF NOT EXISTS a (x int)")}}, ".")
	must.Succeed(t, err)
	m, err := migrate.NewWithInstance("iofs", s, "db", d)
	must.Succeed(t, err)
	t.Cleanup(func() { _, _ = m.Close() })
	return m
}

// TestReplicaWaitsForMigration: a second replica starts while the first one migrates. Without the lock it fails,
// because it finds the database dirty. With it, it waits, and finds nothing to do.
func TestReplicaWaitsForMigration(t *testing.T) {
	for name, locked := range map[string]bool{"without the lock": false, "with the lock": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := memstore.New()
			file := filepath.Join(t.TempDir(), "db")
			start := func(run func()) *migrate.Migrate {
				d := driver(t, file, run)
				if locked {
					d = migratelock.New(d, adaptertest.Open(t, s.Client()), "migrations")
				}
				return replica(t, d)
			}
			result := make(chan error, 1)
			second := start(func() { t.Error("the migration runs twice") })
			first := start(func() {
				go func() { result <- second.Up() }()
				if !locked {
					result <- <-result // its end
					return
				}
				adaptertest.AwaitWaiter(ctx, adaptertest.Open(t, s.Client()), "migrations")
			})
			if err := first.Up(); err != nil {
				t.Error(err)
			}
			err := <-result
			if locked && !errors.Is(err, migrate.ErrNoChange) {
				t.Errorf("the second replica: %v", err)
			}
			if _, dirty := errors.AsType[migrate.ErrDirty](err); !locked && !dirty {
				t.Errorf("the second replica: %v", err)
			}
		})
	}
}

// TestLostLockStopsTheMigrations: after a loss no migration is run and no version is written, and migrate returns
// the loss.
func TestLostLockStopsTheMigrations(t *testing.T) {
	s := memstore.New()
	other := adaptertest.Open(t, s)
	d := driver(t, filepath.Join(t.TempDir(), "db"), func() {
		adaptertest.Break(t, other, "migrations")
	})
	m := replica(t, migratelock.New(d, adaptertest.Open(t, s.Client()), "migrations"))
	if err := m.Up(); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("Up: %v", err)
	}
	if _, dirty, err := m.Version(); err != nil || !dirty {
		t.Errorf("dirty: %t, %v", dirty, err)
	}
}

// TestHeldLockIsReported: the error of a wait that ends matches that of migrate and that of holdfast, and the other
// driver is not left locked.
func TestHeldLockIsReported(t *testing.T) {
	s := memstore.New()
	k, err := adaptertest.Open(t, s).Lock(t.Context(), "migrations")
	must.Succeed(t, err)
	d := driver(t, filepath.Join(t.TempDir(), "db"), func() {})
	m := replica(t, migratelock.New(d, adaptertest.Open(t, s.Client()), "migrations", holdfast.Wait(time.Millisecond)))
	if err := m.Up(); !errors.Is(err, database.ErrLocked) || !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("Up: %v", err)
	}
	if err := k.Unlock(); err != nil {
		t.Error(err)
	}
	m = replica(t, migratelock.New(d, adaptertest.Open(t, s.Client()), "migrations"))
	if err := m.Up(); err != nil {
		t.Errorf("Up after the release: %v", err)
	}
}
