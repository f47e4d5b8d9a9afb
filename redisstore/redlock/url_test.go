package redlock

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestOpenParsesURLs requires that Open parses URLs, without a connection to a server.
func TestOpenParsesURLs(t *testing.T) {
	for _, c := range []struct {
		url, namespace, where string
		config                config
	}{
		{url: "redlock://?node=one&node=two:7000&node=three", where: "redlock over redis://one:6379, redis://two:7000, redis://three:6379"},
		{url: "redlock://one:7000?node=two&node=three", where: "redlock over redis://one:7000, redis://two:6379, redis://three:6379"},
		{url: "redlock://u:p%23w@one/3?node=two&node=three", namespace: "app", config: config{namespace: "app"}},
		{url: "redlocks://one?node=two&node=three&server_name=fleet", where: "redlock over rediss://one:6379, rediss://two:6379, rediss://three:6379"},
		{url: "redlock://[::1]?node=[::1]:2&node=[::1]:3", where: "redlock over redis://[::1]:6379, redis://[::1]:2, redis://[::1]:3"},
		{url: "redlock://?node=a&node=b&node=c&max_ttl=5m&skew=1s&layout=redsync&fresh=true",
			config: config{maxTTL: 5 * time.Minute, skew: time.Second, redsync: true, fresh: true}},
	} {
		s, err := Open(t.Context(), c.url, Namespace(c.namespace))
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if c.where != "" && s.String() != c.where {
			t.Errorf("%s: %s, want %s", c.url, s, c.where)
		}
		want := c.config
		if want.maxTTL == 0 {
			want.maxTTL, want.skew = defaultMaxTTL, defaultSkew
		}
		if s.cfg != want || strings.Contains(s.String(), "p#w") {
			t.Errorf("%s: %+v at %s, want %+v", c.url, s.cfg, s, want)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", c.url, err)
		}
	}
}

// TestOpenRefusesBadURLs requires that the error of a wrong URL names the mistake, and
// contains no password.
func TestOpenRefusesBadURLs(t *testing.T) {
	const three = "redlock://?node=a&node=b&node=c"
	for url, says := range map[string]string{
		"redis://one":                                 "use redlock",
		"redlock:one":                                 "give redlock://",
		three + "#rest":                               "%23",
		"redlock://u:secret%zz@one":                   "cannot be read",
		"redlock://one?node=%zz":                      "cannot be read",
		"redlock://":                                  "no servers",
		three + "&node=":                              "HOST:PORT",
		three + "&node=redis://d":                     "HOST:PORT",
		three + "&node=a":                             "given twice",
		three + "&node=a:6379":                        "given twice",
		three + "&node=d:port":                        "cannot be read",
		three + "&max_ttl=1m&max_ttl=2m":              "more than once",
		three + "&max_ttl=60":                         "max_ttl",
		three + "&max_ttl=-1m":                        "max_ttl",
		three + "&max_ttl=25h":                        "max_ttl",
		three + "&skew=0s":                            "skew",
		three + "&skew=1m":                            "skew",
		three + "&layout=redisson":                    "redsync",
		three + "&fresh=perhaps":                      "false or true",
		three + "&nodes=d":                            "nodes",
		three + "&ca=/none":                           "ca",
		"redlocks://?node=a&node=b&ca=/does/not/be":   "/does/not/be",
		"redlock://u:secret@one/seven?node=two":       "database",
		"redlock://?" + strings.Repeat("node=a&", 16): "at most 15",
	} {
		s, err := Open(t.Context(), url)
		if driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want an error of code Invalid with %q", url, err, says)
		}
		if s != nil {
			_ = s.Close(t.Context())
		}
	}
	if _, err := Open(t.Context(), three, Namespace(strings.Repeat("n", 129))); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("a namespace of 129 bytes: %v", err)
	}
}

// TestWarnsOfTheNumberOfServers requires a warning for an even number of servers, and for
// fewer than three.
func TestWarnsOfTheNumberOfServers(t *testing.T) {
	for n, warns := range map[int]bool{1: true, 2: true, 3: false, 4: true, 5: false, 6: true, 7: false} {
		nodes := slices.Repeat([]string{"node=h:"}, n)
		for i := range nodes {
			nodes[i] += string(rune('1' + i))
		}
		s, err := Open(t.Context(), "redlock://?"+strings.Join(nodes, "&"))
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(s.guarantees().Notes, "\n")
		if strings.Contains(notes, "WARNING: use 3, 5 or 7 servers") != warns {
			t.Errorf("%d servers: %s", n, notes)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
