package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
)

// certificates creates an authority and one certificate for servers and clients.
func certificates(t *testing.T) (files servers.TLS, client *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	signed := func(what, by *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			by, signer = what, key
		}
		der, err := x509.CreateCertificate(rand.Reader, what, by, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made, key
	}
	until := time.Now().Add(time.Hour)
	authority, signer := signed(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	leaf, key := signed(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, authority, signer)
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files = servers.TLS{
		CA: write("ca.pem", "CERTIFICATE", authority.Raw), Cert: write("cert.pem", "CERTIFICATE", leaf.Raw), Key: write("key.pem", "EC PRIVATE KEY", raw),
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	return files, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}}
}

// documented lists the commands that docs/redis.md requires for a user.
var documented = []string{"eval", "evalsha", "time", "get", "set", "del", "pttl", "pexpire", "hget", "hset", "hsetnx", "hdel", "hmget", "hgetall",
	"publish", "subscribe", "unsubscribe", "hello", "ping"}

// restrict creates the user app, with the documented rights alone.
func restrict(t *testing.T, all []*servers.Redis, more ...string) {
	t.Helper()
	rules := []string{"ACL", "SETUSER", "app", "on", ">app-secret", "resetkeys", "~holdfast:*", "resetchannels", "&holdfast:*", "-@all"}
	for _, c := range append(documented, more...) {
		rules = append(rules, "+"+c)
	}
	for _, r := range all {
		do(t, r, rules...)
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
	release(t, two, w.granted())
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

func TestSentinelOverTLS(t *testing.T) {
	installed(t)
	files, client := certificates(t)
	g, err := servers.StartRedisSentinelWith(t.Context(), t.TempDir(), 1, "sentinel-secret",
		append(servers.RedisTLS(files), "--requirepass", "server-secret", "--masterauth", "server-secret")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	restrict(t, g.All(), "role")
	address := g.Sentinels[0].Address()
	byURL := func(user, sentinel string) func() driver.Store {
		return kept(t, overRueidis("rediss+sentinel://"+user+"@"+address+"/"+g.Name+"?sentinel_password="+sentinel+"&"+tlsParameters(files)))
	}
	byClient := func(password, sentinel string) func() driver.Store {
		return kept(t, overGoredis(func() goredis.UniversalClient {
			return goredis.NewFailoverClient(&goredis.FailoverOptions{
				MasterName: g.Name, SentinelAddrs: []string{address}, SentinelPassword: sentinel,
				Username: "app", Password: password, TLSConfig: client,
			})
		}))
	}
	t.Run("rueidis", func(t *testing.T) { use(t, byURL("app:app-secret", "sentinel-secret")) })
	t.Run("goredis", func(t *testing.T) { use(t, byClient("app-secret", "sentinel-secret")) })
	t.Run("rueidis, wrong password", func(t *testing.T) { credentialsRefused(t, byURL("app:no-secret", "sentinel-secret")) })
	t.Run("goredis, wrong password", func(t *testing.T) { credentialsRefused(t, byClient("no-secret", "sentinel-secret")) })
	t.Run("rueidis, wrong password of the sentinels", func(t *testing.T) { credentialsRefused(t, byURL("app:app-secret", "no-secret")) })
}

func TestClusterOverTLS(t *testing.T) {
	installed(t)
	files, client := certificates(t)
	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), true,
		append(servers.RedisTLS(files), "--requirepass", "server-secret", "--masterauth", "server-secret")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	restrict(t, c.Nodes, "cluster", "role")
	address := c.Nodes[0].Address()
	byURL := func(user string) func() driver.Store {
		return kept(t, overRueidis("rediss+cluster://"+user+"@"+address+"?"+tlsParameters(files)))
	}
	byClient := func(password string) func() driver.Store {
		return kept(t, overGoredis(func() goredis.UniversalClient {
			return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{address}, Username: "app", Password: password, TLSConfig: client})
		}))
	}
	t.Run("rueidis", func(t *testing.T) { use(t, byURL("app:app-secret")) })
	t.Run("goredis", func(t *testing.T) { use(t, byClient("app-secret")) })
	t.Run("rueidis, wrong password", func(t *testing.T) { credentialsRefused(t, byURL("app:no-secret")) })
	t.Run("goredis, wrong password", func(t *testing.T) { credentialsRefused(t, byClient("no-secret")) })
}
