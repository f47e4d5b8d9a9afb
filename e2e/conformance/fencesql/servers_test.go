package fencesql

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/holdfast-go/holdfast/fence"
)

// database is a real one, and what differs about it.
type database struct {
	name     string
	dialect  fence.Dialect
	open     func(t *testing.T) *sql.DB
	levels   []sql.IsolationLevel
	isolates bool // other transactions go on while one writes
}

// databases starts what is installed.
func databases(t *testing.T) []database {
	every := []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
	maria := func(params string) func(*testing.T) *sql.DB {
		return func(t *testing.T) *sql.DB { return mariadb(t, params) }
	}
	return []database{
		{"SQLite", fence.SQLite, sqlite, []sql.IsolationLevel{sql.LevelDefault}, false},
		{"MariaDB", fence.MySQL, maria(""), every, true},
		// Both make affected rows mean something else, or the values travel in
		// another form.
		{"MariaDB,clientFoundRows,interpolateParams", fence.MySQL, maria("?clientFoundRows=true&interpolateParams=true"), every, true},
		{"PostgreSQL", fence.PostgreSQL, postgres, every, true},
	}
}

func connect(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := db.PingContext(t.Context())
		if err == nil {
			return db
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %v", driver, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func sqlite(t *testing.T) *sql.DB {
	path := filepath.Join(t.TempDir(), "db")
	q := url.Values{"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)"}}
	return connect(t, "sqlite", "file:"+path+"?"+q.Encode())
}

// server is one child process for all tests of this package.
type server struct {
	once sync.Once
	port int
	skip string
	err  error
}

var mariaServer, postgresServer server

// stops ends the servers that were started, last first.
var stops []func()

func TestMain(m *testing.M) {
	code := m.Run()
	for i := len(stops) - 1; i >= 0; i-- {
		stops[i]()
	}
	os.Exit(code)
}

// use starts the server unless that was done before.
func (s *server) use(t *testing.T, start func(*server) error) int {
	t.Helper()
	s.once.Do(func() { s.err = start(s) })
	if s.skip != "" {
		if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
			t.Fatal(s.skip)
		}
		t.Skip(s.skip)
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.port
}

func mariadb(t *testing.T, params string) *sql.DB {
	port := mariaServer.use(t, func(s *server) error {
		daemon := find("mariadbd", "/usr/sbin", "/usr/libexec")
		if daemon == "" {
			s.skip = "mariadbd is not installed (Debian: apt-get install mariadb-server-core)"
			return nil
		}
		dir, as, err := s.home("mysql", "nobody")
		if err != nil {
			return err
		}
		// As mariadb-install-db does, which needs tools that come with the clients.
		data := filepath.Join(dir, "data")
		if out, err := as(exec.Command("mkdir", "-p", filepath.Join(data, "mysql"))).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		boot := bytes.NewBufferString("USE mysql;\n")
		for _, name := range []string{"system_tables", "performance_tables", "system_tables_data"} {
			found, _ := filepath.Glob("/usr/share/m*/m*_" + name + ".sql")
			if len(found) == 0 {
				s.skip = "the " + name + ".sql of mariadbd is not installed (Debian: apt-get install mariadb-server-core)"
				return nil
			}
			script, err := os.ReadFile(found[0])
			if err != nil {
				return err
			}
			boot.Write(script)
		}
		cmd := as(exec.Command(daemon, "--no-defaults", "--bootstrap", "--skip-grant-tables", "--datadir="+data))
		cmd.Stdin = boot
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("bootstrap of mariadbd: %w: %s", err, out)
		}
		return s.launch(as(exec.Command(daemon, "--no-defaults", "--skip-grant-tables", "--datadir="+data, "--bind-address=127.0.0.1",
			"--port="+strconv.Itoa(s.port), "--socket="+filepath.Join(dir, "s"), "--pid-file="+filepath.Join(dir, "pid"))), syscall.SIGTERM)
	})
	base := fmt.Sprintf("root@tcp(127.0.0.1:%d)/", port)
	admin := connect(t, "mysql", base)
	name := schemaName()
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return connect(t, "mysql", base+name+params)
}

func postgres(t *testing.T) *sql.DB {
	port := postgresServer.use(t, func(s *server) error {
		var dirs []string
		if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin"); len(found) > 0 {
			dirs = found
		}
		daemon, initdb := find("postgres", dirs...), find("initdb", dirs...)
		if daemon == "" || initdb == "" {
			s.skip = "postgres and initdb are not installed (Debian: apt-get install postgresql)"
			return nil
		}
		dir, as, err := s.home("postgres", "nobody")
		if err != nil {
			return err
		}
		data := filepath.Join(dir, "data")
		if out, err := as(exec.Command(initdb, "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")).CombinedOutput(); err != nil {
			return fmt.Errorf("initdb: %w: %s", err, out)
		}
		return s.launch(as(exec.Command(daemon, "-D", data, "-p", strconv.Itoa(s.port), "-k", dir,
			"-c", "listen_addresses=127.0.0.1", "-c", "fsync=off")), syscall.SIGINT)
	})
	base := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/", port)
	admin := connect(t, "pgx", base+"postgres?sslmode=disable")
	name := schemaName()
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return connect(t, "pgx", base+name+"?sslmode=disable")
}

var schemas struct {
	sync.Mutex
	n int
}

func schemaName() string {
	schemas.Lock()
	defer schemas.Unlock()
	schemas.n++
	return fmt.Sprintf("t%d", schemas.n)
}

// home makes the server's directory, picks its port, and returns what makes a
// command run as one of users where we are root: neither server wants to be.
func (s *server) home(users ...string) (string, func(*exec.Cmd) *exec.Cmd, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	// Not under a test's directory: that one goes before the server does, and
	// its name may be too long for a socket.
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		return "", nil, err
	}
	stops = append(stops, func() { _ = os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		for _, name := range users {
			u, err := user.Lookup(name)
			if err != nil {
				continue
			}
			uid, _ := strconv.Atoi(u.Uid)
			gid, _ := strconv.Atoi(u.Gid)
			if err := os.Chown(dir, uid, gid); err != nil {
				return "", nil, err
			}
			attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
			break
		}
	}
	return dir, func(c *exec.Cmd) *exec.Cmd {
		c.SysProcAttr = attr
		c.Dir = dir
		c.Env = append(os.Environ(), "HOME="+dir, "TZ=UTC")
		return c
	}, nil
}

func (s *server) launch(cmd *exec.Cmd, end syscall.Signal) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	stops = append(stops, func() {
		_ = cmd.Process.Signal(end)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.port)); err == nil {
			return c.Close()
		}
		select {
		case <-ended:
			return fmt.Errorf("%s ended: %s", cmd.Path, out.String())
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen: %w", cmd.Path, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// find looks in dirs first: the PATH may have a wrapper for one version.
func find(name string, dirs ...string) string {
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}
