package transport

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/e2e/servertest"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	"github.com/holdfast-go/holdfast/natsstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/redisstore/redlock"
	_ "github.com/holdfast-go/holdfast/s3store"
	_ "github.com/holdfast-go/holdfast/zkstore"
)

// password has every kind of character that a URL, a shell or a command of a server reads specially, and the word
// hush on both sides of each.
const password = `hush%4hush: hush/hush?hush#hush&hush=hush+hush@hush'"$(hush)\;hé`

// encoded is the password as a part of a URL.
var encoded = strings.ReplaceAll(url.QueryEscape(password), "+", "%20")

const tick = 100 * time.Millisecond

// store is a store whose servers are running. Its clients log in as USER with the password.
type store struct {
	name string
	// start starts the servers, and returns their addresses.
	start func(t *testing.T) []string
	// clear and secure are URLs without TLS, and with TLS and a verified server. FIRST is the first server,
	// MORE stands for further ones as REPEATED with the address, and CA for the authority's file.
	clear, secure, repeated string
	// unverified are URLs with TLS and without a verified server.
	unverified []string
	before     prelude
}

// at returns a URL of the servers.
func (s store) at(form, secret, ca string, addresses []string) string {
	more := ""
	for _, a := range addresses[1:] {
		more += strings.ReplaceAll(s.repeated, "ADDRESS", a)
	}
	return strings.NewReplacer("FIRST", addresses[0], "MORE", more, "SECRET", secret, "CA", ca).Replace(form)
}

var stores = []store{
	{
		name: "redis", start: func(t *testing.T) []string { return []string{startRedis(t)} },
		clear: "redis://:SECRET@FIRST?replica_wait=1s", secure: "rediss://:SECRET@FIRST?ca=CA",
	},
	{
		name: "redlock", start: func(t *testing.T) []string { return []string{startRedis(t), startRedis(t), startRedis(t)} },
		clear: "redlock://:SECRET@FIRST?fresh=trueMORE", secure: "redlocks://:SECRET@FIRST?ca=CA&fresh=trueMORE", repeated: "&node=ADDRESS",
	},
	{
		name: "etcd", start: startEtcd,
		clear: "etcd://root:SECRET@FIRST", secure: "etcds://root:SECRET@FIRST?ca=CA",
	},
	{
		name: "zookeeper", start: func(t *testing.T) []string {
			z, err := servers.StartZooKeeper(t.Context(), filepath.Join(t.TempDir(), "zookeeper"), servers.ZooKeeperConfig{Tick: tick})
			servertest.Started(t, err)
			t.Cleanup(z.Kill)
			return []string{z.Address()}
		},
		clear: "zk://app:SECRET@FIRST/locks?tick=100ms", secure: "zk://app:SECRET@FIRST/locks?tick=100ms&tls=true&ca=CA",
	},
	{
		name: "nats", before: natsPrelude, start: startNATS,
		clear: "nats://app:SECRET@FIRST?bucket=locks", secure: "nats://app:SECRET@FIRST?bucket=locks&tls=true&ca=CA",
	},
	{
		name: "s3", start: func(t *testing.T) []string {
			s, err := servers.StartS3(t.Context(), t.TempDir(), "--secret", password)
			servertest.Started(t, err)
			t.Cleanup(s.Kill)
			return []string{s.Address}
		},
		clear:  "s3://" + servers.S3ID + ":SECRET@locks?endpoint=http://FIRST",
		secure: "s3://" + servers.S3ID + ":SECRET@locks?endpoint=https://FIRST&ca=CA",
	},
	{
		name: "mysql", before: mysqlPrelude, start: startMySQL,
		clear: "mysql://app:SECRET@FIRST/test?recipe=named", secure: "mysql://app:SECRET@FIRST/test?recipe=named&tls=true&ca=CA",
		unverified: []string{"mysql://app:SECRET@FIRST/test?recipe=named&tls=skip-verify", "mysql://app:SECRET@FIRST/test?recipe=named&tls=preferred"},
	},
	{
		name: "postgres", before: postgresPrelude, start: startPostgres,
		clear: "postgres://app:SECRET@FIRST/postgres?sslmode=disable", secure: "postgres://app:SECRET@FIRST/postgres?sslmode=verify-full&sslrootcert=CA",
		unverified: []string{
			"postgres://app:SECRET@FIRST/postgres", "postgres://app:SECRET@FIRST/postgres?sslmode=prefer", "postgres://app:SECRET@FIRST/postgres?sslmode=require",
		},
	},
}

func startRedis(t *testing.T) string {
	r, err := servers.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"), "--requirepass", password)
	servertest.Started(t, err)
	t.Cleanup(r.Kill)
	return r.Address()
}

func startEtcd(t *testing.T) []string {
	m, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir(), NoSync: true})
	servertest.Started(t, err)
	t.Cleanup(m[0].End)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m[0].Client}})
	must(t, err)
	defer c.Close()
	_, err = c.UserAdd(t.Context(), "root", password)
	must(t, err)
	_, err = c.UserGrantRole(t.Context(), "root", "root")
	must(t, err)
	_, err = c.AuthEnable(t.Context())
	must(t, err)
	return []string{m[0].Client}
}

// startNATS starts a server with a bucket, which requires the password of app.
func startNATS(t *testing.T) []string {
	n, err := servers.StartNATS(t.Context(), servers.NATSConfig{Dir: t.TempDir(),
		Settings: fmt.Sprintf("authorization { user: app, password: %q }", password)})
	servertest.Started(t, err)
	t.Cleanup(n[0].End)
	s, err := natsstore.Open(t.Context(), "nats://app:"+encoded+"@"+n[0].Client+"?bucket=locks", "")
	must(t, err)
	defer s.Close(background)
	must(t, s.Init(t.Context()))
	return []string{n[0].Client}
}

// startMySQL starts a server with TLS, of its own authority.
func startMySQL(t *testing.T) []string {
	files := servertest.NewAuthority(t, "mysql").Sign(t, "server")
	s, err := servers.StartMySQL(t.Context(), "--ssl-ca="+files.CA, "--ssl-cert="+files.Cert, "--ssl-key="+files.Key)
	servertest.Started(t, err)
	t.Cleanup(func() { _ = s.Close() })
	db, err := sql.Open("mysql", s.DSN("test", ""))
	must(t, err)
	defer db.Close()
	execute(t, db, "CREATE USER app@'127.0.0.1' IDENTIFIED BY '"+strings.NewReplacer(`\`, `\\`, "'", "''").Replace(password)+"'", "GRANT ALL ON test.* TO app@'127.0.0.1'")
	return []string{s.Address}
}

// startPostgres starts a server that requires the password of app.
func startPostgres(t *testing.T) []string {
	s, err := servers.StartPostgres(t.Context())
	servertest.Started(t, err)
	t.Cleanup(func() { _ = s.Close() })
	db, err := sql.Open("pgx", s.URL("postgres", ""))
	must(t, err)
	defer db.Close()
	var rules string
	must(t, db.QueryRowContext(t.Context(), "SHOW hba_file").Scan(&rules))
	execute(t, db, "CREATE USER app PASSWORD '"+strings.ReplaceAll(password, "'", "''")+"'",
		"COPY (SELECT 'host all postgres all trust' UNION SELECT 'host all app all scram-sha-256') TO '"+rules+"'", "SELECT pg_reload_conf()")
	return []string{s.Address}
}

func execute(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		_, err := db.ExecContext(t.Context(), s)
		must(t, err)
	}
}

var must = servertest.Check

// background is a context for what a test does after its end.
var background = context.Background()
