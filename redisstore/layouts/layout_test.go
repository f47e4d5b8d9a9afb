package layouts

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

func open(t *testing.T, url string, l Layout, o ...Option) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, l, o...)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	t.Cleanup(func() {
		must.Report(t, s.Close(context.Background()))
	})
	return s
}

func TestFairWaitOfURL(t *testing.T) {
	for url, want := range map[string]time.Duration{
		"redis://h":                                    5 * time.Minute,
		"redis+cluster://h?layout=redisson-fair":       5 * time.Minute,
		"redis://h?layout=redisson-fair&fair_wait=20s": 20 * time.Second,
		"redis://h?fair_wait=20s":                      20 * time.Second,
	} {
		if got := open(t, url, RedissonFair).srv.Config.FairWait; got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
	if got := open(t, "redis://h?fair_wait=20s", RedissonFair, FairWait(time.Second)).srv.Config.FairWait; got != time.Second {
		t.Errorf("the option does not replace the URL's parameter: %s", got)
	}
}

func TestOpenRefusesWrongSettings(t *testing.T) {
	for _, c := range []struct {
		url    string
		layout Layout
		says   string
	}{
		{"redis://h", "redison", `layout "redison": there are plain, redisson, redisson-fair, redisson-fenced`},
		{"redis://h", "", `layout "": there are plain`},
		{"redis://h?layout=plain", Redisson, `the URL has the layout "plain"`},
		{"redis://h?fair_wait=1m", Plain, "only the layout redisson-fair has a fair lock"},
		{"redis://h?fair_wait=1ms", RedissonFair, "give 1s to 24h0m0s"},
		{"redis://h?fair_wait=later", RedissonFair, "give a duration"},
	} {
		if _, err := Open(t.Context(), c.url, c.layout); driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, layout %q: %v, want %q", c.url, c.layout, err, c.says)
		}
	}
	if _, err := New(nil, Plain); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("a client that is nil: %v", err)
	}
}

// TestNamesThatALayoutCarries requires that in a Cluster all keys of a name are in one hash slot,
// or that the store refuses the name.
func TestNamesThatALayoutCarries(t *testing.T) {
	for name, carried := range map[string]bool{
		"a": true, "a/b": true, "{a}b": true, "b{a}": true, "{a": false, "a{b": false, "a}": false, "a}b": false, "{}": false, "{}a": false,
		"a{}b{c}": false, "{a}{b}": true, "a{b}c}": true,
	} {
		for _, l := range All() {
			s := open(t, "redis+cluster://h", l)
			err := s.checkName(name)
			if (err == nil) != carried {
				t.Errorf("%s: %q: %v, want carried %t", l, name, err, carried)
			}
			for _, key := range append(s.keys(name), s.channel(name), stemOf(name)+":x:rwlock_timeout:1") {
				if carried && key != "" && server.HashTag(key) != server.HashTag(name) {
					t.Errorf("%s: %q: its key %q is in another hash slot", l, name, key)
				}
			}
		}
	}
	for _, l := range []Layout{RedissonFair, RedissonFenced, RedissonPermits} {
		s := open(t, "redis://h", l)
		if err := s.checkName("{a}"); driver.CodeOf(err) != driver.CodeUnsupported {
			t.Errorf("%s: {a} has keys in common with a: %v", l, err)
		}
	}
	if besideKey("a") == besideKey("{a}") {
		t.Error("two names have one key beside them")
	}
}

// TestOwnersOfALayout requires that the store writes an owner as Redisson does, and that no two
// requests share an owner. That holds for requests of one client and of two.
func TestOwnersOfALayout(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range []Layout{Redisson, RedissonReadWrite, RedissonPermits} {
		for range 2 {
			s := open(t, "redis://h", l)
			for _, id := range []string{"a", "b"} {
				own := s.owner(id, driver.Exclusive)
				if own != s.owner(id, driver.Exclusive) {
					t.Errorf("%s: an undo of %s would not find its owner", l, id)
				}
				if seen[own] {
					t.Errorf("%s: two requests have the owner %q", l, own)
				}
				seen[own] = true
				form := `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}:[0-9]{1,19}$`
				switch l {
				case RedissonReadWrite:
					if reader := s.owner(id, driver.Unlimited); reader+":write" != own {
						t.Errorf("a reader %q and a writer %q", reader, own)
					}
					own = strings.TrimSuffix(own, ":write")
				case RedissonPermits:
					if len(own) != 16 {
						t.Errorf("a permit of %d bytes", len(own))
					}
					continue
				}
				if !regexp.MustCompile(form).MatchString(own) {
					t.Errorf("%s: owner %q", l, own)
				}
			}
		}
	}
}
