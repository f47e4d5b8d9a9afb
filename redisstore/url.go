package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

func init() {
	for _, scheme := range []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"} {
		driver.Register(scheme, openURL)
	}
}

func openURL(_ context.Context, u *url.URL, namespace string) (driver.Store, error) {
	s, err := openParsed(u, Namespace(namespace))
	if err != nil {
		return nil, err // not s: an interface with a nil *Store is not nil
	}
	return s, nil
}

// Open opens the locks on the server that a URL names. It does not connect yet.
//
//	redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]
//	redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT]/MASTER[/DB]   HOST is a sentinel
//	redis+cluster://[USER[:PASSWORD]@]HOST[:PORT]
//
// With rediss instead of redis, connections use TLS. The default ports are 6379,
// for a sentinel 26379. Parameters, all optional:
//
//	addr=HOST:PORT            another sentinel, or node of a cluster; may be repeated
//	sentinel_user, sentinel_password
//	replicas=N                as WaitReplicas
//	replica_wait=1s
//	insist=true               as Insist
//	layout=NAME               as WithLayout: plain, redisson, ...
//	fair_wait=5m              as FairWait
//	ca=FILE                   PEM certificates to accept instead of the system's
//	cert=FILE, key=FILE       the client's own certificate
//	server_name=NAME          the name in the server's certificate
func Open(_ context.Context, rawURL string, options ...Option) (*Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The errors of net/url quote the URL, which may contain a password.
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: the URL cannot be read")
	}
	return openParsed(u, options...)
}

func openParsed(u *url.URL, options ...Option) (*Store, error) {
	o, mode, fromURL, err := parseURL(u)
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: URL: %w", err)
	}
	c, err := configure(append(fromURL, options...))
	if err != nil {
		return nil, err
	}
	return newStore(newRueidis(o, mode, redacted(u)), c), nil
}

// redacted returns a URL without its secrets.
func redacted(u *url.URL) string {
	w := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if name := u.User.Username(); name != "" {
		w.User = url.User(name)
	}
	return w.String()
}

// parseURL returns the options of the client, the mode and the options of the store.
func parseURL(u *url.URL) (o rueidis.ClientOption, mode Mode, options []Option, err error) {
	fail := func(format string, args ...any) (rueidis.ClientOption, Mode, []Option, error) {
		return o, mode, nil, fmt.Errorf(format, args...)
	}
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
	o.InitAddress = []string{first}
	o.Username = u.User.Username()
	o.Password, _ = u.User.Password()
	if o.Sentinel.MasterSet, o.SelectDB, err = parsePath(u.Path, mode); err != nil {
		return fail("%w", err)
	}
	query, err := storeurl.Query(u, "redis://HOST:PORT/DB", "addr")
	if err != nil {
		return fail("%w", err)
	}
	for _, more := range query.TakeAll("addr") {
		a, err := parseAddress(more, port)
		if err != nil {
			return fail("%w", err)
		}
		o.InitAddress = append(o.InitAddress, a)
	}
	if mode == Standalone && len(o.InitAddress) > 1 {
		return fail("parameter addr is for sentinels and clusters")
	}
	o.Sentinel.Username, o.Sentinel.Password = query.Take("sentinel_user"), query.Take("sentinel_password")
	if mode != Sentinel && o.Sentinel.Username+o.Sentinel.Password != "" {
		return fail("sentinel_user and sentinel_password are for sentinels")
	}
	var c config
	if c.replicas, err = query.Int("replicas", 0); err != nil {
		return fail("%w", err)
	}
	if c.ackTimeout, err = query.Duration("replica_wait", 0); err != nil {
		return fail("%w", err)
	}
	if c.insist, err = query.Choose("insist", "false", "true"); err != nil {
		return fail("%w", err)
	}
	c.layout = Layout(query.Take("layout"))
	if c.fairWait, err = query.Duration("fair_wait", 0); err != nil {
		return fail("%w", err)
	}
	if o.TLSConfig, err = query.TLS(secure, "use the scheme "+strings.Replace(u.Scheme, "redis", "rediss", 1)); err != nil {
		return fail("%w", err)
	}
	if o.TLSConfig != nil {
		if o.TLSConfig.ServerName == "" && mode == Standalone {
			o.TLSConfig.ServerName = u.Hostname()
		}
		o.Sentinel.TLSConfig = o.TLSConfig
	}
	if err := query.End(); err != nil {
		return fail("%w", err)
	}
	return o, mode, []Option{func(to *config) {
		to.replicas, to.ackTimeout, to.insist = c.replicas, c.ackTimeout, c.insist
		to.layout, to.fairWait = c.layout, c.fairWait
	}}, nil
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
