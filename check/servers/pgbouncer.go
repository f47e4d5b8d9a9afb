//go:build linux || darwin

package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// PgBouncer is a pooler before a Postgres.
type PgBouncer struct {
	*Server
	// Address is where it listens, HOST:PORT.
	Address string
	home    *home
}

// StartPgBouncer starts a PgBouncer before an address, HOST:PORT, with a pool mode
// ("session", "transaction") and the size of its pool. The error wraps
// ErrNotInstalled where there is none.
func StartPgBouncer(ctx context.Context, upstream, mode string, size int) (_ *PgBouncer, err error) {
	daemon, err := Find("pgbouncer", "/usr/sbin/pgbouncer")
	if err != nil {
		return nil, fmt.Errorf("%w (Debian: apt-get install pgbouncer)", err)
	}
	h, err := newHome("postgres", "nobody")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.remove()
		}
	}()
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	host, upPort, err := splitAddress(upstream)
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = %d
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits
`, host, upPort, port, mode, size)
	file := filepath.Join(h.dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	b := &PgBouncer{Address: fmt.Sprintf("127.0.0.1:%d", port), home: h}
	b.Server, err = Start(ctx, Config{
		Name: "pgbouncer", Command: []string{daemon, file}, Env: h.env(), Credential: h.cred, Dir: h.dir, Ready: starts(b.Address, "postgres", "postgres"),
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// URL is what pgx opens.
func (b *PgBouncer) URL(database, params string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable%s", b.Address, database, params)
}

// Close ends the pooler and removes its directory.
func (b *PgBouncer) Close() error { return end(b.Server, b.home) }
