package natsstore

import (
	"context"
	"crypto/x509"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

func init() {
	driver.Register("nats", func(_ context.Context, u *url.URL, namespace string) (driver.Store, error) {
		return open(u, namespace)
	})
}

// Store is one client of a bucket.
type Store struct {
	*record.Store
	bucket  *bucket
	exposed string
}

// Exposed implements [driver.Exposer].
func (s *Store) Exposed() string { return s.exposed }

// Open opens the locks of a namespace in the bucket of a URL; see the package comment. A server or a bucket that
// cannot be reached is no error. A server that refuses the user is one.
func Open(_ context.Context, rawURL, namespace string) (*Store, error) {
	u, err := storeurl.Parse(rawURL, "nats")
	if err == nil {
		err = driver.CheckNamespace(namespace)
	}
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "natsstore: %w", err)
	}
	return open(u, namespace)
}

var bucketName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

func open(u *url.URL, namespace string) (*Store, error) {
	bad := func(format string, args ...any) (*Store, error) {
		return nil, driver.Errorf(driver.CodeInvalid, "NATS URL: "+format, args...)
	}
	const form = "nats://host1,host2/?bucket=NAME"
	q, err := storeurl.Query(u, form)
	if err != nil {
		return bad("%w", err)
	}
	b := &bucket{name: q.Take("bucket")}
	if u.Host == "" || strings.Trim(u.Path, "/") != "" || !bucketName.MatchString(b.name) {
		return bad("give %s, with letters, digits, _ and - in the name", form)
	}
	o := nats.GetDefaultOptions()
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "4222")
		}
		o.Servers = append(o.Servers, "nats://"+host)
	}
	if o.User = u.User.Username(); o.User != "" {
		password := q.Password(u)
		if _, inURL := u.User.Password(); inURL {
			o.Password = password()
		} else if name := o.User; password() != "" {
			o.User, o.UserInfo = "", func() (string, string) { return name, password() }
		} else {
			o.User, o.Token = "", name
		}
	}
	creds := q.Take("creds")
	if creds != "" {
		if err := nats.UserCredentials(creds)(&o); err != nil {
			return bad("creds: %w", err)
		}
	}
	o.Secure = q.Choose("tls", "false", "true")
	if t := q.TLS(o.Secure, "give tls=true"); t != nil {
		o.TLSConfig = t()
		o.RootCAsCB = func() (*x509.CertPool, error) { return t().RootCAs, nil }
	}
	exposed := q.Protect(storeurl.Protection{Hosts: strings.Split(u.Host, ","), Verified: o.Secure,
		Password: o.Password+o.Token+creds != "" || o.UserInfo != nil, How: "give tls=true"})
	skew := q.Duration("skew", 500*time.Millisecond)
	b.replicas = q.Int("replicas", 1)
	if err := q.End(); err != nil {
		return bad("%w", err)
	}
	if skew < 10*time.Millisecond || skew > 10*time.Second {
		return bad("skew: give 10ms to 10s")
	}
	if b.replicas < 1 || b.replicas > 5 {
		return bad("replicas: give 1 to 5")
	}
	b.wakes = "holdfast.wake." + b.name + "." + encode("\x00" + namespace)[1:]
	if err := b.connect(o); err != nil {
		return nil, err
	}
	where := "nats://" + u.Host + " bucket " + b.name
	if namespace != "" {
		where += " (namespace " + namespace + ")"
	}
	return &Store{bucket: b, exposed: exposed, Store: record.New(b, where, declared(),
		record.Options{Namespace: namespace, Skew: func() time.Duration { return skew }})}, nil
}

// declared returns what the store guarantees.
func declared() driver.Guarantees {
	return driver.Guarantees{Kind: "nats", Scope: driver.ScopeNetwork, Reach: "every client of the same bucket",
		EarlyEnd: []string{"acknowledged writes that servers without sync_interval=always lose in a power failure",
			"the bucket deleted or restored", "clocks of two servers that differ by more than skew"},
		Notes: []string{"a grant of a dead client stands longer than its TTL, by skew",
			"a value's Put that was applied may report a conflict, and an Update then applies its function twice: only if " +
				"a former leader answers first and another client replaces the value before the store reads it"},
	}
}
