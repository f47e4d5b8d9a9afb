//go:build linux || darwin

package servers_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/check/servers"
)

// database is what the databases have in common.
type database interface {
	PID() int
	Pause() error
	Cont() error
	Kill()
	Restart(context.Context) error
	Close() error
}

// TestDatabases: each serves, again after a SIGKILL, and leaves nothing.
func TestDatabases(t *testing.T) {
	for name, start := range map[string]func() (database, error){
		"MariaDB":  func() (database, error) { return servers.StartMariaDB(t.Context()) },
		"Postgres": func() (database, error) { return servers.StartPostgres(t.Context(), "fsync=off") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := start()
			if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			first := d.PID()
			if err := d.Pause(); err != nil {
				t.Error(err)
			}
			if err := d.Cont(); err != nil {
				t.Error(err)
			}
			d.Kill()
			if err := d.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			if d.PID() == first || d.PID() == 0 {
				t.Errorf("pid %d after %d", d.PID(), first)
			}
		})
	}
}

func TestPgBouncer(t *testing.T) {
	p, err := servers.StartPostgres(t.Context(), "fsync=off")
	if err == nil {
		defer p.Close()
		var b *servers.PgBouncer
		if b, err = servers.StartPgBouncer(t.Context(), p.Address, "transaction", 4); err == nil {
			err = b.Close()
		}
	}
	if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Error(err)
	}
}
