package server

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestParseURL(t *testing.T) {
	for _, c := range []struct {
		url       string
		mode      Mode
		addresses []string
		user, pw  string
		db        int
		secure    bool
		master    string
	}{
		{url: "redis://host", addresses: []string{"host:6379"}},
		{url: "redis://host:7000/3", addresses: []string{"host:7000"}, db: 3},
		{url: "redis://[::1]", addresses: []string{"[::1]:6379"}},
		{url: "redis://u:p%23w@host", addresses: []string{"host:6379"}, user: "u", pw: "p#w"},
		{url: "redis://:pw@host/", addresses: []string{"host:6379"}, pw: "pw"},
		{url: "rediss://host", addresses: []string{"host:6379"}, secure: true},
		{url: "redis+sentinel://host/mymaster/2?addr=other&addr=third:1", mode: Sentinel, addresses: []string{"host:26379", "other:26379", "third:1"}, master: "mymaster", db: 2},
		{url: "rediss+sentinel://host/m?sentinel_user=su&sentinel_password=sp", mode: Sentinel, addresses: []string{"host:26379"}, master: "m", secure: true},
		{url: "redis+cluster://host?addr=other:7001", mode: Cluster, addresses: []string{"host:6379", "other:7001"}},
		{url: "rediss+cluster://host/0", mode: Cluster, addresses: []string{"host:6379"}, secure: true},
	} {
		u, err := url.Parse(c.url)
		must.Succeed(t, err)
		target, err := parseURL(u)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		o, mode := target.client, target.mode
		if mode != c.mode || !slices.Equal(o.Addrs, c.addresses) || target.login.user != c.user || target.login.password() != c.pw || o.DB != c.db ||
			(target.tls != nil) != c.secure || o.MasterName != c.master {
			t.Errorf("%s: %v %+v", c.url, mode, o)
		}
		if c.secure && mode != Standalone && target.tls().ServerName != "" {
			t.Errorf("%s: certificates of all nodes would have to be for %q", c.url, target.tls().ServerName)
		}
	}
	u, _ := url.Parse("redis+sentinel://host/m?sentinel_user=su&sentinel_password=sp")
	target, err := parseURL(u)
	must.Succeed(t, err)
	if o := target.client; o.SentinelUsername != "su" || o.SentinelPassword != "sp" || target.login.password() != "" {
		t.Errorf("%+v", o)
	}
	u, _ = url.Parse("redis://host?replicas=2&replica_wait=300ms&insist=true")
	if target, err = parseURL(u); err != nil {
		t.Fatal(err)
	}
	if c, err := Configure(target.Options(nil)); err != nil || c.Replicas != 2 || c.AckTimeout != 300*time.Millisecond || !c.Insist {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestBadURLErrorHidesPassword requires that the error of a wrong URL names the mistake, and never shows a
// password.
func TestBadURLErrorHidesPassword(t *testing.T) {
	for _, c := range []struct{ url, says string }{
		{"redis:host", "host is missing"},
		{"redis://u:secret@", "host is missing"},
		{"redis://u:secret@host:0", "ports are"},
		{"redis://u:secret@host:99999", "ports are"},
		{"redis://u:secret@host/x", "give a number"},
		{"redis://u:secret@host/-1", "give a number"},
		{"redis://u:secret@host/1/2", "nothing may follow"},
		{"redis://u:secret@host#x", "%23"},
		{"redis://u:secret@host?addr=x", "sentinels and clusters"},
		{"redis://u:secret@host?sentinel_password=secret", "for sentinels"},
		{"redis://u:secret@host?nonsense=secret", "nonsense"},
		{"redis://u:secret@host?replicas=many", "replicas"},
		{"redis://u:secret@host?replicas=1&replicas=2", "more than once"},
		{"redis://u:secret@host?replicas=101", "0 to 100"},
		{"redis://u:secret@host?replicas=1&replica_wait=2m", "1ms to 1m"},
		{"redis://u:secret@host?replica_wait=soon", "duration"},
		{"redis://u:secret@host?replicas=1&replica_wait=", "replica_wait is empty"},
		{"redis://u:secret@host?replicas=-1", "0 to 100"},
		{"redis://u:secret@host?insist=perhaps", "false or true"},
		{"redis://u:secret@host?ca=/tmp/ca.pem", "rediss"},
		{"rediss://u:secret@host?ca=/does/not/exist", "ca"},
		{"rediss://u:secret@host?cert=/does/not/exist&key=/does/not", "cert and key"},
		{"redis+sentinel://u:secret@host", "name of the primary"},
		{"redis+sentinel://u:secret@host/", "name of the primary"},
		{"redis+cluster://u:secret@host/1", "only database 0"},
		{"redis+ring://u:secret@host", "scheme"},
		{"http://u:secret@host", "scheme"},
		{"redis://u:secret@host\x7f", "cannot be read"},
	} {
		target, err := ParseURL(c.url)
		if err == nil {
			_, err = Configure(target.Options(nil))
		}
		if driver.CodeOf(err) != driver.CodeInvalid || err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") && !strings.Contains(err.Error(), "sentinel_password") {
			t.Errorf("%s: %v; want it to say %q", c.url, err, c.says)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("redis://u:p@host:1/2?replicas=1")
	f.Add("rediss+sentinel://h/m?addr=x")
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.Parse(raw)
		if err != nil {
			return
		}
		if target, err := parseURL(u); err == nil && (len(target.client.Addrs) == 0 || target.client.DB < 0) {
			t.Errorf("%q: %+v", raw, target.client)
		}
	})
}
