package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
	adapter "github.com/holdfast-go/holdfast/redisstore/goredis"
)

// refused requires that a request is refused with the given text, and that no goroutine and no
// connection remain.
func refused(t *testing.T, r *servers.Redis, url, says string, prepare ...func(*redisstore.Store)) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	s, err := redisstore.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prepare {
		p(s)
	}
	for _, wait := range []bool{false, true} {
		q := request(t.Name(), driver.Exclusive, long)
		q.Wait = wait
		_, err = s.Acquire(t.Context(), q)
		if err == nil || s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), says) {
			t.Errorf("wait %t: %v (%v), want refused, with %q", wait, err, s.Classify(err), says)
		}
		if err != nil && strings.Contains(err.Error(), "wrong-secret") {
			t.Errorf("the password is shown: %v", err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	// Goleak itself retries for less than half a second.
	for end := time.Now().Add(testTimeout); ; {
		err := goleak.Find(before)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(testTimeout); ; time.Sleep(10 * time.Millisecond) {
		list, _ := do(t, r, "CLIENT", "LIST", "TYPE", "normal").(string)
		if strings.Count(list, "\n") <= 1 { // the connection of this command
			return
		}
		if time.Now().After(end) {
			t.Fatalf("connections remain:\n%s", list)
		}
	}
}

func TestWrongPasswordIsRefused(t *testing.T) {
	r := start(t, "--requirepass", "secret")
	refused(t, r, "redis://:wrong-secret@"+r.Address(), "WRONGPASS")
	refused(t, r, "redis://"+r.Address(), "NOAUTH")
	// A Locker reports the same error.
	l, err := holdfast.Open(t.Context(), "redis://:wrong-secret@"+r.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	if _, err := l.TryLock(t.Context(), "x"); err == nil || strings.Contains(err.Error(), "wrong-secret") || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}

func TestKeyOfAnotherTypeIsRefused(t *testing.T) {
	r := start(t)
	key := redisstore.Key("", t.Name())
	do(t, r, "LPUSH", key, "something")
	refused(t, r, "redis://"+r.Address(), "WRONGTYPE")
	do(t, r, "DEL", key)
	do(t, r, "SET", key, "something else's")
	refused(t, r, "redis://"+r.Address(), "WRONGTYPE")
	if v := do(t, r, "GET", key); v != "something else's" {
		t.Errorf("the value was changed to %v", v)
	}
}

func TestReadOnlyReplicaIsRefused(t *testing.T) {
	installed(t)
	g, err := servers.StartRedisReplicas(t.Context(), t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	refused(t, g.Replicas[0], "redis://"+g.Replicas[0].Address(), "replica")
	// A primary becomes a replica while a client uses it.
	r := start(t)
	refused(t, r, "redis://"+r.Address(), "replica", func(s *redisstore.Store) {
		must(t, s, request("before", driver.Exclusive, long))
		do(t, r, "REPLICAOF", "127.0.0.1", fmt.Sprint(g.Primary.Port))
	})
}

func TestMissingRightIsRefused(t *testing.T) {
	r := start(t)
	do(t, r, "ACL", "SETUSER", "weak", "on", ">secret", "~*", "&*", "+@all", "-eval", "-evalsha")
	refused(t, r, "redis://weak:secret@"+r.Address(), "NOPERM")
	do(t, r, "ACL", "SETUSER", "narrow", "on", ">secret", "~other:*", "&*", "+@all")
	refused(t, r, "redis://narrow:secret@"+r.Address(), "holdfast:*")
	do(t, r, "ACL", "SETUSER", "hasty", "on", ">secret", "~*", "&*", "+@all", "-wait")
	refused(t, r, "redis://hasty:secret@"+r.Address()+"?replicas=1", "needs WAIT")
	// The rights in the documentation are enough.
	restrict(t, []*servers.Redis{r}, "info", "scan", "role", "wait")
	s := open(t, "redis://app:app-secret@"+r.Address())
	g := must(t, s, request("x", driver.Exclusive, long))
	w := queue(t, open(t, "redis://app:app-secret@"+r.Address()), request("x", 3, long))
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatal(err)
	}
	w.granted()
	for _, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Error(err)
		}
	}
	if guarantees, err := s.Guarantees(t.Context()); err != nil || len(guarantees.Notes) == 0 {
		t.Errorf("%+v, %v", guarantees, err)
	}
}

// TestFullServerRefusesNewLocks: a server without free memory refuses new locks. A holder can still renew
// and release, and a waiter is granted.
func TestFullServerRefusesNewLocks(t *testing.T) {
	r := start(t)
	s, other := open(t, "redis://"+r.Address()), open(t, "redis://"+r.Address())
	g := must(t, s, request("x", driver.Exclusive, long))
	w := queue(t, other, request("x", driver.Exclusive, long))
	do(t, r, "CONFIG", "SET", "maxmemory", "1") // less than an empty server uses
	if a := s.Renew(t.Context(), []driver.Grant{g}); a[0].Err != nil {
		t.Errorf("a full server does not renew: %v", a[0].Err)
	}
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Errorf("a full server does not release: %v", err)
	}
	next := w.granted()
	if a := other.Renew(t.Context(), []driver.Grant{next}); a[0].Err != nil {
		t.Error(a[0].Err)
	}
	if err := other.Release(t.Context(), next, 0); err != nil {
		t.Error(err)
	}
	for _, st := range []*redisstore.Store{s, other} {
		if err := st.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	refused(t, r, "redis://"+r.Address(), "maxmemory")
}

func TestEvictionPolicyIsRefused(t *testing.T) {
	r := start(t)
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		do(t, r, "CONFIG", "SET", "maxmemory-policy", policy)
		refused(t, r, "redis://"+r.Address(), policy)
	}
	s := open(t, "redis://"+r.Address()+"?insist=true")
	g, err := s.Guarantees(t.Context())
	if err != nil || !strings.Contains(fmt.Sprint(g.EarlyEnd), "volatile-ttl") {
		t.Errorf("%+v, %v", g, err)
	}
	must(t, s, request("x", driver.Exclusive, long))
}

func TestClusterNodeNeedsClusterURL(t *testing.T) {
	r := start(t, "--cluster-enabled", "yes", "--cluster-port", freePort(t))
	refused(t, r, "redis://"+r.Address(), "redis+cluster://")
}

func freePort(t *testing.T) string {
	t.Helper()
	p, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(p)
}

func TestBadInputIsInvalid(t *testing.T) {
	for url, says := range map[string]string{
		"redis://":                             "host is missing",
		"redis://h/x":                          "database \"x\"",
		"redis://h/1/2":                        "nothing may follow",
		"redis://h/-1":                         "database \"-1\"",
		"redis://h:70000":                      "ports are 1 to 65535",
		"redis://:wrong-secret@h?foo=1":        "unknown parameter \"foo\"",
		"redis://h?replicas=x":                 "replicas \"x\"",
		"redis://h?replicas=-1":                "replicas -1",
		"redis://h?replicas=1&replica_wait=":   "replica_wait is empty",
		"redis://h?replicas=1&replica_wait=1h": "replica wait 1h",
		"redis://h?insist=perhaps":             "insist \"perhaps\"",
		"redis://h?ca=x":                       "rediss",
		"rediss://h?ca=/nonexistent":           "ca:",
		"redis://h?addr=b":                     "addr is for",
		"redis://h#frag":                       "%23",
		"redis:h":                              "host is missing",
		"redis+sentinel://h":                   "name of the primary is missing",
		"redis+cluster://h/1":                  "only database 0",
		"redis+other://h":                      "scheme",
		"redis://h?replicas=1&replicas=2":      "more than once",
	} {
		s, err := redisstore.Open(t.Context(), url)
		if err == nil || driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want invalid with %q", url, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "wrong-secret") {
			t.Errorf("%s: the password is shown: %v", url, err)
		}
		if s != nil {
			t.Errorf("%s: a store", url)
		}
	}
	if _, err := redisstore.Open(t.Context(), "redis://h", redisstore.Namespace("\xff")); driver.CodeOf(err) != driver.CodeInvalid {
		t.Error(err)
	}
	if _, err := redisstore.New(nil); driver.CodeOf(err) != driver.CodeInvalid {
		t.Error(err)
	}
	for _, c := range []goredis.UniversalClient{nil, (*goredis.Client)(nil), goredis.NewRing(&goredis.RingOptions{})} {
		if _, err := adapter.New(c); driver.CodeOf(err) != driver.CodeInvalid {
			t.Errorf("%T: %v", c, err)
		}
	}
	// No server listens at that address, so a request would fail with another code.
	s := open(t, "redis://:secret@127.0.0.1:1")
	if text := fmt.Sprintf("%v %+v %#v %s", s, s, s, s.String()); strings.Contains(text, "secret") {
		t.Errorf("the password is shown: %s", text)
	}
	for what, change := range map[string]func(*driver.Request){
		"id":    func(r *driver.Request) { r.ID = "a b" },
		"name":  func(r *driver.Request) { r.Name = "" },
		"NUL":   func(r *driver.Request) { r.Name = "a\x00b" },
		"limit": func(r *driver.Request) { r.Limit = 0 },
		"TTL":   func(r *driver.Request) { r.TTL = time.Microsecond },
		"long":  func(r *driver.Request) { r.TTL = 25 * time.Hour },
	} {
		q := request("x", driver.Exclusive, long)
		change(&q)
		if _, err := s.Acquire(t.Context(), q); s.Classify(err) != driver.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := s.Acquire(ctx, request("x", driver.Exclusive, long)); s.Classify(err) != driver.CodeUnavailable {
		t.Errorf("without a server: %v", err)
	}
}
