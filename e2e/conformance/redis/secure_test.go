package redis

import (
	"context"
	"crypto/x509"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// documented lists the commands that docs/security.md gives to a user.
var documented = func() (commands []string) {
	page, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		panic(err)
	}
	_, block, _ := strings.Cut(string(page), "```sh redis rights\n")
	block, _, _ = strings.Cut(block, "```")
	for word := range strings.FieldsSeq(block) {
		if command, ok := strings.CutPrefix(word, "+"); ok {
			commands = append(commands, command)
		}
	}
	if len(commands) == 0 {
		panic("docs/security.md has no rights for Redis")
	}
	return commands
}()

// restrict creates the user app, with the documented rights alone.
func restrict(t testing.TB, all []*servers.Redis, more ...string) {
	t.Helper()
	rules := []string{"ACL", "SETUSER", "app", "on", ">app-secret", "resetkeys", "~holdfast:*", "resetchannels", "&holdfast:*", "-@all"}
	for _, c := range append(documented, more...) {
		rules = append(rules, "+"+c)
	}
	for _, r := range all {
		do(t, r, rules...)
	}
}

// over returns a function that opens stores over a client that a program has.
func over(t *testing.T, client goredis.UniversalClient) func() driver.Store {
	t.Cleanup(func() { _ = client.Close() })
	return func() driver.Store {
		s, err := redisstore.New(client)
		check(t, err)
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		return s
	}
}

// use acquires, renews and releases a lock, and another client waits for it.
func use(t *testing.T, open func() driver.Store) {
	t.Helper()
	one, two := open(), open()
	name := t.Name()
	g := must(t, one, request(name, driver.Exclusive, long))
	w := queue(t, two, request(name, 3, long))
	if a := renewed(t, one, g); a.Err != nil {
		t.Fatal(a.Err)
	}
	release(t, one, g)
	release(t, two, w.Granted())
}

// credentialsRefused requires that a request with wrong credentials is refused, and that the error
// contains no secret.
func credentialsRefused(t *testing.T, open func() driver.Store) {
	t.Helper()
	s := open()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, request("x", driver.Exclusive, long))
	code(t, s, err, driver.CodeRefused)
	if err != nil && strings.Contains(err.Error(), "secret") {
		t.Errorf("the error contains a secret: %v", err)
	}
}

func tlsParameters(f servers.TLS) string {
	return url.Values{"ca": {f.CA}, "cert": {f.Cert}, "key": {f.Key}}.Encode()
}

// byName is a name of this machine. named returns a URL's host with that name, and certified certifies that name alone.
const byName = "localhost"

func named(r *servers.Redis) string { return strings.Replace(r.Address(), "127.0.0.1", byName, 1) }

func certified(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{byName} }

// certify gives servers another certificate.
func certify(t *testing.T, all []*servers.Redis, files servers.TLS) {
	t.Helper()
	for _, r := range all {
		do(t, r, "CONFIG", "SET", "tls-cert-file", files.Cert, "tls-key-file", files.Key)
	}
}

// unverified requires that a store finds no server that it can verify.
func unverified(t *testing.T, open func() driver.Store) {
	t.Helper()
	s := open()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, request("x", driver.Exclusive, long))
	code(t, s, err, driver.CodeUnavailable)
}

func TestSentinelOverTLS(t *testing.T) {
	t.Parallel()
	installed(t)
	ca := servertest.NewAuthority(t, "ca")
	files := ca.Sign(t, "server", func(c *x509.Certificate) { c.DNSNames = []string{byName} })
	client := servertest.ClientTLS(t, files)
	g, err := servers.StartRedisSentinelWith(t.Context(), t.TempDir(), 1, "sentinel-secret",
		append(servers.RedisTLS(files), "--requirepass", "server-secret", "--masterauth", "server-secret")...)
	check(t, err)
	t.Cleanup(g.Kill)
	restrict(t, g.All())
	certify(t, g.All(), ca.Sign(t, "of the address"))
	address := named(g.Sentinels[0])
	byURL := func(user, sentinel string) func() driver.Store {
		return kept(t, opening("rediss+sentinel://"+user+"@"+address+"/"+g.Name+"?sentinel_password="+sentinel+"&"+tlsParameters(files)))
	}
	t.Run("right password", func(t *testing.T) { use(t, byURL("app:app-secret", "sentinel-secret")) })
	t.Run("the program's client", func(t *testing.T) {
		use(t, over(t, goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: g.Name, SentinelAddrs: []string{address}, SentinelPassword: "sentinel-secret",
			Username: "app", Password: "app-secret", TLSConfig: client,
		})))
	})
	t.Run("wrong password", func(t *testing.T) { credentialsRefused(t, byURL("app:no-secret", "sentinel-secret")) })
	t.Run("wrong password of the sentinels", func(t *testing.T) { credentialsRefused(t, byURL("app:app-secret", "no-secret")) })
	t.Run("wrong password of a sentinel, and another is down", func(t *testing.T) {
		credentialsRefused(t, byURL("app:app-secret", "no-secret&addr=127.0.0.1:1"))
	})
	certify(t, g.All(), ca.Sign(t, "of the name", certified))
	t.Run("the certificate is not for the primary's address", func(t *testing.T) { unverified(t, byURL("app:app-secret", "sentinel-secret")) })
}

func TestClusterOverTLS(t *testing.T) {
	t.Parallel()
	installed(t)
	ca := servertest.NewAuthority(t, "ca")
	files := ca.Sign(t, "server", func(c *x509.Certificate) { c.DNSNames = []string{byName} })
	client := servertest.ClientTLS(t, files)
	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), true,
		append(servers.RedisTLS(files), "--requirepass", "server-secret", "--masterauth", "server-secret")...)
	check(t, err)
	t.Cleanup(c.Kill)
	restrict(t, c.Nodes, "cluster")
	certify(t, c.Nodes[1:], ca.Sign(t, "of the address"))
	address := named(c.Nodes[0])
	byURL := func(user string) func() driver.Store {
		return kept(t, opening("rediss+cluster://"+user+"@"+address+"?"+tlsParameters(files)))
	}
	t.Run("right password", func(t *testing.T) { use(t, byURL("app:app-secret")) })
	t.Run("the program's client", func(t *testing.T) {
		use(t, over(t, goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: []string{address}, Username: "app", Password: "app-secret", TLSConfig: client,
		})))
	})
	t.Run("wrong password", func(t *testing.T) { credentialsRefused(t, byURL("app:no-secret")) })
	certify(t, c.Nodes, ca.Sign(t, "of the name", certified))
	t.Run("the certificates are not for the nodes' addresses", func(t *testing.T) { unverified(t, byURL("app:app-secret")) })
}

// TestReplicaIsVerifiedByNameInURL: a primary reports its replica by an address. The certificates of both are for the
// name in the URL.
func TestReplicaIsVerifiedByNameInURL(t *testing.T) {
	t.Parallel()
	ca := servertest.NewAuthority(t, "ca")
	files := ca.Sign(t, "server")
	g := replicas(t, servers.RedisTLS(files)...)
	certify(t, g.All(), ca.Sign(t, "of the name", certified))
	s := open(t, "rediss://"+named(g.Primary)+"?replicas=1&"+tlsParameters(files))
	release(t, s, must(t, s, request("x", driver.Exclusive, long)))
	if f, found := requests.Finding(t, s, "unread"); found {
		t.Errorf("the store has not read from the replica: %s", f.Evidence)
	}
}
