//go:build linux || darwin

package servers

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Postgres is a PostgreSQL server for tests. Its superuser is postgres, without a password.
type Postgres struct{ hosted }

// StartPostgres starts a postgres on a free port and in a new directory. The settings have
// the form NAME=VALUE. If PostgreSQL is not installed, the error wraps ErrNotInstalled.
func StartPostgres(ctx context.Context, settings ...string) (*Postgres, error) {
	return startPostgres(ctx, settings, "initdb", func(h *home) []string {
		return []string{"-D", h.data(), "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"}
	})
}

// StartPostgresReplica starts a hot standby that streams from a primary.
func StartPostgresReplica(ctx context.Context, primary *Postgres, settings ...string) (*Postgres, error) {
	return startPostgres(ctx, settings, "pg_basebackup", func(h *home) []string {
		return []string{"-d", primary.replication(), "-D", h.data(), "-R", "--checkpoint=fast", "--no-sync"}
	})
}

// replication returns the connection settings for a replica.
func (p *Postgres) replication() string {
	host, port, _ := net.SplitHostPort(p.Address)
	return fmt.Sprintf("host=%s port=%s user=postgres sslmode=disable", host, port)
}

// Demote shuts the server down, which ends its sessions and waits until its replicas have
// all its data. Then it calls promote, and restarts the server as a replica of to.
func (p *Postgres) Demote(ctx context.Context, promote func(context.Context) error, to *Postgres) error {
	p.Server.mu.Lock()
	err := p.cmd.Process.Signal(syscall.SIGINT)
	done := p.done
	p.Server.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := promote(ctx); err != nil {
		return err
	}
	settings := filepath.Join(p.home.data(), "postgresql.auto.conf")
	for file, text := range map[string]string{settings: "primary_conninfo = '" + to.replication() + "'\n", filepath.Join(p.home.data(), "standby.signal"): ""} {
		if err := p.home.write(file, text); err != nil {
			return err
		}
	}
	return p.Server.Restart(ctx)
}

func (h *home) data() string { return filepath.Join(h.dir, "data") }

// write writes a file that the server's user owns.
func (h *home) write(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil || h.cred == nil {
		return err
	}
	return os.Chown(file, int(h.cred.Uid), int(h.cred.Gid))
}

// startPostgres starts a server on the data that a program makes, with arguments for its home.
func startPostgres(
	ctx context.Context, settings []string, program string, arguments func(*home) []string,
) (*Postgres, error) {
	paths := map[string]string{"postgres": "", program: ""}
	for name := range paths {
		var err error
		if paths[name], err = find(name, "postgresql", "/usr/lib/postgresql/*/bin/"+name); err != nil {
			return nil, err
		}
	}
	return inHome(ctx, "postgres", func(h *home, port int) (*Postgres, error) {
		if err := h.run(h.command(paths[program], arguments(h)...)); err != nil {
			return nil, err
		}
		p := &Postgres{h.host(port)}
		command := []string{paths["postgres"], "-D", h.data(), "-p", strconv.Itoa(port), "-k", h.dir,
			"-c", "listen_addresses=127.0.0.1", "-c", "max_connections=300"}
		for _, s := range settings {
			command = append(command, "-c", s)
		}
		return p, p.start(ctx, command, starts(p.Address, "postgres", "postgres"))
	})
}

// starts returns a Ready for servers with PostgreSQL's protocol. It returns nil when a
// client can start a session.
func starts(address, user, database string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := dial(ctx, address)
		if err != nil {
			return err
		}
		defer c.Close()
		body := "\x00\x03\x00\x00user\x00" + user + "\x00database\x00" + database + "\x00\x00"
		msg := append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
		if _, err := c.Write(msg); err != nil {
			return err
		}
		kind := make([]byte, 1)
		if _, err := io.ReadFull(c, kind); err != nil {
			return err
		}
		if kind[0] != 'R' {
			return fmt.Errorf("the server answers a startup with %q", kind)
		}
		return nil
	}
}

// URL returns a URL for pgx, with a database of the server and parameters.
func (p *Postgres) URL(database, params string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable%s", p.Address, database, params)
}

// Restart kills the server and starts it again on its data. A session that started during
// the kill keeps the shared memory that the server needs, so Restart kills such sessions,
// too.
func (p *Postgres) Restart(ctx context.Context) error {
	p.Kill()
	return Within(ctx, 10*time.Second, func() error {
		for _, pid := range workingIn(p.home.data()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return p.Server.Restart(ctx)
	})
}

// workingIn returns the processes whose working directory is dir, on systems with /proc.
// All processes of a server work in its data directory.
func workingIn(dir string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, cwd := range all {
		if at, err := os.Readlink(cwd); err != nil || at != dir {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(cwd))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Kill ends the server and its sessions at once. A session that survives would keep the
// shared memory, and the server could not start again.
func (p *Postgres) Kill() {
	if pid := p.PID(); pid > 0 {
		_ = p.all(syscall.SIGKILL)
	}
	p.Server.Kill()
}

// Pause stops the server and all its sessions until Cont.
func (p *Postgres) Pause() error { return p.all(syscall.SIGSTOP) }

// Cont ends a Pause.
func (p *Postgres) Cont() error { return p.all(syscall.SIGCONT) }

func (p *Postgres) all(s syscall.Signal) error {
	children, err := family(p.PID())
	if err != nil {
		return err
	}
	for _, pid := range children {
		_ = syscall.Kill(pid, s) // the process may have ended meanwhile
	}
	return nil
}

// Admin returns the driver of database/sql and the data source name for the administrator. When a statement returns,
// the server has its changes on disk and sends them to its replicas.
func (p *Postgres) Admin() (driver, dsn string) {
	return "pgx", p.URL("postgres", "&synchronous_commit=on")
}

// Close ends the server and removes its directory.
func (p *Postgres) Close() error {
	p.Kill()
	return p.hosted.Close()
}
