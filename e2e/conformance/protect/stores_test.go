package protect

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	zookeeper "github.com/go-zookeeper/zk"
	_ "github.com/jackc/pgx/v5/stdlib"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/mysqlstore"
	"github.com/holdfast-go/holdfast/pgstore"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/zkstore"
)

var check = servertest.Check

var long = flag.Bool("long", false, "run with 32 processes, a million ids")

// system is a store and a resource that its locks protect. Child processes receive it as
// JSON.
type system struct {
	Name string
	// URL opens the store.
	URL string
	// Kind and Address are those of the resource.
	Kind, Address string
}

// started are the servers of all tests of this package.
var started struct {
	sync.Mutex
	systems map[string][]system
	errs    map[string]error
	stop    []func()
}

// systems returns the systems of a kind: for a database one for each recipe, otherwise one.
// It starts their server if it does not run yet.
func systems(t *testing.T, kind string) []system {
	t.Helper()
	started.Lock()
	defer started.Unlock()
	if started.systems == nil {
		started.systems, started.errs = map[string][]system{}, map[string]error{}
	}
	if started.systems[kind] == nil && started.errs[kind] == nil {
		started.systems[kind], started.errs[kind] = start(kind)
	}
	err := started.errs[kind]
	servertest.Started(t, err)
	return started.systems[kind]
}

func start(kind string) ([]system, error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "holdfast-protect-")
	if err != nil {
		return nil, err
	}
	stop := func(f func()) { started.stop = append(started.stop, f) }
	defer stop(func() { _ = os.RemoveAll(dir) })
	switch kind {
	case "file":
		return []system{{"file", "file://" + dir + "/locks", kind, dir}}, nil
	case "redis":
		r, err := servers.StartRedis(ctx, dir)
		if err != nil {
			return nil, err
		}
		stop(r.Kill)
		return []system{{"redis", "redis://" + r.Address(), kind, r.Address()}}, nil
	case "etcd":
		members, err := servers.StartEtcd(ctx, servers.EtcdConfig{Dir: dir, NoSync: true})
		if err != nil {
			return nil, err
		}
		stop(members[0].Kill)
		return []system{{"etcd", "etcd://" + members[0].Client, kind, members[0].Client}}, nil
	case "zookeeper":
		z, err := servers.StartZooKeeper(ctx, filepath.Join(dir, "zookeeper"), servers.ZooKeeperConfig{Tick: 200 * time.Millisecond})
		if err != nil {
			return nil, err
		}
		stop(z.Kill)
		return []system{{"zookeeper", "zk://" + z.Address() + "/locks?tick=200ms", kind, z.Address()}}, nil
	case "mysql":
		m, err := servers.StartMySQL(ctx)
		if err != nil {
			return nil, err
		}
		stop(func() { _ = m.Close() })
		url := "mysql://root@" + m.Address + "/test?recipe="
		return []system{
			{"mysql, optimistic", url + "optimistic", kind, m.DSN("test", "")}, {"mysql, named", url + "named", kind, m.DSN("test", "")},
			{"mysql, pessimistic", url + "pessimistic", kind, m.DSN("test", "")},
		}, prepare(ctx, kind, m.DSN("test", ""), url)
	case "postgres":
		p, err := servers.StartPostgres(ctx)
		if err != nil {
			return nil, err
		}
		stop(func() { _ = p.Close() })
		url := "postgres://postgres@" + p.Address + "/postgres?sslmode=disable&recipe="
		return []system{
			{"postgres, optimistic", url + "optimistic", kind, p.URL("postgres", "")}, {"postgres, advisory", url + "advisory", kind, p.URL("postgres", "")},
			{"postgres, pessimistic", url + "pessimistic", kind, p.URL("postgres", "")},
		}, prepare(ctx, kind, p.URL("postgres", ""), url)
	}
	return nil, fmt.Errorf("kind %q", kind)
}

// prepare creates the tables of the store and of the tests.
func prepare(ctx context.Context, kind, dsn, url string) error {
	db, dialect, err := openDatabase(kind, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	s, err := open(ctx, url+"optimistic")
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	if err := s.(interface{ Init(context.Context) error }).Init(ctx); err != nil {
		return err
	}
	if err := (fence.SQL{Dialect: dialect}).CreateTable(ctx, db); err != nil {
		return err
	}
	for _, statement := range []string{
		"CREATE TABLE accounts (name VARCHAR(99) PRIMARY KEY, content VARCHAR(99) NOT NULL)",
		"CREATE TABLE segment_id (biz_code VARCHAR(99) PRIMARY KEY, max_id BIGINT NOT NULL, version BIGINT NOT NULL)",
		"INSERT INTO segment_id VALUES ('order', 0, 0)",
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func openDatabase(kind, dsn string) (*sql.DB, fence.Dialect, error) {
	name, dialect := "mysql", fence.MySQL
	if kind == "postgres" {
		name, dialect = "pgx", fence.PostgreSQL
	}
	db, err := sql.Open(name, dsn)
	return db, dialect, err
}

func open(ctx context.Context, url string) (driver.Store, error) {
	switch {
	case url[:5] == "file:":
		return filestore.Open(ctx, url)
	case url[:5] == "redis":
		return redisstore.Open(ctx, url)
	case url[:4] == "etcd":
		return etcdstore.Open(ctx, url)
	case url[:2] == "zk":
		return zkstore.Open(ctx, url)
	case url[:5] == "mysql":
		return mysqlstore.Open(ctx, url)
	}
	return pgstore.Open(ctx, url)
}

// resource is data that a lock protects.
type resource struct {
	guarded func(ctx context.Context, token uint64, content string) error
	bare    func(ctx context.Context, content string) error
	read    func(ctx context.Context) (string, error)
}

// resource opens the system's resource of a name.
func (s system) resource(ctx context.Context, store driver.Store, name string) (resource, error) {
	switch s.Kind {
	case "file":
		guard, err := fence.NewFiles(s.Address)
		path := filepath.Join(s.Address, name)
		return resource{
			func(ctx context.Context, token uint64, content string) error {
				return guard.Write(ctx, name, token, []byte(content))
			},
			func(_ context.Context, content string) error { return os.WriteFile(path, []byte(content), 0o600) },
			func(context.Context) (string, error) {
				data, err := os.ReadFile(path)
				if errors.Is(err, fs.ErrNotExist) {
					err = nil
				}
				return string(data), err
			},
		}, err
	case "redis":
		guard, client := store.(*redisstore.Store).Guard(), goredis.NewClient(&goredis.Options{Addr: s.Address})
		return resource{
			func(ctx context.Context, token uint64, content string) error {
				return guard.Write(ctx, name, token, redisstore.Commands{{"SET", content}})
			},
			func(ctx context.Context, content string) error { return client.Set(ctx, name, content, 0).Err() },
			func(ctx context.Context) (string, error) { return client.Get(ctx, name).Result() },
		}, nil
	case "etcd":
		guard := store.(*etcdstore.Store).Guard()
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Address}, Logger: zap.NewNop()})
		return resource{
			func(ctx context.Context, token uint64, content string) error {
				return guard.Write(ctx, name, token, []clientv3.Op{clientv3.OpPut("data/"+name, content)})
			},
			func(ctx context.Context, content string) error {
				_, err := client.Put(ctx, "data/"+name, content)
				return err
			},
			func(ctx context.Context) (string, error) {
				resp, err := client.Get(ctx, "data/"+name)
				if err != nil || len(resp.Kvs) == 0 {
					return "", err
				}
				return string(resp.Kvs[0].Value), nil
			},
		}, err
	case "zookeeper":
		guard := store.(*zkstore.Store).Guard()
		client, _, err := zookeeper.Connect([]string{s.Address}, 20*time.Second, zookeeper.WithLogger(quiet{}))
		if err != nil {
			return resource{}, err
		}
		path := "/data-" + name
		if _, err := client.Create(path, nil, 0, zookeeper.WorldACL(zookeeper.PermAll)); err != nil && !errors.Is(err, zookeeper.ErrNodeExists) {
			return resource{}, err
		}
		return resource{
			func(ctx context.Context, token uint64, content string) error {
				return guard.Write(ctx, name, token, []zkstore.Op{zkstore.SetData(path, []byte(content), -1)})
			},
			func(_ context.Context, content string) error {
				_, err := client.Set(path, []byte(content), -1)
				return err
			},
			func(context.Context) (string, error) {
				data, _, err := client.Get(path)
				return string(data), err
			},
		}, nil
	}
	db, dialect, err := openDatabase(s.Kind, s.Address)
	guard := fence.SQL{Dialect: dialect}.Guard(db, nil)
	arg := func(n int) string {
		if dialect == fence.PostgreSQL {
			return fmt.Sprintf("$%d", n)
		}
		return "?"
	}
	type execer interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}
	write := func(ctx context.Context, e execer, content string) error {
		if _, err := e.ExecContext(ctx, "DELETE FROM accounts WHERE name = "+arg(1), name); err != nil {
			return err
		}
		_, err := e.ExecContext(ctx, "INSERT INTO accounts VALUES ("+arg(1)+", "+arg(2)+")", name, content)
		return err
	}
	return resource{
		func(ctx context.Context, token uint64, content string) error {
			return guard.Write(ctx, name, token, func(ctx context.Context) error { return write(ctx, fence.Tx(ctx), content) })
		},
		func(ctx context.Context, content string) error { return write(ctx, db, content) },
		func(ctx context.Context) (content string, err error) {
			err = db.QueryRowContext(ctx, "SELECT content FROM accounts WHERE name = "+arg(1), name).Scan(&content)
			return content, err
		},
	}, err
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
