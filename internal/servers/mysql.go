//go:build linux || darwin

package servers

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// MySQL is a MySQL or MariaDB server for tests. It has the user root without a password,
// and an empty schema "test".
type MySQL struct {
	hosted
	// MariaDB reports whether the server is a MariaDB.
	MariaDB bool
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
			return startMySQL(ctx, daemon, false, false, flags)
		}
	}
	return StartMariaDB(ctx, flags...)
}

// StartMariaDB starts a MariaDB server, for tests that need one. See StartMySQL.
func StartMariaDB(ctx context.Context, flags ...string) (*MySQL, error) {
	return startMariaDB(ctx, false, flags)
}

func startMariaDB(ctx context.Context, galera bool, flags []string) (*MySQL, error) {
	daemon, err := find("mariadbd", "mariadb-server-core", "/usr/sbin/mariadbd", "/usr/libexec/mariadbd")
	if err != nil {
		return nil, err
	}
	return startMySQL(ctx, daemon, true, galera, flags)
}

// galeraProvider is the library of Galera.
const galeraProvider = "/usr/lib/galera/libgalera_smm.so"

// Each node of a cluster begins with the same data, so it needs no copy of another node's data. galeraState
// is its file grastate.dat. galeraTransfer is its program for the copy, which copies nothing: the node receives
// the changes since its state otherwise.
const (
	galeraStart = "6b8d0a5c-0000-11f0-8000-000000000001:0"
	galeraState = "version: 2.1\nuuid: 6b8d0a5c-0000-11f0-8000-000000000001\nseqno: 0\nsafe_to_bootstrap: 1\n"

	galeraTransfer = `#!/bin/sh
case " $* " in
*joiner*) printf 'ready 127.0.0.1\n` + galeraStart + `\n' ;;
*) echo "done ` + galeraStart + `" ;;
esac
`
)

// FakeClock is Server.FakeClock for MariaDB. A thread of MySQL that waits reads the clock all the time: with
// libfaketime, a server that does nothing keeps a processor busy, and a statement takes many times as long.
func (m *MySQL) FakeClock(ctx context.Context) error {
	if !m.MariaDB {
		return fmt.Errorf("%w: a libfaketime that is fast enough for MySQL", ErrNotInstalled)
	}
	return m.Server.FakeClock(ctx)
}

// StartGalera starts a Galera cluster of MariaDB servers. Every node has the same empty data, so that
// no node receives the data of another one when it joins.
func StartGalera(ctx context.Context, nodes int, flags ...string) (all []*MySQL, err error) {
	if _, err := os.Stat(galeraProvider); err != nil {
		return nil, fmt.Errorf("galera is %w (Debian: apt-get install galera-4): %w", ErrNotInstalled, err)
	}
	defer func() {
		if err != nil {
			for _, m := range all {
				_ = m.Close()
			}
		}
	}()
	members := "gcomm://"
	for len(all) < nodes {
		ports, err := freePorts(2)
		if err != nil {
			return all, err
		}
		group, receiver := ports[0], ports[1]
		address := fmt.Sprintf("127.0.0.1:%d", group)
		options := fmt.Sprintf("base_host=127.0.0.1;base_port=%d;gmcast.listen_addr=tcp://%s;ist.recv_addr=127.0.0.1:%d;gcache.size=8M",
			group, address, receiver)
		m, err := startMariaDB(ctx, true, slices.Concat([]string{"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
			"--innodb-flush-log-at-trx-commit=0", "--wsrep-on=ON", "--wsrep-provider=" + galeraProvider,
			"--wsrep-provider-options=" + options, "--wsrep-node-address=" + address, "--wsrep-cluster-name=holdfast",
			"--wsrep-sst-method=same", "--wsrep-cluster-address=gcomm://"}, flags))
		if err != nil {
			return all, err
		}
		if all = append(all, m); len(all) > 1 {
			m.cfg.Command = append(m.cfg.Command, "--wsrep-cluster-address="+members)
			if err := m.Stop(); err != nil {
				return all, err
			}
			if err := m.Restart(ctx); err != nil {
				return all, err
			}
		}
		members = strings.Replace(members+","+address, "//,", "//", 1)
	}
	// The first node has begun the cluster. When it starts again, it joins the others.
	all[0].cfg.Command = append(all[0].cfg.Command, "--wsrep-cluster-address="+members)
	return all, nil
}

// Rejoin starts a killed node of a Galera cluster. It continues after the last change that it has kept: the
// other nodes send it the later ones.
func (m *MySQL) Rejoin(ctx context.Context) error {
	command := m.cfg.Command
	out, err := m.home.command(command[0], append(slices.Clone(command[1:]), "--wsrep-recover")...).CombinedOutput()
	_, after, ok := strings.Cut(string(out), "Recovered position: ")
	if err != nil || !ok {
		return fmt.Errorf("servers: %s: no position in the cluster: %w\n%s", m.cfg.Name, err, out)
	}
	m.cfg.Command = append(slices.Clone(command), "--wsrep-start-position="+strings.Fields(after)[0])
	defer func() { m.cfg.Command = command }()
	return m.Restart(ctx)
}

func startMySQL(ctx context.Context, daemon string, mariadb bool, galera bool, flags []string) (*MySQL, error) {
	daemon, err := filepath.EvalSymlinks(daemon)
	if err != nil {
		return nil, err
	}
	return inHome(ctx, "mysql", func(h *home, port int) (*MySQL, error) {
		data := filepath.Join(h.dir, "data")
		// Each server has a temporary directory of its own. Servers that start at the same
		// time in a shared one would remove each other's temporary tables.
		tmp := filepath.Join(h.dir, "tmp")
		if err := h.run(h.command("mkdir", tmp)); err != nil {
			return nil, err
		}
		base := filepath.Dir(filepath.Dir(daemon)) // the directory of programs, messages and plugins
		common := []string{"--no-defaults", "--basedir=" + base, "--datadir=" + data, "--tmpdir=" + tmp, "--innodb-buffer-pool-size=32M"}
		m := &MySQL{h.host(port), mariadb}
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
		if galera {
			state, transfer := filepath.Join(data, "grastate.dat"), filepath.Join(h.dir, "wsrep_sst_same")
			for file, text := range map[string]string{state: galeraState, transfer: galeraTransfer} {
				if err := cmp.Or(os.WriteFile(file, []byte(text), 0o600), os.Chmod(file, 0o777)); err != nil {
					return nil, err // the server has another user
				}
			}
		}
		return m, m.start(ctx, append(command, flags...), greets(m.Address), "PATH="+h.dir+":"+os.Getenv("PATH"))
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

// Admin returns the driver of database/sql and the data source name for the administrator.
func (m *MySQL) Admin() (driver, dsn string) { return "mysql", m.DSN("test", "") }
