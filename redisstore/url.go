package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-go/holdfast/driver"
)

func init() {
	for _, scheme := range []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"} {
		driver.Register(scheme, openURL)
	}
}

func openURL(_ context.Context, u *url.URL, namespace string) (driver.Store, error) {
	s, err := openParsed(u, Namespace(namespace))
	if err != nil {
		return nil, err // a nil *Store is no nil Store
	}
	return s, nil
}

// Open opens the locks on the server that a URL names. It does not connect yet.
//
//	redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]
//	redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT]/MASTER[/DB]   HOST is a sentinel
//	redis+cluster://[USER[:PASSWORD]@]HOST[:PORT]
//
// With rediss instead of redis connections use TLS. The default ports are 6379,
// for a sentinel 26379. Parameters, all optional:
//
//	addr=HOST:PORT            another sentinel, or node of a cluster; may be repeated
//	sentinel_user, sentinel_password
//	replicas=N                as WaitReplicas
//	replica_wait=1s
//	insist=true               as Insist
//	ca=FILE                   PEM certificates to trust instead of the system's
//	cert=FILE, key=FILE       the client's own certificate
//	server_name=NAME          what the server's certificate must be for
func Open(rawURL string, options ...Option) (*Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		// The reasons of net/url quote what may be a password.
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: the URL cannot be read")
	}
	return openParsed(u, options...)
}

type tlsFiles struct{ ca, cert, key, serverName string }

func openParsed(u *url.URL, options ...Option) (*Store, error) {
	o, mode, fromURL, err := parseURL(u)
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: URL %s: %w", place(u), err)
	}
	c, err := configure(append(fromURL, options...))
	if err != nil {
		return nil, err
	}
	return newStore(newRueidis(o, mode, place(u)), c), nil
}

// place is a URL without what may be secret.
func place(u *url.URL) string {
	w := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if name := u.User.Username(); name != "" {
		w.User = url.User(name)
	}
	return w.String()
}

func parseURL(u *url.URL) (o rueidis.ClientOption, mode Mode, options []Option, err error) {
	fail := func(format string, args ...any) (rueidis.ClientOption, Mode, []Option, error) {
		return o, mode, nil, fmt.Errorf(format, args...)
	}
	base, kind, _ := strings.Cut(u.Scheme, "+")
	secure := base == "rediss"
	port := "6379"
	switch kind {
	case "":
	case "sentinel":
		mode, port = Sentinel, "26379"
	case "cluster":
		mode = Cluster
	}
	switch {
	case base != "redis" && base != "rediss" || u.Scheme != base && kind != "sentinel" && kind != "cluster":
		return fail("scheme %q: use redis, redis+sentinel or redis+cluster, or rediss in the place of redis for TLS", u.Scheme)
	case u.Opaque != "":
		return fail("write two slashes, as in redis://localhost:6379")
	case u.Fragment != "":
		return fail("a fragment has no meaning here: write # in a password as %%23")
	case u.Hostname() == "":
		return fail("the host is missing, as in redis://localhost:6379")
	}
	address := func(hostport string) (string, error) {
		host, p, err := net.SplitHostPort(hostport)
		if err != nil {
			host, p = strings.Trim(hostport, "[]"), port
		}
		if p == "" {
			p = port
		}
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 || host == "" {
			return "", fmt.Errorf("address %q: give HOST or HOST:PORT, ports are 1 to 65535", hostport)
		}
		return net.JoinHostPort(host, p), nil
	}
	first, err := address(u.Host)
	if err != nil {
		return fail("%w", err)
	}
	o.InitAddress = []string{first}
	o.Username = u.User.Username()
	o.Password, _ = u.User.Password()

	path := strings.Split(strings.Trim(u.Path, "/"), "/")
	if mode == Sentinel {
		if path[0] == "" {
			return fail("the name of the primary is missing, as in redis+sentinel://HOST/mymaster")
		}
		o.Sentinel.MasterSet, path = path[0], path[1:]
	}
	if len(path) > 1 {
		return fail("path %q: nothing may follow the database number", u.Path)
	}
	if len(path) == 1 && path[0] != "" {
		if o.SelectDB, err = strconv.Atoi(path[0]); err != nil || o.SelectDB < 0 {
			return fail("database %q: give a number", path[0])
		}
		if mode == Cluster && o.SelectDB != 0 {
			return fail("database %d: a Redis Cluster has database 0 alone", o.SelectDB)
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("its parameters cannot be read")
	}
	var c config
	for name, values := range query {
		if len(values) > 1 && name != "addr" {
			return fail("parameter %s is given more than once", name)
		}
		v := values[0]
		switch name {
		case "addr":
			if mode == Standalone {
				return fail("parameter addr is for sentinels and clusters")
			}
			for _, v := range values {
				a, err := address(v)
				if err != nil {
					return fail("%w", err)
				}
				o.InitAddress = append(o.InitAddress, a)
			}
		case "sentinel_user", "sentinel_password":
			if mode != Sentinel {
				return fail("parameter %s is for sentinels", name)
			}
			if name == "sentinel_user" {
				o.Sentinel.Username = v
			} else {
				o.Sentinel.Password = v
			}
		case "replicas":
			if c.replicas, err = strconv.Atoi(v); err != nil {
				return fail("replicas %q: give a number", v)
			}
		case "replica_wait":
			if c.patience, err = time.ParseDuration(v); err != nil {
				return fail("replica_wait %q: give a duration such as 500ms", v)
			}
		case "insist":
			if c.insist, err = strconv.ParseBool(v); err != nil {
				return fail("insist %q: give true or false", v)
			}
		case "ca":
			c.tls.ca = v
		case "cert":
			c.tls.cert = v
		case "key":
			c.tls.key = v
		case "server_name":
			c.tls.serverName = v
		default:
			return fail("unknown parameter %q: there are addr, sentinel_user, sentinel_password, replicas, replica_wait, insist, ca, cert, key, server_name", name)
		}
	}
	if secure {
		if o.TLSConfig, err = c.tls.load(u.Hostname(), mode); err != nil {
			return fail("%w", err)
		}
		o.Sentinel.TLSConfig = o.TLSConfig
	} else if c.tls != (tlsFiles{}) {
		return fail("ca, cert, key and server_name are for TLS: use the scheme %s", strings.Replace(u.Scheme, "redis", "rediss", 1))
	}
	return o, mode, []Option{func(to *config) {
		to.replicas, to.patience, to.insist = c.replicas, c.patience, c.insist
	}}, nil
}

func (f tlsFiles) load(host string, mode Mode) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.serverName}
	if t.ServerName == "" && mode == Standalone {
		t.ServerName = host
	}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca %q holds no certificate in PEM", f.ca)
		}
	}
	if f.cert != "" || f.key != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}
