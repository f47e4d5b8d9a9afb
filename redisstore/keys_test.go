package redisstore

import (
	"strings"
	"testing"
)

func TestKeysStayAsTheyAre(t *testing.T) {
	// A new version must not change the keys, because other versions hold locks at the same time.
	for _, c := range []struct{ ns, name, key string }{
		{"", "order/4711", "holdfast:{fdc}::order/4711"}, {"app", "n", "holdfast:{63d}:app:n"},
	} {
		if got := Key(c.ns, c.name); got != c.key {
			t.Errorf("Key(%q, %q) is %q, want %q", c.ns, c.name, got, c.key)
		}
	}
	names := []string{"n", "a:b", "{x}", "}{", "a b", "%41", ":", strings.Repeat("ü", 256)}
	spaces := []string{"", "app", "a:b", "50%", "{ns}"}
	for _, ns := range spaces {
		k := newKeyspace(ns)
		for _, name := range names {
			key, counter, _ := k.of(name)
			if got, ok := k.nameOf(key); !ok || got != name {
				t.Errorf("namespace %q, name %q: key %q is of %q, %v", ns, name, key, got, ok)
			}
			if Key(ns, name) != key {
				t.Errorf("Key(%q, %q) is %q, not %q", ns, name, Key(ns, name), key)
			}
			if len(counter) != len("holdfast:{000}") || !strings.HasPrefix(key, counter+":") {
				t.Errorf("counter %q of key %q: not in one slot", counter, key)
			}
			for _, other := range spaces {
				if got, ok := newKeyspace(other).nameOf(key); ok && other != ns {
					t.Errorf("key %q of namespace %q is name %q of namespace %q", key, ns, got, other)
				}
			}
		}
	}
	for _, key := range []string{"", "holdfast:{", "holdfast:{abc}", "holdfast:{abc}::", "other", "holdfast:{000}::n"} {
		if key == Key("", "n") {
			continue
		}
		if name, ok := newKeyspace("").nameOf(key); ok {
			t.Errorf("%q is taken for the key of %q", key, name)
		}
	}
	if got, want := newKeyspace("a*").pattern(`[b]?\^`), `holdfast:{???}:a\*:\[b\]\?\\\^*`; got != want {
		t.Errorf("pattern %q, want %q", got, want)
	}
}
