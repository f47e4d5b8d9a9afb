package service

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/natsstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/s3store"
	_ "github.com/holdfast-go/holdfast/zkstore"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
)

// server controls a store's server.
type server interface {
	Kill()
	Restart(context.Context) error
}

// store is one store of a test: its server, and the URL of its locks.
type store struct {
	name string
	// ttl is a TTL that is short for the store, and still outlasts a busy machine.
	ttl   time.Duration
	start func(t *testing.T) (server, string)
}

// restart starts a server again. On a busy machine one try may not be enough.
func restart(t *testing.T, srv server) {
	t.Helper()
	var err error
	for range 4 {
		if err = srv.Restart(t.Context()); err == nil {
			return
		}
	}
	t.Fatal(err)
}

var stores = []store{
	{"file", 2 * time.Second, func(t *testing.T) (server, string) { return nil, "file://" + t.TempDir() }},
	{"redis", 2 * time.Second, func(t *testing.T) (server, string) {
		r, err := servers.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"), "--appendonly", "yes", "--appendfsync", "always")
		servertest.Started(t, err)
		t.Cleanup(r.Kill)
		return r, "redis://" + r.Address()
	}},
	{"etcd", 3 * time.Second, func(t *testing.T) (server, string) {
		m, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir(), NoSync: true})
		servertest.Started(t, err)
		t.Cleanup(m[0].End)
		return m[0], "etcd://" + m[0].Client
	}},
	{"zookeeper", 3 * time.Second, func(t *testing.T) (server, string) {
		z, err := servers.StartZooKeeper(t.Context(), filepath.Join(t.TempDir(), "zookeeper"), servers.ZooKeeperConfig{})
		servertest.Started(t, err)
		t.Cleanup(z.Kill)
		return z, "zk://" + z.Address()
	}},
	{"nats", 2 * time.Second, func(t *testing.T) (server, string) {
		n, err := servers.StartNATS(t.Context(), servers.NATSConfig{Dir: t.TempDir()})
		servertest.Started(t, err)
		t.Cleanup(n[0].End)
		return n[0], prepare(t, "nats://"+n[0].Client+"?bucket=locks&skew=10ms")
	}},
	{"s3", 2 * time.Second, func(t *testing.T) (server, string) {
		s, err := servers.StartS3(t.Context(), t.TempDir())
		servertest.Started(t, err)
		t.Cleanup(s.Kill)
		return s, servers.S3URL(s.Address)
	}},
	{"mariadb-pessimistic", 3 * time.Second, mariadb("pessimistic")},
	{"mariadb-optimistic", 2 * time.Second, mariadb("optimistic")},
	{"mariadb-named", 3 * time.Second, mariadb("named")},
	{"postgres-advisory", 3 * time.Second, postgres("advisory")},
	{"postgres-pessimistic", 3 * time.Second, postgres("pessimistic")},
	{"postgres-optimistic", 2 * time.Second, postgres("optimistic")},
}

func mariadb(recipe string) func(*testing.T) (server, string) {
	return func(t *testing.T) (server, string) {
		s, err := servers.StartMariaDB(t.Context())
		servertest.Started(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s, prepare(t, "mysql://root@"+s.Address+"/test?recipe="+recipe)
	}
}

func postgres(recipe string) func(*testing.T) (server, string) {
	return func(t *testing.T) (server, string) {
		s, err := servers.StartPostgres(t.Context())
		servertest.Started(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s, prepare(t, s.URL("postgres", "&recipe="+recipe))
	}
}

// prepare creates the tables of a store.
func prepare(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	must.Succeed(t, err)
	open, _ := driver.OpenerOf(u.Scheme)
	s, err := open(t.Context(), u, "")
	must.Succeed(t, err)
	defer s.Close(context.WithoutCancel(t.Context()))
	must.Succeed(t, s.(interface{ Init(context.Context) error }).Init(t.Context()))
	return raw
}

// testTimeout limits the wait for an event that must come. Only failing tests reach it.
const testTimeout = 2 * time.Minute

// process is a replica.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan report
	// ended is closed when the process has ended, with err.
	ended chan struct{}
	err   error
}

// start starts a replica. Its reports go to lines, or to a channel of the process if lines
// is nil.
func (w worker) start(t *testing.T, lines chan report) *process {
	t.Helper()
	task, err := json.Marshal(w)
	must.Succeed(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(task))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	p := &process{cmd: cmd, stdin: in, lines: lines, ended: make(chan struct{})}
	if lines == nil {
		p.lines = make(chan report, 1000)
	}
	go func() {
		defer close(p.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			r := report{worker: p}
			if err := json.Unmarshal(s.Bytes(), &r); err != nil {
				continue // a SIGKILL has cut the line off
			}
			p.lines <- r
		}
		p.err = cmd.Wait()
		p.lines <- report{Kind: "exited", Err: text(p.err), worker: p}
	}()
	t.Cleanup(func() { p.signal(syscall.SIGKILL); <-p.ended })
	return p
}

func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.ended:
	default:
		_ = p.cmd.Process.Signal(s)
	}
}

// wait waits until the replica has ended, and requires that it ended without an error.
func (p *process) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
		if p.err != nil {
			t.Errorf("the replica: %v", p.err)
		}
	case <-time.After(testTimeout):
		t.Fatal("the replica does not end")
	}
}

// next waits for a report of one of the kinds. A replica must not exit before it.
func next(t *testing.T, lines <-chan report, kinds ...string) report {
	t.Helper()
	for end := time.After(testTimeout); ; {
		select {
		case r := <-lines:
			for _, kind := range kinds {
				if r.Kind == kind {
					return r
				}
			}
			if r.Kind == "exited" {
				t.Fatalf("the replica has ended, and none of %v is reported: %s", kinds, r.Err)
			}
		case <-end:
			t.Fatalf("none of %v is reported", kinds)
		}
	}
}

// open returns a Locker of the test process.
func open(t *testing.T, url string) *holdfast.Locker {
	t.Helper()
	locker, err := holdfast.Open(t.Context(), url)
	must.Succeed(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = locker.Close(ctx)
	})
	return locker
}
