package gooselock_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/adapters/gooselock"
	"github.com/holdfast-go/holdfast/internal/adaptertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"
)

// replica returns the provider of one replica, with one migration.
func replica(t *testing.T, file string, up func(context.Context, *sql.DB) error, o ...goose.ProviderOption) *goose.Provider {
	db, err := sql.Open("sqlite", file+"?_pragma=busy_timeout(60000)")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = db.Close() })
	m := goose.NewGoMigration(1, &goose.GoFunc{RunDB: up}, nil)
	p, err := goose.NewProvider(goose.DialectSQLite3, db, nil, append(o, goose.WithGoMigrations(m))...)
	must.Succeed(t, err)
	return p
}

// TestMigrationRunsOnce: two replicas migrate at the same time. Without the lock both run the migration. With it the
// second replica waits until the first one has ended, and finds nothing to do.
func TestMigrationRunsOnce(t *testing.T) {
	for name, locked := range map[string]bool{"without the lock": false, "with the lock": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := memstore.New()
			watcher := adaptertest.Open(t, s)
			file := filepath.Join(t.TempDir(), "db")
			var runs atomic.Int32
			both := make(chan struct{}) // both replicas run the migration
			up := func(ctx context.Context, _ *sql.DB) error {
				if runs.Add(1) == 2 {
					close(both)
				}
				waits := make(chan struct{}) // the other replica waits for the lock
				go func() {
					adaptertest.AwaitWaiter(ctx, watcher, "migrations")
					close(waits)
				}()
				select {
				case <-both:
				case <-waits:
				case <-ctx.Done():
				}
				return nil
			}
			// The table of versions is there, as before a second migration.
			if _, err := replica(t, file, up).GetDBVersion(ctx); err != nil {
				t.Fatal(err)
			}
			errs := make(chan error)
			for range 2 {
				var o []goose.ProviderOption
				if locked {
					o = append(o, goose.WithLocker(gooselock.New(adaptertest.Open(t, s.Client()), "migrations")))
				}
				p := replica(t, file, up, o...)
				go func() {
					_, err := p.Up(ctx)
					errs <- err
				}()
			}
			err := errors.Join(<-errs, <-errs)
			if want := map[bool]int32{false: 2, true: 1}[locked]; runs.Load() != want {
				t.Errorf("the migration ran %d times, want %d: %v", runs.Load(), want, err)
			}
			if locked && err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLossIsReported: the call of goose returns the loss of the lock.
func TestLossIsReported(t *testing.T) {
	s := memstore.New()
	other := adaptertest.Open(t, s)
	p := replica(t, filepath.Join(t.TempDir(), "db"), func(ctx context.Context, _ *sql.DB) error {
		adaptertest.Break(t, other, "migrations")
		return nil
	}, goose.WithLocker(gooselock.New(adaptertest.Open(t, s.Client()), "migrations")))
	if _, err := p.Up(t.Context()); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("Up: %v", err)
	}
}

// TestUnlockWithoutLock returns an error.
func TestUnlockWithoutLock(t *testing.T) {
	if err := gooselock.New(adaptertest.Open(t, memstore.New()), "a").Unlock(t.Context(), nil); err == nil {
		t.Error("no error")
	}
}
