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
			s, err := openParsed(ctx, u, namespace)
			if err != nil {
				return nil, err // not s: an interface with a nil *Store is not nil
			}
			return s, nil
		})
	}
}

// Open opens the locks on a fleet of servers, in a namespace, which may be empty. It
// does not connect yet.
//
//	redlock://[USER[:PASSWORD]@][HOST[:PORT]][/DB]?node=HOST[:PORT]&node=HOST[:PORT]...
//
// The host, if there is one, is the first server, and each node a further one. User,
// password and database are the same everywhere. With redlocks instead of redlock
// connections use TLS. The default port is 6379. Parameters, all optional:
//
//	max_ttl=1m        as Config.MaxTTL
//	skew=500ms        as Config.Skew
//	layout=redsync    as Config.Redsync
//	fresh=true        as Config.Fresh
//	insist=true, ca=FILE, cert=FILE, key=FILE, server_name=NAME
//	                  as for the URLs of package redisstore
func Open(ctx context.Context, rawURL, namespace string) (*Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The errors of net/url quote the URL, which may contain a password.
		return nil, driver.Errorf(driver.CodeInvalid, "redlock: the URL cannot be read")
	}
	return openParsed(ctx, u, namespace)
}

func invalidURL(format string, args ...any) error {
	return driver.Errorf(driver.CodeInvalid, "redlock: "+format, args...)
}

func openParsed(ctx context.Context, u *url.URL, namespace string) (*Store, error) {
	scheme, ok := map[string]string{"redlock": "redis", "redlocks": "rediss"}[u.Scheme]
	switch {
	case !ok:
		return nil, invalidURL("scheme %q: use redlock, or redlocks for TLS", u.Scheme)
	case u.Opaque != "":
		return nil, invalidURL("write two slashes, as in redlock://?node=one:6379&node=two:6379&node=three:6379")
	case u.Fragment != "":
		return nil, invalidURL("a fragment has no meaning here: write # in a password as %%23")
	}
	c, hosts, passed, err := parseQuery(u.RawQuery)
	if err != nil {
		return nil, err
	}
	c.Namespace = namespace
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
	s, err := c.New(stores...)
	if err != nil {
		closeAll()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// parseQuery returns the settings, the nodes, and the parameters that belong to the URL of each server.
func parseQuery(raw string) (c Config, nodes []string, passed url.Values, err error) {
	fail := func(format string, args ...any) (Config, []string, url.Values, error) {
		return Config{}, nil, nil, invalidURL(format, args...)
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
				c.Skew = d
			} else {
				c.MaxTTL = d
			}
		case "layout":
			if v != "redsync" {
				return fail("layout %q: there is redsync, and without the parameter holdfast's own", v)
			}
			c.Redsync = true
		case "fresh":
			if c.Fresh, err = strconv.ParseBool(v); err != nil {
				return fail("fresh %q: give true or false", v)
			}
		case "insist", "ca", "cert", "key", "server_name":
			passed.Set(name, v)
		default:
			return fail("unknown parameter %q: there are node, max_ttl, skew, layout, fresh, insist, ca, cert, key, server_name", name)
		}
	}
	return c, nodes, passed, nil
}
