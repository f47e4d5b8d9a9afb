package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	_ "github.com/go-sql-driver/mysql"
	zookeeper "github.com/go-zookeeper/zk"
	"github.com/gofrs/flock"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/mysqlstore"
	"github.com/holdfast-go/holdfast/natsstore"
	"github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/zkstore"
)

const (
	ttl = 30 * time.Second
	// freeConns is the number of connections that a peer may keep: one for each goroutine.
	freeConns = 64
)

// client locks names for a process. The function lock returns the fencing token, or 0 if
// the library has none, and a function that unlocks.
type client struct {
	lock  func(ctx context.Context, name string) (token uint64, unlock func() error, err error)
	close func()
}

// contender is a library that locks on a store, or one way to use a library.
type contender struct {
	name string
	peer bool // a library other than holdfast
	bare bool // only makes round trips, and excludes no other client
	// limit: the least requests with which processes of one goroutine can hand a name round, with rising tokens.
	limit bool
	lone  bool // takes part only in the pairs of one goroutine
	open  func(address string) (client, error)
}

// chosen reports whether the user has asked for the contender.
func (c *contender) chosen() bool {
	return *contendersFlag == "" || strings.Contains(","+*contendersFlag+",", ","+c.name+",")
}

// store is a server with its contenders.
type store struct {
	name       string
	start      func(ctx context.Context, dir string) (address string, stop func(), err error)
	contenders []contender
}

// find returns a contender of a store.
func find(storeName, name string) *contender {
	for _, s := range stores {
		for i := range s.contenders {
			if s.name == storeName && s.contenders[i].name == name {
				return &s.contenders[i]
			}
		}
	}
	return nil
}

var stores = []store{
	{"redis", startRedis, []contender{
		ours("holdfast", "redis://%s"),
		ours("holdfast, LocalHandoff(0)", "redis://%s", holdfast.LocalHandoff(0)),
		lone(ours("holdfast, Sticky(1m)", "redis://%s", holdfast.Defaults(holdfast.Sticky(time.Minute)))),
		{name: "bsm/redislock", peer: true, open: openRedislock},
		{name: "redsync over go-redis", peer: true, open: openRedsync},
		{name: "redsync over rueidis", peer: true, open: openRedsyncRueidis},
		{name: "rueidislock", peer: true, open: openRueidislock},
		{name: "SET PX and DEL", bare: true, open: openBareRedis},
		bareRequests(": two scripts", openRedisRequests),
		{name: "the limit: a ring", limit: true, open: openRedisRing},
	}},
	{"etcd", startEtcd, []contender{
		ours("holdfast", "etcd://%s"),
		ours("holdfast, LocalHandoff(0)", "etcd://%s", holdfast.LocalHandoff(0)),
		{name: "clientv3/concurrency", peer: true, open: openConcurrency},
		bareRequests(": two transactions", openEtcdRequests),
	}},
	{"zookeeper", startZooKeeper, []contender{
		ours("holdfast", "zk://%s/bench"),
		ours("holdfast, LocalHandoff(0)", "zk://%s/bench", holdfast.LocalHandoff(0)),
		{name: "go-zookeeper Lock", peer: true, open: openZooKeeper},
	}},
	{"nats", startNATS, []contender{
		ours("holdfast", "nats://%s?bucket=locks"),
		{name: "create and delete by hand", peer: true, open: openKeyValue},
	}},
	{"mariadb", startMariaDB, []contender{
		ours("holdfast, recipe named", "mysql://root@%s/test?recipe=named&max_conns=600"),
		ours("holdfast, recipe pessimistic", "mysql://root@%s/test?recipe=pessimistic&max_conns=600"),
		ours("holdfast, recipe optimistic", "mysql://root@%s/test?recipe=optimistic"),
		{name: "GET_LOCK by hand", peer: true, open: openGetLock},
		{name: "FOR UPDATE by hand", peer: true, open: openForUpdate},
		bareRequests(" of named: two statements", openMariaDBRequests(bareNamed)),
		bareRequests(" of pessimistic: two scripts", openMariaDBRequests(bareMariaRow)),
	}},
	{"postgres", startPostgres, []contender{
		ours("holdfast, recipe advisory", "postgres://postgres@%s/postgres?sslmode=disable&recipe=advisory&max_conns=600"),
		ours("holdfast, recipe pessimistic", "postgres://postgres@%s/postgres?sslmode=disable&recipe=pessimistic&max_conns=600"),
		ours("holdfast, recipe optimistic", "postgres://postgres@%s/postgres?sslmode=disable&recipe=optimistic"),
		{name: "pg_advisory_lock by hand", peer: true, open: openAdvisory},
		{name: "FOR UPDATE by hand", peer: true, open: openPgForUpdate},
		bareRequests(" of advisory: two statements", openPostgresRequests(bareAdvisory)),
		bareRequests(" of pessimistic: two scripts", openPostgresRequests(barePgRow)),
	}},
	{"file", startFile, []contender{
		ours("holdfast", "file://%s"),
		{name: "open, flock, close", peer: true, open: openFlock},
		{name: "gofrs/flock", peer: true, open: openGofrs},
		{name: "flock(1)", peer: true, open: openFlockCommand},
		bareRequests(": two records", openFileRequests),
	}},
}

// ours returns the contender that uses holdfast. It puts the address into the URL of
// format. The TTL of holdfast is 30 s by default.
func ours(name, format string, o ...holdfast.Option) contender {
	return contender{name: name, open: func(address string) (client, error) {
		l, err := holdfast.Open(context.Background(), fmt.Sprintf(format, address), o...)
		if err != nil {
			return client{}, err
		}
		return client{close: func() { _ = l.Close(context.Background()) }, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
			k, err := l.Lock(ctx, name)
			if err != nil {
				return 0, nil, err
			}
			return k.Token(), k.Unlock, nil
		}}, nil
	}}
}

// lone returns a contender for the pairs of one goroutine: nothing is comparable where others want the names.
func lone(c contender) contender {
	c.lone = true
	return c
}

// pool keeps values that only one goroutine at a time can use.
type pool[T any] struct {
	mu   sync.Mutex
	idle []T
	open func() (T, error)
}

func (p *pool[T]) take() (T, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		v := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return v, nil
	}
	return p.open()
}

func (p *pool[T]) give(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, v)
}

// pooled returns a client that takes a value from a pool for each lock.
func pooled[T any](open func() (T, error), end func(T), lock func(ctx context.Context, v T, name string) (unlock func() error, err error)) client {
	p := &pool[T]{open: open}
	return client{
		close: func() {
			for _, v := range p.idle {
				end(v)
			}
		},
		lock: func(ctx context.Context, name string) (uint64, func() error, error) {
			v, err := p.take()
			if err != nil {
				return 0, nil, err
			}
			unlock, err := lock(ctx, v, name)
			if err != nil {
				end(v)
				return 0, nil, err
			}
			return 0, func() error {
				defer p.give(v)
				return unlock()
			}, nil
		},
	}
}

func startRedis(ctx context.Context, dir string) (string, func(), error) {
	r, err := servers.StartRedis(ctx, dir)
	if err != nil {
		return "", nil, err
	}
	return r.Address(), r.Kill, nil
}

func goRedis(address string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: address, PoolSize: freeConns})
}

func openRedislock(address string) (client, error) {
	c := goRedis(address)
	l := redislock.New(c)
	// redislock does not wait by itself. With the shortest pause between two tries it is the
	// fastest, and takes the most processor time.
	o := &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Microsecond)}
	return client{close: func() { _ = c.Close() }, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		k, err := l.Obtain(ctx, "redislock:"+name, ttl, o)
		if err != nil {
			return 0, nil, err
		}
		return 0, func() error { return k.Release(context.Background()) }, nil
	}}, nil
}

func redsyncClient(rs *redsync.Redsync, end func()) client {
	return client{close: end, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		m := rs.NewMutex("redsync:"+name, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))
		if err := m.LockContext(ctx); err != nil {
			return 0, nil, err
		}
		return 0, func() error { _, err := m.UnlockContext(context.Background()); return err }, nil
	}}
}

func openRedsync(address string) (client, error) {
	c := goRedis(address)
	return redsyncClient(redsync.New(redsyncgoredis.NewPool(c)), func() { _ = c.Close() }), nil
}

// newRueidis returns a client with a short flush delay, by which it sends more requests together.
func newRueidis(address string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true, MaxFlushDelay: 20 * time.Microsecond})
}

func openRedsyncRueidis(address string) (client, error) {
	c, err := newRueidis(address)
	if err != nil {
		return client{}, err
	}
	return redsyncClient(redsync.New(rueidisPool{c}), c.Close), nil
}

func openRueidislock(address string) (client, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{address}, MaxFlushDelay: 20 * time.Microsecond}, KeyMajority: 1, KeyValidity: ttl, NoLoopTracking: true,
	})
	if err != nil {
		return client{}, err
	}
	return client{close: l.Close, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		_, release, err := l.WithContext(ctx, name)
		return 0, func() error { release(); return nil }, err
	}}, nil
}

func openBareRedis(address string) (client, error) {
	c, err := newRueidis(address)
	if err != nil {
		return client{}, err
	}
	return client{close: c.Close, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		err := c.Do(ctx, c.B().Set().Key(name).Value("v").PxMilliseconds(ttl.Milliseconds()).Build()).Error()
		return 0, func() error {
			return c.Do(context.Background(), c.B().Del().Key(name).Build()).Error()
		}, err
	}}, nil
}

func startEtcd(ctx context.Context, dir string) (string, func(), error) {
	members, err := servers.StartEtcd(ctx, servers.EtcdConfig{Dir: dir})
	if err != nil {
		return "", nil, err
	}
	return members[0].Client, members[0].Kill, nil
}

func openConcurrency(address string) (client, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
	if err != nil {
		return client{}, err
	}
	// A session counts as one owner of a name, so each goroutine needs its own.
	k := pooled(func() (*concurrency.Session, error) { return concurrency.NewSession(c) }, func(s *concurrency.Session) { _ = s.Close() },
		func(ctx context.Context, s *concurrency.Session, name string) (func() error, error) {
			m := concurrency.NewMutex(s, "/peer/"+name)
			return func() error { return m.Unlock(context.Background()) }, m.Lock(ctx)
		})
	end := k.close
	k.close = func() { end(); _ = c.Close() }
	return k, nil
}

func startZooKeeper(ctx context.Context, dir string) (string, func(), error) {
	z, err := servers.StartZooKeeper(ctx, dir, servers.ZooKeeperConfig{})
	if err != nil {
		return "", nil, err
	}
	return z.Address(), z.Kill, nil
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func openZooKeeper(address string) (client, error) {
	c, events, err := zookeeper.Connect([]string{address}, 38*time.Second, zookeeper.WithLogger(silent{}))
	if err != nil {
		return client{}, err
	}
	go func() {
		for range events {
		}
	}()
	return client{close: c.Close, lock: func(_ context.Context, name string) (uint64, func() error, error) {
		l := zookeeper.NewLock(c, "/peer/"+name, zookeeper.WorldACL(zookeeper.PermAll))
		return 0, l.Unlock, l.Lock()
	}}, nil
}

func startNATS(ctx context.Context, dir string) (string, func(), error) {
	n, err := servers.StartNATS(ctx, servers.NATSConfig{Dir: dir})
	if err != nil {
		return "", nil, err
	}
	s, err := natsstore.Open(ctx, "nats://"+n[0].Client+"?bucket=locks", "")
	if err = initialize(ctx, s, err); err != nil {
		n[0].End()
		return "", nil, err
	}
	return n[0].Client, n[0].End, nil
}

// openKeyValue opens a client that creates and deletes a key with a TTL. A waiter tries again when the key has changed.
func openKeyValue(address string) (client, error) {
	nc, err := nats.Connect(address)
	if err != nil {
		return client{}, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return client{}, err
	}
	ctx := context.Background()
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "by-hand", LimitMarkerTTL: ttl})
	return client{close: nc.Close, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		unlock := func(revision uint64) func() error {
			return func() error { return kv.Delete(context.Background(), name, jetstream.LastRevision(revision)) }
		}
		revision, err := kv.Create(ctx, name, nil, jetstream.KeyTTL(ttl))
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return revision, unlock(revision), err
		}
		w, err := kv.Watch(ctx, name)
		if err != nil {
			return 0, nil, err
		}
		defer func() { _ = w.Stop() }()
		for {
			revision, err := kv.Create(ctx, name, nil, jetstream.KeyTTL(ttl))
			if !errors.Is(err, jetstream.ErrKeyExists) {
				return revision, unlock(revision), err
			}
			select {
			case <-w.Updates():
			case <-ctx.Done():
				return 0, nil, ctx.Err()
			}
		}
	}}, err
}

// rows is the number of rows, one for each name, that plain FOR UPDATE locks.
const rows = 512

func startMariaDB(ctx context.Context, _ string) (string, func(), error) {
	m, err := servers.StartMariaDB(ctx, "--max-connections=3600")
	if err != nil {
		return "", nil, err
	}
	stop := func() { _ = m.Close() }
	s, err := mysqlstore.Open(ctx, "mysql://root@"+m.Address+"/test")
	err = initialize(ctx, s, err)
	db, oerr := openMySQL(m.Address)
	if err = errors.Join(err, oerr); err != nil {
		stop()
		return "", nil, err
	}
	defer db.Close()
	for _, q := range []string{
		"CREATE TABLE by_hand (name VARBINARY(100) PRIMARY KEY) ENGINE=InnoDB",
		fmt.Sprintf("INSERT INTO by_hand SELECT CONCAT('bench-', seq) FROM seq_0_to_%d", rows-1),
	} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			stop()
			return "", nil, err
		}
	}
	return m.Address, stop, nil
}

// initialize creates the tables of a store, and closes the store.
func initialize(ctx context.Context, s interface {
	Init(context.Context) error
	Close(context.Context) error
}, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(s.Init(ctx), s.Close(ctx))
}

func openMySQL(address string) (*sql.DB, error) {
	db, err := sql.Open("mysql", "root@tcp("+address+")/test?interpolateParams=true")
	if err == nil {
		db.SetMaxIdleConns(rows)
	}
	return db, err
}

func openGetLock(address string) (client, error) {
	db, err := openMySQL(address)
	if err != nil {
		return client{}, err
	}
	query := func(ctx context.Context, c *sql.Conn, statement, name string) error {
		var yes sql.NullBool
		if err := c.QueryRowContext(ctx, statement, "by hand "+name).Scan(&yes); err != nil {
			return err
		}
		if !yes.Bool {
			return errors.New("the server refused: " + statement)
		}
		return nil
	}
	return client{close: func() { db.Close() }, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		c, err := db.Conn(ctx)
		if err != nil {
			return 0, nil, err
		}
		if err := query(context.Background(), c, "SELECT GET_LOCK(?, 60)", name); err != nil {
			return 0, nil, errors.Join(err, c.Close())
		}
		return 0, func() error {
			return errors.Join(query(context.Background(), c, "SELECT RELEASE_LOCK(?)", name), c.Close())
		}, nil
	}}, nil
}

func openForUpdate(address string) (client, error) {
	db, err := openMySQL(address)
	if err != nil {
		return client{}, err
	}
	return client{close: func() { db.Close() }, lock: func(_ context.Context, name string) (uint64, func() error, error) {
		ctx := context.Background()
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return 0, nil, err
		}
		var found string
		if err := tx.QueryRowContext(ctx, "SELECT name FROM by_hand WHERE name = ? FOR UPDATE", name).Scan(&found); err != nil {
			return 0, nil, errors.Join(err, tx.Rollback())
		}
		return 0, tx.Commit, nil
	}}, nil
}

func pgURL(address string) string {
	return "postgres://postgres@" + address + "/postgres?sslmode=disable"
}

func startPostgres(ctx context.Context, _ string) (string, func(), error) {
	p, err := servers.StartPostgres(ctx, "max_connections=2400")
	if err != nil {
		return "", nil, err
	}
	stop := func() { _ = p.Close() }
	s, err := pgstore.Open(ctx, pgURL(p.Address))
	err = initialize(ctx, s, err)
	c, oerr := pgx.Connect(ctx, pgURL(p.Address))
	if err = errors.Join(err, oerr); err != nil {
		stop()
		return "", nil, err
	}
	defer c.Close(ctx)
	if _, err := c.Exec(ctx, fmt.Sprintf("CREATE TABLE by_hand (name text PRIMARY KEY); INSERT INTO by_hand SELECT 'bench-' || n FROM generate_series(0, %d) n", rows-1)); err != nil {
		stop()
		return "", nil, err
	}
	return p.Address, stop, nil
}

func pgPooled(address string, lock func(ctx context.Context, c *pgx.Conn, name string) (func() error, error)) (client, error) {
	ctx := context.Background()
	return pooled(func() (*pgx.Conn, error) { return pgx.Connect(ctx, pgURL(address)) }, func(c *pgx.Conn) { c.Close(ctx) },
		func(_ context.Context, c *pgx.Conn, name string) (func() error, error) { return lock(ctx, c, name) }), nil
}

func openAdvisory(address string) (client, error) {
	return pgPooled(address, func(ctx context.Context, c *pgx.Conn, name string) (func() error, error) {
		_, err := c.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", name)
		return func() error {
			var ok bool
			if err := c.QueryRow(ctx, "SELECT pg_advisory_unlock(hashtext($1))", name).Scan(&ok); err != nil || ok {
				return err
			}
			return errors.New("it was not held")
		}, err
	})
}

func openPgForUpdate(address string) (client, error) {
	return pgPooled(address, func(ctx context.Context, c *pgx.Conn, name string) (func() error, error) {
		tx, err := c.Begin(ctx)
		if err != nil {
			return nil, err
		}
		var found string
		err = tx.QueryRow(ctx, "SELECT name FROM by_hand WHERE name = $1 FOR UPDATE", name).Scan(&found)
		return func() error { return tx.Commit(ctx) }, err
	})
}

func startFile(_ context.Context, dir string) (string, func(), error) { return dir, func() {}, nil }

func openFlock(dir string) (client, error) {
	return client{close: func() {}, lock: func(_ context.Context, name string) (uint64, func() error, error) {
		f, err := os.OpenFile(filepath.Join(dir, "flock-"+name), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return 0, nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			return 0, nil, errors.Join(err, f.Close())
		}
		return 0, f.Close, nil
	}}, nil
}

func openGofrs(dir string) (client, error) {
	return client{close: func() {}, lock: func(_ context.Context, name string) (uint64, func() error, error) {
		f := flock.New(filepath.Join(dir, "flock-"+name))
		return 0, f.Close, f.Lock()
	}}, nil
}

// openFlockCommand runs flock(1) with cat. When flock has the lock, cat copies a line back.
// It ends with its input, and flock then releases the lock.
func openFlockCommand(dir string) (client, error) {
	return client{close: func() {}, lock: func(_ context.Context, name string) (uint64, func() error, error) {
		c := exec.Command("flock", filepath.Join(dir, "flock-"+name), "cat")
		in, ierr := c.StdinPipe()
		out, oerr := c.StdoutPipe()
		if err := errors.Join(ierr, oerr, c.Start()); err != nil {
			return 0, nil, err
		}
		_, werr := in.Write([]byte{'\n'})
		_, rerr := out.Read(make([]byte, 1))
		return 0, func() error { return errors.Join(in.Close(), c.Wait()) }, errors.Join(werr, rerr)
	}}, nil
}
