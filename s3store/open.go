package s3store

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/gather"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

func init() {
	driver.Register("s3", func(_ context.Context, u *url.URL, namespace string) (driver.Store, error) {
		return open(u, namespace, nil)
	})
}

// Store is one client of a bucket.
type Store struct {
	*record.Store
	exposed string
}

// Exposed implements [driver.Exposer].
func (s *Store) Exposed() string { return s.exposed }

// Open opens the locks of a namespace in the bucket of a URL; see the package comment. The first request probes the
// server. A server that cannot be reached is no error.
func Open(_ context.Context, rawURL, namespace string) (*Store, error) {
	return OpenWithKeys(rawURL, namespace, nil)
}

// OpenWithKeys is [Open] with a function that returns the credentials of each request, for example the temporary
// ones of a role. The function returns soon after its context ends.
func OpenWithKeys(rawURL, namespace string, keys func(context.Context) (Keys, error)) (*Store, error) {
	u, err := storeurl.Parse(rawURL, "s3")
	if err == nil {
		err = driver.CheckNamespace(namespace)
	}
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "s3store: %w", err)
	}
	return open(u, namespace, keys)
}

var (
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixPart = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)
	regionName = regexp.MustCompile(`^[a-z0-9-]+$`)
)

// tick is the precision of the times in HTTP.
const tick = time.Second

func open(u *url.URL, namespace string, keys func(context.Context) (Keys, error)) (*Store, error) {
	bad := func(format string, args ...any) (*Store, error) {
		return nil, driver.Errorf(driver.CodeInvalid, "S3 URL: "+format, args...)
	}
	const form = "s3://bucket/prefix?region=REGION&endpoint=https://HOST"
	q, err := storeurl.Query(u, form)
	if err != nil {
		return bad("%w", err)
	}
	prefix := strings.TrimPrefix(u.Path, "/")
	for part := range strings.SplitSeq(strings.TrimSuffix(prefix, "/"), "/") {
		if !bucketName.MatchString(u.Host) || len(prefix) > 200 || prefix != "" && !prefixPart.MatchString(part) {
			return bad("give %s, with the name of a bucket, and a prefix of at most 200 letters, digits, dots, _, - and "+
				"slashes", form)
		}
	}
	if prefix != "" {
		prefix = strings.TrimSuffix(prefix, "/") + "/"
	}
	region := cmp.Or(q.Take("region"), os.Getenv("AWS_REGION"), "us-east-1")
	if !regionName.MatchString(region) {
		return bad("region %q: give letters, digits and -", region)
	}
	endpoint := q.Take("endpoint")
	root := "https://" + u.Host + ".s3." + region + ".amazonaws.com/"
	if endpoint != "" {
		root = strings.TrimSuffix(endpoint, "/") + "/" + u.Host + "/"
	} else if strings.Contains(u.Host, ".") { // the certificate is not valid for such a name
		root = "https://s3." + region + ".amazonaws.com/" + u.Host + "/"
	}
	at, err := url.Parse(endpoint)
	if endpoint != "" && (err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" ||
		strings.Trim(at.Path, "/") != "" || at.RawQuery+at.Fragment != "" || at.User != nil) {
		return bad("endpoint: give http://HOST or https://HOST, and a port")
	}
	if keys == nil {
		k := Keys{ID: os.Getenv("AWS_ACCESS_KEY_ID"), Secret: os.Getenv("AWS_SECRET_ACCESS_KEY"),
			Session: os.Getenv("AWS_SESSION_TOKEN")}
		if u.User != nil {
			k = Keys{ID: u.User.Username()}
			k.Secret, _ = u.User.Password()
		}
		if k.ID == "" || k.Secret == "" {
			return bad("give s3://KEY:SECRET@bucket, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
		}
		keys = func(context.Context) (Keys, error) { return k, nil }
	}
	const how = "give endpoint=https://HOST"
	secure := strings.HasPrefix(root, "https:")
	t := q.TLS(secure, how)
	where, _ := url.Parse(root)
	exposed := q.Protect(storeurl.Protection{Hosts: []string{where.Host}, Verified: secure, Password: true, How: how})
	skew := q.Duration("skew", time.Second)
	if err := q.End(); err != nil {
		return bad("%w", err)
	}
	if skew < 0 || skew > time.Minute {
		return bad("skew: give 0s to 1m")
	}
	b := &bucket{root: root, prefix: prefix, skew: skew}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second,
		DialContext: b.reached.Through((&net.Dialer{Timeout: 2 * time.Second}).DialContext), TLSHandshakeTimeout: 4 * time.Second}
	if t != nil {
		transport.TLSClientConfig = t() // behind a proxy
		transport.DialTLSContext = b.reached.Through(func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 4 * time.Second}, Config: t()}).DialContext(ctx, network, address)
		})
	}
	b.client = &http.Client{Transport: &signer{region: region, keys: keys, Transport: transport}}
	b.ctx, b.end = context.WithCancel(context.Background())
	b.probes = gather.New(1, b.probe)
	name := "s3://" + u.Host + "/" + prefix
	if endpoint != "" {
		name += " at " + where.Host
	}
	if namespace != "" {
		name += " (namespace " + namespace + ")"
	}
	return &Store{exposed: exposed, Store: record.New(b, name, declared(skew),
		record.Options{Namespace: namespace, Skew: func() time.Duration { return tick + skew }})}, nil
}

// declared returns what the store guarantees. A grant lasts from a time with seconds, which may be a second old.
func declared(skew time.Duration) driver.Guarantees {
	return driver.Guarantees{Kind: "s3", Scope: driver.ScopeNetwork, Reach: "every client of the same bucket and prefix", Granularity: 2*tick + skew,
		EarlyEnd: []string{"clocks of two servers that differ by more than skew",
			"objects that a lifecycle rule deletes, or a replica that takes over without them"},
		Notes: []string{"a grant of a dead client stands longer than its TTL, by up to two seconds and skew",
			"the probe has seen that the server compares and writes in one step; it cannot prove it for every moment"},
	}
}
