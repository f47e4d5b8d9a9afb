package zkstore

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// Layout is the form in which locks are stored. Curator's recipes do not exclude one another,
// so all clients below one root must use the same layout.
type Layout string

// The layouts.
const (
	// ReadWrite is Curator's InterProcessReadWriteLock: its writer is exclusive, its reader
	// shared, and permits are further nodes of the same queue. It is the default.
	ReadWrite Layout = "readwrite"
	// Mutex is Curator's InterProcessMutex, and go-zookeeper's Lock.
	Mutex Layout = "mutex"
	// Semaphore is Curator's InterProcessSemaphoreV2. All clients must use the same limit for
	// a name.
	Semaphore Layout = "semaphore"
)

// defaultTick is ZooKeeper's default of tickTime.
const defaultTick = 2 * time.Second

// defaultBreakGrace is how long Break waits for a holder to end by itself.
const defaultBreakGrace = 5 * time.Second

// Option configures a store.
type Option func(*config)

type config struct {
	namespace string
	chroot    string
	layout    Layout
	tick      time.Duration
	grace     time.Duration
	auth      []zk.Auth
	acl       []zk.ACL
	tls       func() *tls.Config // of the next connection; nil without TLS
	required  bool               // TLS
	exposed   string             // see Exposed
	room      int                // the number of tokens that each node has room for
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
}

// Namespace separates the names of this store from the names in other namespaces below the
// same root. The default is empty.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// Root is the node below which the store keeps everything, such as /locks. The store creates
// it and the nodes above it. The default is the server's root.
func Root(path string) Option { return func(c *config) { c.chroot = path } }

// WithLayout selects the layout. The default is ReadWrite.
func WithLayout(l Layout) Option { return func(c *config) { c.layout = l } }

// Tick is the servers' tickTime, which a client cannot read: default 2 s, as ZooKeeper's. The
// validity of a lock depends on it, so it must not be smaller than the servers' value. A
// larger value costs only slower heartbeats and longer sessions. The store refuses a server
// whose shortest session timeout shows that it ticks slower.
func Tick(d time.Duration) Option { return func(c *config) { c.tick = d } }

// BreakGrace is how long Break waits for the notified holder to release, before it deletes the holder's
// node. The default is 5 s.
func BreakGrace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// Digest authenticates each connection as a user, by ZooKeeper's digest scheme.
func Digest(user, password string) Option {
	return func(c *config) {
		c.auth = append(c.auth, zk.Auth{Scheme: "digest", Data: []byte(user + ":" + password)})
	}
}

// CreatorOnly gives all rights on the store's nodes to the authenticated user alone: the user of Digest or
// of the client certificate. By default every user has them, as with Curator.
func CreatorOnly() Option { return func(c *config) { c.acl = zk.Creator } }

// TLS uses TLS for all connections. Without a ServerName it verifies each server's own host.
func TLS(t *tls.Config) Option {
	return func(c *config) {
		if c.tls = nil; t != nil {
			c.tls = t.Clone
		}
	}
}

// PlainTokens makes the czxid of a grant's node its token, for programs that compare it with the czxids of other
// clients. Without this option tokens are larger, and up to 64 lockers of a process that follow one another share a
// grant, each with a token of its own. All clients of a lock must use the same option.
func PlainTokens() Option { return func(c *config) { c.room = 1 } }

// Dial opens the connections instead of a net.Dialer; TLS is added on top.
func Dial(f func(ctx context.Context, network, address string) (net.Conn, error)) Option {
	return func(c *config) { c.dial = f }
}

const (
	minTick = 10 * time.Millisecond
	maxTick = time.Minute
)

func configure(servers []string, options []Option) (config, []string, error) {
	c := config{layout: ReadWrite, tick: defaultTick, room: tokenRoom, grace: defaultBreakGrace, acl: zk.Everyone, dial: (&net.Dialer{}).DialContext}
	for _, o := range options {
		o(&c)
	}
	bad := func(format string, args ...any) (config, []string, error) {
		return c, nil, driver.Errorf(driver.CodeInvalid, "zkstore: "+format, args...)
	}
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return bad("%w", err)
	}
	if why := checkChroot(c.chroot); why != "" {
		return bad("root %q: %s; give an absolute path such as /locks", c.chroot, why)
	}
	switch {
	case !slices.Contains([]Layout{ReadWrite, Mutex, Semaphore}, c.layout):
		return bad("layout %q: give %s, %s or %s", c.layout, ReadWrite, Mutex, Semaphore)
	case c.tick < minTick || c.tick > maxTick:
		return bad("tick %s: from %s to %s is allowed", c.tick, minTick, maxTick)
	case c.grace < 0 || c.grace > time.Hour:
		return bad("break grace %s: from 0 to 1h is allowed", c.grace)
	case len(c.acl) > 0 && c.acl[0].Scheme == "auth" && len(c.auth) == 0 && !c.certified():
		return bad("CreatorOnly without a user: give one with Digest, or a client certificate with TLS")
	case len(servers) == 0:
		return bad("no server is given: give host or host:port")
	}
	for _, a := range c.auth {
		if user, password, _ := strings.Cut(string(a.Data), ":"); user == "" || password == "" {
			return bad("Digest: the user or the password is empty")
		}
	}
	all := make([]string, len(servers))
	for i, s := range servers {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = strings.Trim(s, "[]"), "2181"
		}
		if host == "" || strings.ContainsAny(host, "/@ ") || port == "" {
			return bad("server %q: give host or host:port", s)
		}
		all[i] = net.JoinHostPort(host, port)
	}
	verified, password := c.tls != nil && storeurl.Verifies(c.tls()), len(c.auth) > 0
	p := storeurl.Protection{Hosts: all, Verified: verified, Password: password, How: "give tls=true"}
	var err error
	if c.exposed, err = p.Check(c.required); err != nil {
		return bad("%w", err)
	}
	return c, all, nil
}

// certified reports whether TLS authenticates the client.
func (c *config) certified() bool {
	if c.tls == nil {
		return false
	}
	t := c.tls()
	return len(t.Certificates) > 0 || t.GetClientCertificate != nil
}

// dialer returns Dial, with TLS on top if configured.
func (c *config) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	if c.tls == nil {
		return c.dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := c.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		t := c.tls()
		if t.ServerName == "" && !t.InsecureSkipVerify {
			t.ServerName, _, _ = net.SplitHostPort(address)
		}
		secure := tls.Client(nc, t)
		if err := secure.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		return secure, nil
	}
}

func init() { driver.Register("zk", openURL) }

func openURL(_ context.Context, u *url.URL, namespace string) (driver.Store, error) {
	s, err := openParsed(u, Namespace(namespace))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// parseURL reads zk://[user:password@]host[:port][,host[:port]...]/root with the parameters
// layout, tick, grace, tokens=zxid, acl=creator, tls=true, ca, cert, key, server_name and require_tls=true.
func parseURL(u *url.URL) (servers []string, o []Option, err error) {
	bad := func(format string, args ...any) ([]string, []Option, error) {
		return nil, nil, driver.Errorf(driver.CodeInvalid, "zkstore: URL: "+format, args...)
	}
	if u.Opaque != "" || u.Host == "" {
		return bad("no host: write zk://host1:2181,host2:2181/root")
	}
	servers = strings.Split(u.Host, ",")
	if root := strings.TrimSuffix(u.Path, "/"); root != "" {
		o = append(o, Root(root))
	}
	if u.User != nil {
		password, given := u.User.Password()
		if !given {
			return bad("a user without a password: write user:password@")
		}
		o = append(o, Digest(u.User.Username(), password))
	}
	query, err := storeurl.Query(u, "zk://host1:2181,host2:2181/root")
	if err != nil {
		return bad("%w", err)
	}
	if l := query.Take("layout"); l != "" {
		o = append(o, WithLayout(Layout(l)))
	}
	for _, p := range []struct {
		name   string
		option func(time.Duration) Option
	}{{"tick", Tick}, {"grace", BreakGrace}} {
		if d := query.Duration(p.name, -1); d != -1 {
			o = append(o, p.option(d))
		}
	}
	if query.Choose("tokens", "reserved", "zxid") {
		o = append(o, PlainTokens())
	}
	if query.Choose("acl", "everyone", "creator") {
		o = append(o, CreatorOnly())
	}
	t := query.TLS(query.Choose("tls", "false", "true"), "give tls=true")
	required := query.Choose("require_tls", "false", "true")
	o = append(o, func(c *config) { c.tls, c.required = t, required })
	if err := query.End(); err != nil {
		return bad("%w", err)
	}
	return servers, o, nil
}
