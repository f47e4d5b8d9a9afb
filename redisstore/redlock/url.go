package redlock

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
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
//	insist=true, ca=FILE, cert=FILE, key=FILE, server_name=NAME
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
	switch {
	case !ok:
		return nil, invalidURL("scheme %q: use redlock, or redlocks for TLS", u.Scheme)
	case u.Opaque != "":
		return nil, invalidURL("write two slashes, as in redlock://?node=one:6379&node=two:6379&node=three:6379")
	case u.Fragment != "":
		return nil, invalidURL("a fragment has no meaning here: write # in a password as %%23")
	}
	options, hosts, passed, err := parseQuery(u.RawQuery)
	if err != nil {
		return nil, err
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
func parseQuery(raw string) (options []Option, nodes []string, passed url.Values, err error) {
	fail := func(format string, args ...any) ([]Option, []string, url.Values, error) {
		return nil, nil, nil, invalidURL(format, args...)
	}
	query, err := url.ParseQuery(raw)
	if err != nil {
		return fail("the parameters of the URL cannot be read")
	}
	passed = url.Values{}
	for name, values := range query {
		if name != "node" && len(values) > 1 {
			return fail("parameter %s is given more than once", name)
		}
		v := values[0]
		switch name {
		case "node":
			for _, host := range values {
				if host == "" || strings.ContainsAny(host, "/@?#") {
					return fail("a node is HOST or HOST:PORT: user, password and database come before the parameters")
				}
				nodes = append(nodes, host)
			}
		case "max_ttl", "skew":
			d, err := time.ParseDuration(v)
			if err != nil || d <= 0 {
				return fail("%s %q: give a duration such as 500ms", name, v)
			}
			if name == "skew" {
				options = append(options, Skew(d))
			} else {
				options = append(options, MaxTTL(d))
			}
		case "layout":
			if v != "redsync" {
				return fail("layout %q: there is redsync, and without the parameter holdfast's own", v)
			}
			options = append(options, Redsync())
		case "fresh":
			fresh, err := strconv.ParseBool(v)
			if err != nil {
				return fail("fresh %q: give true or false", v)
			}
			if fresh {
				options = append(options, Fresh())
			}
		case "insist", "ca", "cert", "key", "server_name":
			passed.Set(name, v)
		default:
			return fail("unknown parameter %q: there are node, max_ttl, skew, layout, fresh, insist, ca, cert, key, server_name", name)
		}
	}
	return options, nodes, passed, nil
}
