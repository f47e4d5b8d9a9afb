//go:build linux || darwin

package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// MariaDB is a mariadbd of one's own: user root without a password, an empty
// schema of the name "test", and nothing else.
type MariaDB struct {
	*Server
	// Address is where it listens, HOST:PORT.
	Address string
	home    *home
}

// StartMariaDB starts a mariadbd on a free port and in a directory of its own,
// with further flags as given. The error wraps ErrNotInstalled where there is no
// mariadbd.
func StartMariaDB(ctx context.Context, flags ...string) (_ *MariaDB, err error) {
	daemon, err := Find("mariadbd", "/usr/sbin/mariadbd", "/usr/libexec/mariadbd")
	if err != nil {
		return nil, fmt.Errorf("%w (Debian: apt-get install mariadb-server-core)", err)
	}
	// As mariadb-install-db does, which needs tools that come with the clients.
	boot := bytes.NewBufferString("USE mysql;\n")
	for _, name := range []string{"system_tables", "performance_tables", "system_tables_data"} {
		found, _ := filepath.Glob("/usr/share/m*/m*_" + name + ".sql")
		if len(found) == 0 {
			return nil, fmt.Errorf("the %s.sql of mariadbd is %w (Debian: apt-get install mariadb-server-core)", name, ErrNotInstalled)
		}
		script, err := os.ReadFile(found[0])
		if err != nil {
			return nil, err
		}
		boot.Write(script)
	}
	boot.WriteString("\nCREATE DATABASE IF NOT EXISTS test;\n" +
		"REPLACE INTO global_priv VALUES ('127.0.0.1', 'root', '{\"access\":18446744073709551615}');\n")
	h, err := newHome("mysql", "nobody")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.remove()
		}
	}()
	data := filepath.Join(h.dir, "data")
	// Servers that start at the same time would remove each other's temporary tables
	// from a directory that they shared.
	tmp := filepath.Join(h.dir, "tmp")
	if err := h.run(h.command("mkdir", "-p", filepath.Join(data, "mysql"), tmp)); err != nil {
		return nil, err
	}
	cmd := h.command(daemon, "--no-defaults", "--bootstrap", "--skip-grant-tables", "--datadir="+data, "--tmpdir="+tmp)
	cmd.Stdin = boot
	if err := h.run(cmd); err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	m := &MariaDB{Address: fmt.Sprintf("127.0.0.1:%d", port), home: h}
	m.Server, err = Start(ctx, Config{
		Name: "mariadbd",
		Command: append([]string{daemon, "--no-defaults", "--datadir=" + data, "--tmpdir=" + tmp, "--bind-address=127.0.0.1", "--skip-name-resolve",
			"--port=" + strconv.Itoa(port), "--socket=" + filepath.Join(h.dir, "s"), "--pid-file=" + filepath.Join(h.dir, "pid"),
			"--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--max-connections=1000"}, flags...),
		Env: h.env(), Credential: h.cred, Dir: h.dir, Ready: greets(m.Address),
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// greets is a Ready for servers that speak first.
func greets(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer c.Close()
		if d, ok := ctx.Deadline(); ok {
			if err := c.SetReadDeadline(d); err != nil {
				return err
			}
		}
		head := make([]byte, 5)
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		if head[4] == 0xff {
			return errors.New("it greets with an error")
		}
		return nil
	}
}

// DSN is what go-sql-driver/mysql opens: a schema of the server, and parameters.
func (m *MariaDB) DSN(schema, params string) string {
	return fmt.Sprintf("root@tcp(%s)/%s%s", m.Address, schema, params)
}

// Close ends the server and removes its directory.
func (m *MariaDB) Close() error { return end(m.Server, m.home) }

func end(s *Server, h *home) error {
	s.Kill() // nothing of it is needed any more
	h.remove()
	return nil
}
