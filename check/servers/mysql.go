//go:build linux || darwin

package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MySQL is a MySQL or MariaDB server for tests. It has the user root without a password,
// and an empty schema "test".
type MySQL struct {
	*Server
	// Address is HOST:PORT.
	Address string
	// MariaDB reports whether the server is a MariaDB.
	MariaDB bool
	home    *home
}

// StartMySQL starts the mysqld or mariadbd in HOLDFAST_SERVERS, or else this machine's
// mariadbd. The server runs on a free port and in a new directory. The flags are further
// flags that both servers accept. If no server is installed, the error wraps
// ErrNotInstalled.
func StartMySQL(ctx context.Context, flags ...string) (*MySQL, error) {
	for _, dir := range filepath.SplitList(os.Getenv(Dirs)) {
		if executable(filepath.Join(dir, "mariadbd")) {
			break
		}
		if daemon := filepath.Join(dir, "mysqld"); executable(daemon) {
			return startMySQL(ctx, daemon, false, flags)
		}
	}
	return StartMariaDB(ctx, flags...)
}

// StartMariaDB starts a MariaDB server, for tests that need one. See StartMySQL.
func StartMariaDB(ctx context.Context, flags ...string) (*MySQL, error) {
	daemon, err := Find("mariadbd", "/usr/sbin/mariadbd", "/usr/libexec/mariadbd")
	if err != nil {
		return nil, fmt.Errorf("%w (Debian: apt-get install mariadb-server-core)", err)
	}
	return startMySQL(ctx, daemon, true, flags)
}

func startMySQL(ctx context.Context, daemon string, mariadb bool, flags []string) (*MySQL, error) {
	daemon, err := filepath.EvalSymlinks(daemon)
	if err != nil {
		return nil, err
	}
	return inHome("mysql", func(h *home, port int) (*MySQL, error) {
		data := filepath.Join(h.dir, "data")
		// Each server has a temporary directory of its own. Servers that start at the same
		// time in a shared one would remove each other's temporary tables.
		tmp := filepath.Join(h.dir, "tmp")
		if err := h.run(h.command("mkdir", tmp)); err != nil {
			return nil, err
		}
		base := filepath.Dir(filepath.Dir(daemon)) // the directory of programs, messages and plugins
		common := []string{"--no-defaults", "--basedir=" + base, "--datadir=" + data, "--tmpdir=" + tmp, "--innodb-buffer-pool-size=32M"}
		m := &MySQL{Address: fmt.Sprintf("127.0.0.1:%d", port), MariaDB: mariadb, home: h}
		command := append([]string{daemon}, common...)
		command = append(command, "--bind-address=127.0.0.1", "--skip-name-resolve", "--port="+strconv.Itoa(port),
			"--socket="+filepath.Join(h.dir, "s"), "--pid-file="+filepath.Join(h.dir, "pid"), "--max-connections=1000")
		var err error
		if mariadb {
			err = h.initMariaDB(daemon, base, data, common)
			command = append(command, "--innodb-log-file-size=16M")
		} else {
			var users string
			users, err = h.initMySQL(daemon, common)
			command = append(command, "--init-file="+users, "--mysqlx=OFF", "--secure-file-priv=NULL", "--innodb-redo-log-capacity=32M")
		}
		if err != nil {
			return nil, err
		}
		m.Server, err = Start(ctx, Config{
			Name: filepath.Base(daemon), Command: append(command, flags...),
			Env: h.env(), Credential: h.cred, Dir: h.dir, Ready: greets(m.Address),
		})
		if err != nil {
			return nil, err
		}
		return m, nil
	})
}

// initMariaDB does the same as mariadb-install-db, which needs tools of the client package.
func (h *home) initMariaDB(daemon, base, data string, common []string) error {
	boot := bytes.NewBufferString("USE mysql;\n")
	for _, name := range []string{"system_tables", "performance_tables", "system_tables_data"} {
		found, _ := filepath.Glob(filepath.Join(base, "share/m*/m*_"+name+".sql"))
		if len(found) == 0 {
			return fmt.Errorf("servers: the %s.sql of mariadbd is %w (Debian: apt-get install mariadb-server-core)", name, ErrNotInstalled)
		}
		script, err := os.ReadFile(found[0])
		if err != nil {
			return err
		}
		boot.Write(script)
	}
	boot.WriteString("\nCREATE DATABASE IF NOT EXISTS test;\n" +
		"REPLACE INTO global_priv VALUES ('127.0.0.1', 'root', '{\"access\":18446744073709551615}');\n")
	if err := h.run(h.command("mkdir", "-p", filepath.Join(data, "mysql"))); err != nil {
		return err
	}
	cmd := h.command(daemon, append(common, "--bootstrap", "--skip-grant-tables")...)
	cmd.Stdin = boot
	return h.run(cmd)
}

// initMySQL creates the data directory. It returns the file with the statements that the server runs at each start.
func (h *home) initMySQL(daemon string, common []string) (file string, err error) {
	if err := h.run(h.command(daemon, append(common, "--initialize-insecure")...)); err != nil {
		return "", err
	}
	file = filepath.Join(h.dir, "init.sql")
	return file, os.WriteFile(file, []byte(strings.Join([]string{
		"CREATE USER IF NOT EXISTS root@'127.0.0.1' IDENTIFIED BY '';",
		"GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;",
		"CREATE DATABASE IF NOT EXISTS test;",
	}, "\n")+"\n"), 0o644)
}

// greets returns a Ready for servers that send the first message of a connection.
func greets(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := dial(ctx, address)
		if err != nil {
			return err
		}
		defer c.Close()
		head := make([]byte, 5)
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		if head[4] == 0xff {
			return errors.New("the server's greeting is an error")
		}
		return nil
	}
}

// DSN returns a data source name for go-sql-driver/mysql, with a schema of the server and
// parameters.
func (m *MySQL) DSN(schema, params string) string {
	return fmt.Sprintf("root@tcp(%s)/%s%s", m.Address, schema, params)
}

// Close ends the server and removes its directory.
func (m *MySQL) Close() error { return end(m.Server, m.home) }

func end(s *Server, h *home) error {
	s.Kill() // a killed server loses only data that no test needs
	h.remove()
	return nil
}
