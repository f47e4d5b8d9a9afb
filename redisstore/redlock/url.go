package redlock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
	"github.com/holdfast-go/holdfast/redisstore"
)

func init() {
	for _, scheme := range []string{"redlock", "redlocks"} {
		driver.Register(scheme, func(ctx context.Context, u *url.URL, namespace string) (driver.Store, error) {
			s, err := openParsed(ctx, u, []Option{Namespace(namespace)})
			if err != nil {
				return nil, err // not s: an interface with a nil *Store is not nil
			}
			return s, nil
		})
	}
}

// Open opens the locks on a fleet of servers. It does not connect yet. An option replaces the
// parameter of the URL.
//
//	redlock://[USER[:PASSWORD]@][HOST[:PORT]][/DB]?node=HOST[:PORT]&node=HOST[:PORT]...
//
// The host, if there is one, is the first server, and each node a further one. User,
// password and database are the same everywhere. With redlocks instead of redlock
// connections use TLS. The default port is 6379. Parameters, all optional:
//
//	max_ttl=1m        as MaxTTL
//	skew=500ms        as Skew
//	layout=redsync    as Redsync
//	fresh=true        as Fresh
//	insist=true, ca=FILE, cert=FILE, key=FILE, server_name=NAME, require_tls=true
//	                  as for the URLs of package redisstore
func Open(ctx context.Context, rawURL string, options ...Option) (*Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The errors of net/url quote the URL, which may contain a password.
		return nil, driver.Errorf(driver.CodeInvalid, "redlock: the URL cannot be read")
	}
	return openParsed(ctx, u, options)
}

func invalidURL(format string, args ...any) error {
	return driver.Errorf(driver.CodeInvalid, "redlock: "+format, args...)
}

func openParsed(ctx context.Context, u *url.URL, given []Option) (*Store, error) {
	scheme, ok := map[string]string{"redlock": "redis", "redlocks": "rediss"}[u.Scheme]
	if !ok {
		return nil, invalidURL("scheme %q: use redlock, or redlocks for TLS", u.Scheme)
	}
	options, hosts, passed, err := parseQuery(u)
	if err != nil {
		return nil, invalidURL("%w", err)
	}
	if u.Host != "" {
		hosts = append([]string{u.Host}, hosts...)
	}
	if len(hosts) == 0 {
		return nil, invalidURL("no servers are given, as in redlock://?node=one:6379&node=two:6379&node=three:6379")
	}
	var stores []*redisstore.Store
	closeAll := func() {
		for _, s := range stores {
			_ = s.Close(context.Background())
		}
	}
	for _, host := range hosts {
		one := url.URL{Scheme: scheme, User: u.User, Host: host, Path: u.Path, RawQuery: passed.Encode()}
		if one.Port() == "" { // so that a server that is given twice is found
			one.Host = net.JoinHostPort(one.Hostname(), "6379")
		}
		s, err := redisstore.Open(ctx, one.String())
		if err != nil {
			closeAll()
			return nil, err
		}
		stores = append(stores, s)
	}
	s, err := New(stores, append(options, given...)...)
	if err != nil {
		closeAll()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// parseQuery returns the options, the nodes, and the parameters that belong to the URL of each server.
func parseQuery(u *url.URL) (options []Option, nodes []string, passed url.Values, err error) {
	query, err := storeurl.Query(u, "redlock://?node=one:6379&node=two:6379&node=three:6379", "node")
	if err != nil {
		return nil, nil, nil, err
	}
	nodes = query.TakeAll("node")
	for _, host := range nodes {
		if host == "" || strings.ContainsAny(host, "/@?#") {
			err := errors.New("a node is HOST or HOST:PORT: user, password and database come before the parameters")
			return nil, nil, nil, err
		}
	}
	for _, p := range []struct {
		name   string
		option func(time.Duration) Option
	}{{"max_ttl", MaxTTL}, {"skew", Skew}} {
		switch d := query.Duration(p.name, -1); d {
		case -1:
		case 0:
			return nil, nil, nil, fmt.Errorf("%s 0: give a duration such as 500ms", p.name)
		default:
			options = append(options, p.option(d))
		}
	}
	switch layout := query.Take("layout"); layout {
	case "":
	case "redsync":
		options = append(options, Redsync())
	default:
		return nil, nil, nil, fmt.Errorf("layout %q: there is redsync, and without the parameter holdfast's own", layout)
	}
	if query.Choose("fresh", "false", "true") {
		options = append(options, Fresh())
	}
	passed = url.Values{}
	for _, name := range []string{"insist", "password_file", "ca", "cert", "key", "server_name", "require_tls"} {
		if v := query.Take(name); v != "" {
			passed.Set(name, v)
		}
	}
	return options, nodes, passed, query.End()
}
