//go:build linux || darwin

package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// PgBouncer is a connection pooler in front of a Postgres.
type PgBouncer struct{ hosted }

// StartPgBouncer starts a PgBouncer for an upstream HOST:PORT, with a pool mode ("session",
// "transaction") and a pool size. If PgBouncer is not installed, the error wraps
// ErrNotInstalled.
func StartPgBouncer(ctx context.Context, upstream, mode string, size int) (*PgBouncer, error) {
	daemon, err := find("pgbouncer", "pgbouncer", "/usr/sbin/pgbouncer")
	if err != nil {
		return nil, err
	}
	host, upPort, err := net.SplitHostPort(upstream)
	if err != nil {
		return nil, err
	}
	return inHome(ctx, "postgres", func(h *home, port int) (*PgBouncer, error) {
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
		b := &PgBouncer{h.host(port)}
		return b, b.start(ctx, []string{daemon, file}, starts(b.Address, "postgres", "postgres"))
	})
}

// URL returns a URL for pgx.
func (b *PgBouncer) URL(database, params string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable%s", b.Address, database, params)
}
