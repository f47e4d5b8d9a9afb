package redisstore

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func TestLayoutOfURL(t *testing.T) {
	for url, want := range map[string]config{
		"redis://h":                                    {},
		"redis://h?layout=plain":                       {layout: Plain},
		"redis://h?layout=redisson":                    {layout: Redisson},
		"redis+cluster://h?layout=redisson-permits":    {layout: RedissonPermits},
		"redis://h?layout=redisson-fair":               {layout: RedissonFair, fairWait: 5 * time.Minute},
		"redis://h?layout=redisson-fair&fair_wait=20s": {layout: RedissonFair, fairWait: 20 * time.Second},
	} {
		s, err := Open(t.Context(), url)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if s.cfg.layout != want.layout || want.fairWait != 0 && s.cfg.fairWait != want.fairWait {
			t.Errorf("%s: %+v", url, s.cfg)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for url, says := range map[string]string{
		"redis://h?layout=redison":                       `layout "redison": there are plain, redisson, redisson-fair, redisson-fenced`,
		"redis://h?layout=plain&fair_wait=1m":            "has no fair lock",
		"redis://h?fair_wait=1m":                         "has no fair lock",
		"redis://h?layout=redisson-fair&fair_wait=1ms":   "give 1s to 24h0m0s",
		"redis://h?layout=redisson-fair&fair_wait=later": "give a duration",
	} {
		if _, err := Open(t.Context(), url); driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", url, err, says)
		}
	}
}

// TestNamesThatALayoutCarries requires that in a Cluster all keys of a name are in one hash slot,
// or that the store refuses the name.
func TestNamesThatALayoutCarries(t *testing.T) {
	for name, carried := range map[string]bool{
		"a": true, "a/b": true, "{a}b": true, "b{a}": true, "{a": false, "a{b": false, "a}": false, "a}b": false, "{}": false, "{}a": false,
		"a{}b{c}": false, "{a}{b}": true, "a{b}c}": true,
	} {
		for _, l := range Layouts() {
			s, err := Open(t.Context(), "redis+cluster://h?layout="+string(l))
			if err != nil {
				t.Fatal(err)
			}
			err = s.peers.checkName(name)
			if (err == nil) != carried {
				t.Errorf("%s: %q: %v, want carried %t", l, name, err, carried)
			}
			for _, key := range append(s.peers.keys(name), s.peers.channel(name), stemOf(name)+":x:rwlock_timeout:1") {
				if carried && key != "" && hashTag(key) != hashTag(name) {
					t.Errorf("%s: %q: its key %q is in another hash slot", l, name, key)
				}
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	for _, l := range []Layout{RedissonFair, RedissonFenced, RedissonPermits} {
		s, err := Open(t.Context(), "redis://h?layout="+string(l))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.peers.checkName("{a}"); driver.CodeOf(err) != driver.CodeUnsupported {
			t.Errorf("%s: {a} has keys in common with a: %v", l, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
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
			s, err := Open(t.Context(), "redis://h?layout="+string(l))
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"a", "b"} {
				own := s.peers.owner(id, driver.Exclusive)
				if own != s.peers.owner(id, driver.Exclusive) {
					t.Errorf("%s: an undo of %s would not find its owner", l, id)
				}
				if seen[own] {
					t.Errorf("%s: two requests have the owner %q", l, own)
				}
				seen[own] = true
				form := `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}:[0-9]{1,19}$`
				switch l {
				case RedissonReadWrite:
					if reader := s.peers.owner(id, driver.Unlimited); reader+":write" != own {
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
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}
