package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/contact"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Target is the server, or the servers, that a URL names.
type Target struct {
	// Layout is the parameter layout, "" if it is missing.
	Layout string

	client redis.UniversalOptions // without the user and TLS
	login  *login
	tls    func() *tls.Config // nil without TLS
	mode   Mode
	where  string // the URL without its secrets
	config Config
}

// ParseURL returns what a URL names. Open of package redisstore describes the URLs.
func ParseURL(rawURL string) (*Target, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The errors of net/url quote the URL, which may contain a password.
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: the URL cannot be read")
	}
	t, err := parseURL(u)
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: URL: %w", err)
	}
	return t, nil
}

// Options returns the settings of the URL, followed by options, which replace them.
func (t *Target) Options(options []Option) []Option {
	return append([]Option{func(c *Config) { *c = t.config }}, options...)
}

const (
	// dialTimeout is the timeout to open a connection and to log in. A connection on which the server
	// is silent for silentTimeout is closed.
	dialTimeout   = 2 * time.Second
	silentTimeout = 4 * time.Second
	// maxConnections limits the connections to one server, of which maxIdle stay open. Only calls that
	// wait for replicas need many.
	maxConnections = 1024
	maxIdle        = 64
	// keepAliveIdle is the interval of the probes that TCP sends on an idle connection.
	keepAliveIdle = 5 * time.Second
)

// Connect returns a Client with a client of its own, which connects at the first request.
func (t *Target) Connect() (Client, error) {
	o := t.client
	reached := new(contact.Contact)
	open := reached.Through(dialer(t.tls))
	dial := t.login.after(open)
	o.Dialer = dial
	o.DialTimeout, o.DialerRetries = dialTimeout, 1
	o.ReadTimeout, o.WriteTimeout = silentTimeout, silentTimeout
	o.MaxRetries = -1 // see once
	o.PoolSize, o.MaxIdleConns = maxConnections, maxIdle
	o.PipelinePoolSize = -1
	// Small buffers: requests and answers have some hundred bytes, and a program may have many
	// Lockers.
	o.ReadBufferSize, o.WriteBufferSize = 16<<10, 16<<10
	// With version 3 of the protocol, go-redis looks for messages of the server before each request.
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	var client redis.UniversalClient
	switch t.mode {
	case Sentinel:
		o.Dialer = open // also to the sentinels, which have users of their own
		primary := redis.NewFailoverClient(o.Failover())
		primary.AddHook(t.login)
		client = primary
	case Cluster:
		of := o.Cluster()
		of.ClusterStateReloadInterval = refreshInterval
		of.DisableRoutingPolicies = true // which would need the right to COMMAND
		client = redis.NewClusterClient(of)
	default:
		client = redis.NewClient(o.Simple())
	}
	c, err := newGoredis(client)
	if err != nil {
		return nil, err
	}
	c.mode, c.where, c.owned, c.reached, c.dial = t.mode, t.where, true, reached, dial
	if t.mode == Sentinel {
		c.sentinels = o
	}
	return c, nil
}

// dialer returns a function that opens connections. They use TLS if t is not nil, which returns the configuration of
// the next one.
func dialer(t func() *tls.Config) dialFunc {
	d := &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveIdle},
	}
	if t == nil {
		return d.DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&tls.Dialer{NetDialer: d, Config: t()}).DialContext(ctx, network, address)
	}
}

// closeNow closes a connection. With TLS it sends no message, which could block.
func closeNow(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close()
}

// redacted returns a URL without its secrets.
func redacted(u *url.URL) string {
	w := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if name := u.User.Username(); name != "" {
		w.User = url.User(name)
	}
	return w.String()
}

func parseURL(u *url.URL) (*Target, error) {
	fail := func(format string, args ...any) (*Target, error) { return nil, fmt.Errorf(format, args...) }
	t := &Target{where: redacted(u)}
	o, c := &t.client, &t.config
	mode, port, secure, err := parseScheme(u.Scheme)
	if err != nil {
		return fail("%w", err)
	}
	if u.Hostname() == "" {
		return fail("the host is missing, as in redis://localhost:6379")
	}
	first, err := parseAddress(u.Host, port)
	if err != nil {
		return fail("%w", err)
	}
	o.Addrs = []string{first}
	if o.MasterName, o.DB, err = parsePath(u.Path, mode); err != nil {
		return fail("%w", err)
	}
	query, err := storeurl.Query(u, "redis://HOST:PORT/DB", "addr")
	if err != nil {
		return fail("%w", err)
	}
	password := query.Password(u)
	t.login = &login{user: u.User.Username(), password: password}
	for _, more := range query.TakeAll("addr") {
		a, err := parseAddress(more, port)
		if err != nil {
			return fail("%w", err)
		}
		o.Addrs = append(o.Addrs, a)
	}
	if mode == Standalone && len(o.Addrs) > 1 {
		return fail("parameter addr is for sentinels and clusters")
	}
	o.SentinelUsername, o.SentinelPassword = query.Take("sentinel_user"), query.Take("sentinel_password")
	if mode != Sentinel && o.SentinelUsername+o.SentinelPassword != "" {
		return fail("sentinel_user and sentinel_password are for sentinels")
	}
	c.Replicas, c.AckTimeout = query.Int("replicas", 0), query.Duration("replica_wait", 0)
	c.Insist = query.Choose("insist", "false", "true")
	t.Layout, t.mode = query.Take("layout"), mode
	c.FairWait = query.Duration("fair_wait", 0)
	how := "use the scheme " + strings.Replace(u.Scheme, "redis", "rediss", 1)
	t.tls = query.TLS(secure, how)
	if config := t.tls; config != nil && mode == Standalone {
		// The replicas of the server, which it reports by their addresses, have certificates for its name, too.
		t.tls = func() *tls.Config {
			c := config()
			c.ServerName = cmp.Or(c.ServerName, u.Hostname())
			return c
		}
	}
	p := storeurl.Protection{Hosts: o.Addrs, Verified: secure, Password: password()+o.SentinelPassword != "", How: how}
	c.Exposed = query.Protect(p)
	if err := query.End(); err != nil {
		return fail("%w", err)
	}
	return t, nil
}

// parseScheme returns the mode of a scheme, its default port, and whether connections use TLS.
func parseScheme(scheme string) (mode Mode, port string, secure bool, err error) {
	base, kind, _ := strings.Cut(scheme, "+")
	secure = base == "rediss"
	switch {
	case base != "redis" && !secure:
	case scheme == base:
		return Standalone, "6379", secure, nil
	case kind == "sentinel":
		return Sentinel, "26379", secure, nil
	case kind == "cluster":
		return Cluster, "6379", secure, nil
	}
	return mode, "", secure, fmt.Errorf("scheme %q: use redis, redis+sentinel or redis+cluster, or rediss instead of redis for TLS", scheme)
}

// parseAddress returns HOST:PORT for HOST or HOST:PORT.
func parseAddress(text, defaultPort string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host = strings.Trim(text, "[]")
	}
	port = cmp.Or(port, defaultPort)
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 || host == "" {
		return "", fmt.Errorf("address %q: give HOST or HOST:PORT, ports are 1 to 65535", text)
	}
	return net.JoinHostPort(host, port), nil
}

// parsePath returns the name of the primary, for sentinels, and the number of the database.
func parsePath(path string, mode Mode) (master string, database int, err error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if mode == Sentinel {
		if parts[0] == "" {
			return "", 0, errors.New("the name of the primary is missing, as in redis+sentinel://HOST/mymaster")
		}
		master, parts = parts[0], parts[1:]
	}
	if len(parts) > 1 {
		return "", 0, fmt.Errorf("path %q: nothing may follow the database number", path)
	}
	if len(parts) == 0 || parts[0] == "" {
		return master, 0, nil
	}
	if database, err = strconv.Atoi(parts[0]); err != nil || database < 0 {
		return "", 0, fmt.Errorf("database %q: give a number", parts[0])
	}
	if mode == Cluster && database != 0 {
		return "", 0, fmt.Errorf("database %d: a Redis Cluster has only database 0", database)
	}
	return master, database, nil
}
