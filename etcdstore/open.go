package etcdstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

func init() {
	driver.Register("etcd", openURL)
	driver.Register("etcds", openURL)
}

const dialTimeout = 5 * time.Second

// passLearners repeats a call at the next endpoint if the member refuses it because it is a learner, which a cluster has
// while a member is added. A server that returns this code has changed nothing. The client library would set the same
// balancing policy.
const passLearners = `{"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.01s", "maxBackoff": "0.1s", "backoffMultiplier": 2, "retryableStatusCodes": ["FAILED_PRECONDITION"]}}]}`

func openURL(ctx context.Context, u *url.URL, namespace string) (driver.Store, error) {
	cfg, fromURL, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg, fromURL, Namespace(namespace))
}

// Open opens a store with its own client:
//
//	etcd://[user:password@]host[:port][,host[:port]...][/prefix]
//	etcds://...[?ca=FILE][&cert=FILE&key=FILE][&server_name=NAME][&require_tls=true][&tokens=revision]
//
// The default port is 2379; if some hosts have a port, the last one must have one. The path without
// its first slash is the prefix of every key, see [Prefix]: etcd://h/locks/ has the lock "billing" under the
// keys of `etcdctl lock locks/billing`. The scheme etcds uses TLS: ca is the file of the certificate
// authority (default: the system's), cert and key are the client's own files. With require_tls=true a URL of
// scheme etcd is refused. tokens=revision is [PlainTokens]. Servers may be down; a server that is up refuses a wrong
// password at once. The client follows the member list if it has an address of the URL.
func Open(ctx context.Context, rawURL string, o ...Option) (*Store, error) {
	u, err := storeurl.Parse(rawURL, "etcd", "etcds")
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "etcdstore: %w", err)
	}
	cfg, fromURL, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	return open(ctx, cfg, append([]Option{fromURL}, o...)...)
}

func open(ctx context.Context, cfg clientv3.Config, o ...Option) (*Store, error) {
	set, err := configure(o)
	if err != nil {
		return nil, err
	}
	user := newLogin(cfg.Username, set.password)
	cfg.Username, cfg.Password = "", ""
	client, err := user.open(ctx, cfg)
	if err != nil {
		code := driver.CodeUnavailable
		if errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) || codeOf(err) == driver.CodeRefused {
			code = driver.CodeRefused
		}
		return nil, driver.Errorf(code, "etcdstore.Open: %w", err)
	}
	s, err := New(client, o...)
	if err != nil {
		user.close()
		_ = client.Close()
		return nil, err
	}
	s.user = user
	s.followMembers(cfg)
	return s, nil
}

func parseURL(u *url.URL) (clientv3.Config, Option, error) {
	bad := func(format string, args ...any) (clientv3.Config, Option, error) {
		return clientv3.Config{}, nil, driver.Errorf(driver.CodeInvalid, "etcd URL: "+format, args...)
	}
	cfg := clientv3.Config{
		DialTimeout: dialTimeout,
		// A dead connection is noticed before a lease with the default TTL needs it.
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectWithin / 4, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectWithin},
			MinConnectTimeout: dialTimeout,
		}), grpc.WithDisableServiceConfig(), grpc.WithDefaultServiceConfig(passLearners)},
	}
	if u.Scheme != "etcd" && u.Scheme != "etcds" {
		return bad("scheme %q: etcd or etcds is needed", u.Scheme)
	}
	if u.Host == "" {
		return bad("no host: etcd://host1:2379,host2:2379/prefix is the form")
	}
	secure, scheme := false, "http://"
	if u.Scheme == "etcds" {
		secure, scheme = true, "https://"
	}
	for _, host := range strings.Split(u.Host, ",") {
		if host == "" {
			return bad("host list %q has an empty entry", u.Host)
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "2379")
		}
		cfg.Endpoints = append(cfg.Endpoints, scheme+host)
	}
	q, err := storeurl.Query(u, "etcd://host1:2379,host2:2379/prefix")
	if err != nil {
		return bad("%w", err)
	}
	password := q.Password(u)
	cfg.Username, cfg.Password = u.User.Username(), password()
	const how = "use the scheme etcds"
	if t := q.TLS(secure, how); t != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithTransportCredentials(renewedTLS{credentials.NewTLS(t()), t}))
	}
	p := storeurl.Protection{Hosts: strings.Split(u.Host, ","), Verified: secure, Password: cfg.Password != "", How: how}
	exposed, plain := q.Protect(p), q.Choose("tokens", "reserved", "revision")
	if err := q.End(); err != nil {
		return bad("%w", err)
	}
	if u.User != nil && cfg.Username == "" || (cfg.Username == "") != (cfg.Password == "") {
		return bad("a user needs a name and a password")
	}
	return cfg, func(c *config) {
		c.prefix, c.exposed, c.password = strings.TrimPrefix(u.Path, "/"), exposed, password
		if plain {
			PlainTokens()(c)
		}
	}, nil
}

// renewedTLS uses for each handshake a configuration of its own. It verifies the name in the configuration, if there is
// one, and not that of the endpoint.
type renewedTLS struct {
	credentials.TransportCredentials
	config func() *tls.Config
}

func (r renewedTLS) ClientHandshake(ctx context.Context, endpoint string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t := r.config()
	return credentials.NewTLS(t).ClientHandshake(ctx, cmp.Or(t.ServerName, endpoint), c)
}

func (r renewedTLS) Clone() credentials.TransportCredentials { return r }
