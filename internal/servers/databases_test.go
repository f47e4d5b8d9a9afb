//go:build linux || darwin

package servers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// database is the interface of all databases in this package.
type database interface {
	PID() int
	Pause() error
	Cont() error
	Kill()
	Restart(context.Context) error
	Close() error
}

// TestDatabasesServeAfterKill requires that each database serves, serves again after a SIGKILL, and
// leaves no files.
func TestDatabasesServeAfterKill(t *testing.T) {
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
			must.Succeed(t, err)
			defer d.Close()
			first := d.PID()
			must.Report(t, d.Pause())
			must.Report(t, d.Cont())
			d.Kill()
			must.Succeed(t, d.Restart(t.Context()))
			if d.PID() == first || d.PID() == 0 {
				t.Errorf("pid %d after %d", d.PID(), first)
			}
		})
	}
}

func TestPgBouncerStarts(t *testing.T) {
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
	must.Report(t, err)
}

// TestPostgresRestartsBesideASurvivor restarts a killed server while one of its processes
// still runs. That process keeps the shared memory that the server needs to start again.
func TestPostgresRestartsBesideASurvivor(t *testing.T) {
	p, err := servers.StartPostgres(t.Context(), "fsync=off")
	if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
		t.Skip(err)
	}
	must.Succeed(t, err)
	defer p.Close()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.PID(), p.PID()))
	if err != nil {
		t.Skip(err)
	}
	var child int
	if _, err := fmt.Sscan(string(children), &child); err != nil {
		t.Fatal(err)
	}
	for _, kill := range []struct {
		pid    int
		signal syscall.Signal
	}{{child, syscall.SIGSTOP}, {p.PID(), syscall.SIGKILL}} {
		must.Succeed(t, syscall.Kill(kill.pid, kill.signal))
	}
	for p.PID() != 0 && syscall.Kill(p.PID(), 0) == nil {
		time.Sleep(time.Millisecond)
	}
	if err := p.Restart(t.Context()); err != nil {
		_ = syscall.Kill(child, syscall.SIGKILL)
		t.Fatal(err)
	}
}
